// Command registrystub serves a GGUF file of this machine as the Ollama registry would, for trying by hand:
//
//	registrystub -model smollm2:135m -gguf model.gguf
//	curl localhost:11434/api/pull -d '{"model":"127.0.0.1:5000/library/smollm2:135m","insecure":true}'
package main

import (
	"flag"
	"log"
	"net"
	"net/http"
	"os"

	"github.com/levelrail/levelrail/test/engines/registrystub"
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("registrystub: ")
	var model registrystub.Model
	listen := flag.String("listen", "127.0.0.1:5000", "address of the registry")
	storage := flag.String("storage", "127.0.0.2:5000", "address of the storage; another IP address than the registry's")
	flag.StringVar(&model.Name, "model", "smollm2:135m", "name and tag")
	flag.StringVar(&model.GGUF, "gguf", "", "weights")
	flag.Parse()
	if model.GGUF == "" || flag.NArg() > 0 {
		log.Fatal("give -gguf PATH; -help tells more")
	}
	if err := serve(*listen, *storage, model); err != nil {
		log.Fatal(err)
	}
}

func serve(listen, storage string, model registrystub.Model) error {
	dir, err := os.MkdirTemp("", "registrystub-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	stub, err := registrystub.New(dir, model)
	if err != nil {
		return err
	}
	registry, err := net.Listen("tcp", listen)
	if err != nil {
		return err
	}
	blobs, err := net.Listen("tcp", storage)
	if err != nil {
		return err
	}
	stub.SetStorage("http://" + blobs.Addr().String())
	log.Printf("serving %s on http://%s, blobs from http://%s", model.Name, registry.Addr(), blobs.Addr())
	failed := make(chan error, 2)
	go func() { failed <- http.Serve(registry, stub.Registry()) }()
	go func() { failed <- http.Serve(blobs, stub.Storage()) }()
	return <-failed
}

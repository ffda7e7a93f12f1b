// Command stub serves an engine without a model, for load and for trying a gateway by hand:
//
//	stub -listen unix:/tmp/engine.sock -manner vllm -names chat,org/chat
//
// What it answers is said in each request, or with -default '{"events":200,"gap":"10ms"}'; package stub has the list.
package main

import (
	"encoding/json"
	"flag"
	"log"
	"net"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/levelrail/levelrail/test/engines/stub"
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("stub: ")
	listen := flag.String("listen", "127.0.0.1:8098", "address, host:port or unix:PATH")
	var o stub.Options
	flag.StringVar(&o.Manner, "manner", stub.LlamaCpp, "which engine it takes after: llamacpp, vllm or ollama")
	names := flag.String("names", "chat", "the models it lists, with commas between")
	flag.StringVar(&o.Key, "key", "", "the key it demands")
	flag.DurationVar(&o.KeepAlive, "keep-alive", 0, "idle connections are closed after it; 0: never")
	flag.IntVar(&o.Keep, "keep", 0, "how many of the newest requests GET /stub/requests shows")
	flag.Func("default", "how requests that do not say are answered, as JSON", func(v string) error { return json.Unmarshal([]byte(v), &o.Default) })
	flag.Parse()
	o.Names = strings.Split(*names, ",")

	engine, err := stub.New(o)
	if err != nil {
		log.Fatal(err)
	}
	network, address := "tcp", *listen
	if path, ok := strings.CutPrefix(*listen, "unix:"); ok {
		network, address = "unix", path
		os.Remove(path) // of a stub that was killed
	}
	l, err := net.Listen(network, address)
	if err != nil {
		log.Fatal(err)
	}
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, os.Interrupt, syscall.SIGTERM)
	go func() { <-stop; engine.Close() }()
	log.Printf("%s's manner, at %s", o.Manner, *listen)
	if err := engine.Serve(l); err != nil {
		log.Fatal(err)
	}
}

// Command hubstub serves files of this machine as the Hugging Face Hub would, for trying Levelrail by hand:
//
//	hubstub -repo org/name -file model.gguf -file README.md=docs/card.md -rate 20M
//
// Point the agent at it with APP_HF_BASE_URL=http://127.0.0.1:8099.
package main

import (
	"flag"
	"fmt"
	"log"
	"net"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/levelrail/levelrail/test/engines/faults"
	"github.com/levelrail/levelrail/test/engines/hubstub"
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("hubstub: ")
	repo := hubstub.Repo{Files: map[string]string{}}
	listen := flag.String("listen", "127.0.0.1:8099", "address of the Hub")
	cdn := flag.String("cdn", "127.0.0.1:8100", "address of the content network that the Hub sends clients to")
	flag.StringVar(&repo.ID, "repo", "", "repository, org/name")
	flag.StringVar(&repo.Gated, "gated", "", "auto or manual: files only for the token")
	flag.BoolVar(&repo.Private, "private", false, "seen only with the token")
	token := flag.String("token", "", "a token that may read the repository")
	rate := flag.String("rate", "", "bytes a second of each download, with K, M or G for powers of 1000")
	flag.Func("file", "file of the repository, PATH or NAME=PATH; may be repeated", func(v string) error {
		name, path, ok := strings.Cut(v, "=")
		if !ok {
			name, path = filepath.Base(v), v
		}
		repo.Files[name] = path
		return nil
	})
	flag.Parse()
	if repo.ID == "" || len(repo.Files) == 0 || flag.NArg() > 0 {
		log.Fatal("give -repo org/name and at least one -file PATH; -help tells more")
	}
	bytesPerSecond, err := parseRate(*rate)
	if err != nil {
		log.Fatal(err)
	}
	opts := hubstub.Options{Repos: []hubstub.Repo{repo}}
	if *token != "" {
		opts.Tokens = map[string]hubstub.User{*token: {Name: "user", MayRead: []string{repo.ID}}}
	}
	stub, err := hubstub.New(opts)
	if err != nil {
		log.Fatal(err)
	}
	stub.CDNFaults.Set(faults.Settings{Rate: bytesPerSecond})
	hub, err := net.Listen("tcp", *listen)
	if err != nil {
		log.Fatal(err)
	}
	files, err := net.Listen("tcp", *cdn)
	if err != nil {
		log.Fatal(err)
	}
	log.Printf("serving %s at commit %s on http://%s, files from http://%s", repo.ID, stub.Commit(repo.ID), hub.Addr(), files.Addr())
	log.Fatal(stub.Serve(hub, files))
}

// parseRate reads 20M as 20,000,000; nothing is no limit.
func parseRate(s string) (int64, error) {
	if s == "" {
		return 0, nil
	}
	number, factor := s, int64(1)
	switch s[len(s)-1] {
	case 'K', 'k':
		factor = 1e3
	case 'M':
		factor = 1e6
	case 'G':
		factor = 1e9
	}
	if factor > 1 {
		number = s[:len(s)-1]
	}
	n, err := strconv.ParseInt(number, 10, 64)
	if err != nil || n <= 0 {
		return 0, fmt.Errorf("-rate %s is no rate; write for example 20M for 20 megabytes a second", s)
	}
	return n * factor, nil
}

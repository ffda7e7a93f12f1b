package proxy

import (
	"io"
	"net"
	"strings"
	"testing"

	"github.com/levelrail/levelrail/client/wire"
)

// BenchmarkCall is a small request and its answer over a kept connection, without a client.
func BenchmarkCall(b *testing.B) {
	socket := b.TempDir() + "/s"
	l, err := net.Listen("unix", socket)
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				answer := []byte("HTTP/1.1 200 OK\r\nDate: Mon, 30 Nov 2026 10:00:00 GMT\r\nContent-Type: application/json\r\nContent-Length: 1024\r\n\r\n" + strings.Repeat("x", 1024))
				for buf := make([]byte, 8<<10); ; { // a request comes in one piece
					if _, err := c.Read(buf); err != nil {
						return
					}
					c.Write(answer)
				}
			}()
		}
	}()
	e := NewEngines()
	body, err := ReadBody(strings.NewReader(strings.Repeat("x", 1024)), 0, nil)
	if err != nil {
		b.Fatal(err)
	}
	c := Call{Method: "POST", Path: "/v1/chat/completions", Type: "application/json", Body: body, Targets: []wire.RouteTarget{{Network: "unix", Address: socket, Key: "key"}},
		Limits: wire.Limits{HeaderTimeout: 300, IdleTimeout: 60}}
	ctx := b.Context()
	b.ReportAllocs()
	for b.Loop() {
		a, err := e.Do(ctx, c)
		if err != nil {
			b.Fatal(err)
		}
		if p, err := a.body.buffered(a.conn); len(p) != 1024 || err != io.EOF {
			b.Fatalf("%d bytes, %v", len(p), err)
		}
		a.Close()
	}
}

// Package faults serves files over HTTP the way bad networks and busy servers do: slowly, late, cut short, damaged, or
// with a login page in their place.
//
// It owns what goes wrong; the stand-ins hubstub and registrystub own what their services say when nothing does.
package faults

import (
	"context"
	"io"
	"net/http"
	"os"
	"sync"
	"time"
)

// Settings say what goes wrong. The zero value is a server without faults.
type Settings struct {
	Latency time.Duration // before each answer
	Rate    int64         // bytes per second of each body; 0 is no limit

	// CutAfter breaks the connection after so many bytes of a body, at most Cuts times; Cuts 0 is every time. Bodies
	// that are not longer arrive whole.
	CutAfter int64
	Cuts     int

	// Status answers with this code instead, at most Times times; Times 0 is every time. RetryAfter is sent with it.
	Status     int
	Times      int
	RetryAfter string

	HTML    bool // answers 200 with a web page, as a captive portal or a misconfigured proxy does
	Corrupt bool // flips one bit in the middle of each file: right size, wrong checksum
	NoRange bool // ignores Range and sends the whole file with 200
}

// Faults is one server's current faults. The zero value has none. It may be changed while requests run; each request
// takes what is set when it begins.
type Faults struct {
	mu sync.Mutex
	s  Settings
}

// Set replaces the faults and starts their counts anew.
func (f *Faults) Set(s Settings) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.s = s
}

// status takes one of the answers that Status asks for.
func (f *Faults) status() (code int, retryAfter string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	code, retryAfter = f.s.Status, f.s.RetryAfter
	if code != 0 && f.s.Times > 0 {
		if f.s.Times--; f.s.Times == 0 {
			f.s.Status = 0
		}
	}
	return code, retryAfter
}

// cut takes one of the cuts that CutAfter asks for and returns after how many bytes, or -1.
func (f *Faults) cut() int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.s.CutAfter <= 0 {
		return -1
	}
	after := f.s.CutAfter
	if f.s.Cuts > 0 {
		if f.s.Cuts--; f.s.Cuts == 0 {
			f.s.CutAfter = 0
		}
	}
	return after
}

func (f *Faults) get() Settings {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.s
}

// Wrap puts latency, status and web page before a handler. Files are to be served with ServeFile for the rest.
func (f *Faults) Wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s := f.get()
		if s.Latency > 0 && !pause(r.Context(), s.Latency) {
			return
		}
		if code, retryAfter := f.status(); code != 0 {
			if retryAfter != "" {
				w.Header().Set("Retry-After", retryAfter)
			}
			http.Error(w, http.StatusText(code), code)
			return
		}
		if s.HTML {
			w.Header().Set("Content-Type", "text/html; charset=utf-8")
			io.WriteString(w, "<!DOCTYPE html>\n<html><head><title>Sign in to the network</title></head><body>Please sign in.</body></html>\n")
			return
		}
		next.ServeHTTP(w, r)
	})
}

// ServeFile answers GET and HEAD with the file, ranges and conditions included, at the rate and with the damage that is
// set. Headers such as ETag are the caller's.
func (f *Faults) ServeFile(w http.ResponseWriter, r *http.Request, path string) {
	file, err := os.Open(path)
	if err != nil {
		http.Error(w, "the stand-in cannot open its file: "+err.Error(), http.StatusInternalServerError)
		return
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		http.Error(w, "the stand-in cannot read its file: "+err.Error(), http.StatusInternalServerError)
		return
	}
	s := f.get()
	if s.NoRange {
		r = r.Clone(r.Context())
		r.Header.Del("Range")
		w = noRange{w}
	}
	var content io.ReadSeeker = file
	if s.Corrupt {
		content = &corrupted{File: file, at: info.Size() / 2}
	}
	if w.Header().Get("Content-Type") == "" {
		w.Header().Set("Content-Type", "application/octet-stream")
	}
	out := &body{ResponseWriter: w, ctx: r.Context(), rate: s.Rate, left: -1}
	if r.Method == http.MethodGet {
		out.left = f.cut()
	}
	http.ServeContent(out, r, "", info.ModTime(), content)
}

// body passes a response on at a rate and breaks it off after some bytes.
type body struct {
	http.ResponseWriter
	ctx  context.Context
	rate int64
	left int64 // bytes until the cut, -1 without one
}

// Write sends a body in pieces of a twentieth of a second.
func (b *body) Write(p []byte) (int, error) {
	written := 0
	for len(p) > 0 {
		n := len(p)
		if b.rate > 0 {
			n = min(n, int(max(b.rate/20, 1)))
		}
		if b.left >= 0 && int64(n) >= b.left {
			b.ResponseWriter.Write(p[:b.left])
			http.NewResponseController(b.ResponseWriter).Flush()
			panic(http.ErrAbortHandler) // net/http drops the connection without ending the body
		}
		m, err := b.ResponseWriter.Write(p[:n])
		written += m
		if err != nil {
			return written, err
		}
		if b.left >= 0 {
			b.left -= int64(m)
		}
		p = p[m:]
		if b.rate > 0 {
			http.NewResponseController(b.ResponseWriter).Flush()
			if !pause(b.ctx, time.Duration(int64(time.Second)*int64(m)/b.rate)) {
				return written, b.ctx.Err()
			}
		}
	}
	return written, nil
}

// pause waits and reports whether the client is still there.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// corrupted flips the lowest bit of one byte.
type corrupted struct {
	*os.File
	at int64
}

func (c *corrupted) Read(p []byte) (int, error) {
	pos, err := c.File.Seek(0, io.SeekCurrent)
	if err != nil {
		return 0, err
	}
	n, err := c.File.Read(p)
	if i := c.at - pos; i >= 0 && i < int64(n) {
		p[i] ^= 1
	}
	return n, err
}

// noRange hides that ServeContent offers ranges.
type noRange struct{ http.ResponseWriter }

func (n noRange) WriteHeader(code int) {
	n.Header().Del("Accept-Ranges")
	n.ResponseWriter.WriteHeader(code)
}

func (n noRange) Unwrap() http.ResponseWriter { return n.ResponseWriter }

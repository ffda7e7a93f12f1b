package faults

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// TestFaults: each setting does what its comment says, and the zero value serves the file with ranges.
func TestFaults(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	content := bytes.Repeat([]byte("0123456789"), 10_000)
	if err := os.WriteFile(path, content, 0o644); err != nil {
		t.Fatal(err)
	}
	var f Faults
	server := httptest.NewServer(f.Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { f.ServeFile(w, r, path) })))
	defer server.Close()
	get := func(rangeHeader string) (*http.Response, []byte, error) {
		t.Helper()
		req, _ := http.NewRequest("GET", server.URL, nil)
		if rangeHeader != "" {
			req.Header.Set("Range", rangeHeader)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		data, err := io.ReadAll(resp.Body)
		return resp, data, err
	}

	if resp, data, err := get(""); err != nil || resp.StatusCode != 200 || !bytes.Equal(data, content) {
		t.Errorf("no faults: %s %d bytes %v", resp.Status, len(data), err)
	}
	if resp, data, err := get("bytes=99995-"); err != nil || resp.StatusCode != 206 || string(data) != "56789" {
		t.Errorf("a range: %s %q %v", resp.Status, data, err)
	}

	f.Set(Settings{NoRange: true})
	if resp, data, _ := get("bytes=99995-"); resp.StatusCode != 200 || len(data) != len(content) || resp.Header.Get("Accept-Ranges") != "" {
		t.Errorf("NoRange: %s %d bytes %v", resp.Status, len(data), resp.Header)
	}

	f.Set(Settings{CutAfter: 1234, Cuts: 1})
	if _, data, err := get(""); !errors.Is(err, io.ErrUnexpectedEOF) || len(data) != 1234 {
		t.Errorf("CutAfter: %d bytes, %v", len(data), err)
	}
	if _, data, err := get(""); err != nil || len(data) != len(content) {
		t.Errorf("after the only cut: %d bytes, %v", len(data), err)
	}

	f.Set(Settings{Corrupt: true})
	_, data, err := get("")
	differing := 0
	for i := range data {
		if data[i] != content[i] {
			differing++
		}
	}
	if err != nil || len(data) != len(content) || differing != 1 || sha256.Sum256(data) == sha256.Sum256(content) {
		t.Errorf("Corrupt: %d bytes, %d differ, %v", len(data), differing, err)
	}
	if _, again, _ := get("bytes=40000-60000"); !bytes.Equal(again, data[40000:60001]) {
		t.Error("Corrupt: a range has another fault than the whole")
	}

	f.Set(Settings{Status: 503, Times: 2, RetryAfter: "7"})
	for _, want := range []int{503, 503, 200} {
		if resp, _, _ := get(""); resp.StatusCode != want || (resp.Header.Get("Retry-After") == "7") != (want == 503) {
			t.Errorf("Status: %s, want %d; %v", resp.Status, want, resp.Header)
		}
	}

	f.Set(Settings{HTML: true})
	if resp, data, _ := get(""); resp.StatusCode != 200 || !bytes.HasPrefix(data, []byte("<!DOCTYPE html>")) {
		t.Errorf("HTML: %s %q", resp.Status, data)
	}

	f.Set(Settings{Rate: 500_000, Latency: 50 * time.Millisecond})
	began := time.Now()
	if _, data, err := get(""); err != nil || len(data) != len(content) {
		t.Errorf("Rate: %d bytes, %v", len(data), err)
	}
	if took := time.Since(began); took < 200*time.Millisecond || took > 5*time.Second {
		t.Errorf("100 kB at 500 kB/s took %s", took)
	}
}

package client

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/client/wire"
)

// silence is how long a watch may say nothing: three heartbeats.
const silence = 30 * time.Second

// WatchOptions say what to watch.
type WatchOptions struct {
	After string   // the token of the last line seen; empty: everything, from reset to synced, then changes
	Kinds []string // wire.Watch…; at least one
	ID    string   // only the object of this id: the name of a model, the id or name of a node
	Body  any      // wire.WatchAgent or wire.WatchGateway; the watch is then a POST
}

// Watch calls each with every line until ctx ends, each fails, or the watch does. Heartbeats are passed on too. Lines come
// one at a time, in the server's order. It returns
//
//   - each's error, or context.Canceled when ctx was ended,
//   - the *levelrail.Error of an error line or of a refusal; IsGone tells when the token was too old and the watch has to
//     begin again without one,
//   - unavailable when the connection broke, the server left, or nothing came for 30 seconds. Come back with the last
//     token.
//
// It never returns nil, since a watch has no end of its own.
func (c *Client) Watch(ctx context.Context, o WatchOptions, each func(wire.WatchLine) error) error {
	query := url.Values{"kinds": {strings.Join(o.Kinds, ",")}}
	if o.After != "" {
		query.Set("after", o.After)
	}
	if o.ID != "" {
		query.Set("id", o.ID)
	}
	method := http.MethodGet
	if o.Body != nil {
		method = http.MethodPost
	}
	err := c.lines(ctx, method, "/watch", query, o.Body, silence, func(b []byte) error {
		var line wire.WatchLine
		if err := json.Unmarshal(b, &line); err != nil {
			return levelrail.Errorf(levelrail.ErrInternal, "a line of the watch at %s cannot be read: %v", c.Where(), err)
		}
		if line.Type == wire.WatchError && line.Error != nil {
			return line.Error
		}
		return each(line)
	})
	if err == nil {
		return levelrail.Errorf(levelrail.ErrUnavailable, "the watch at %s was ended by the server", c.Where()).WithNext("watch again")
	}
	return err
}

// GoneError says that a watch's token is too old, or of another history: the state has to be read anew.
type GoneError struct{ Err *levelrail.Error }

func (e *GoneError) Error() string { return e.Err.Error() }

// Unwrap gives the error as the server wrote it.
func (e *GoneError) Unwrap() error { return e.Err }

// IsGone tells whether a watch ended because its token is too old: watch again without one.
func IsGone(err error) bool {
	var g *GoneError
	return errors.As(err, &g)
}

// LogOptions say which lines of a journal to send.
type LogOptions struct {
	Lines  int    // the newest so many; 0: the server's default
	Follow bool   // go on with new ones until the context ends
	Since  string // as journalctl takes it: "-1h", "2026-01-02 03:04:05"
}

// Logs calls each with the lines of a model's journal, oldest first, and returns nil when there are no more. It fails with
// unavailable when the node's agent is not connected. Ability read.
func (c *Client) Logs(ctx context.Context, model string, o LogOptions, each func(wire.LogLine) error) error {
	query := url.Values{}
	if o.Lines > 0 {
		query.Set("lines", strconv.Itoa(o.Lines))
	}
	if o.Follow {
		query.Set("follow", "true")
	}
	if o.Since != "" {
		query.Set("since", o.Since)
	}
	return c.lines(ctx, http.MethodGet, "/models"+seg(model)+"/logs", query, nil, 0, func(b []byte) error {
		var line struct {
			wire.LogLine
			Error *levelrail.Error `json:"error"`
		}
		if err := json.Unmarshal(b, &line); err != nil {
			return levelrail.Errorf(levelrail.ErrInternal, "a log line from %s cannot be read: %v", c.Where(), err)
		}
		if line.Error != nil {
			return line.Error
		}
		return each(line.LogLine)
	})
}

// backupSilence is how long a backup may say nothing.
const backupSilence = 30 * time.Second

// lines is linesWithHeader for whom the header says nothing.
func (c *Client) lines(ctx context.Context, method, path string, query url.Values, in any, quiet time.Duration, each func([]byte) error) error {
	return c.linesWithHeader(ctx, method, path, query, in, quiet, func(http.Header) {}, each)
}

// linesWithHeader asks, calls header once the answer has begun, and each with every line of it. With quiet > 0, an answer
// that says nothing for so long is broken.
func (c *Client) linesWithHeader(ctx context.Context, method, path string, query url.Values, in any, quiet time.Duration,
	header func(http.Header), each func([]byte) error) error {
	asked := ctx
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var body io.Reader
	if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			return levelrail.Errorf(levelrail.ErrInvalid, "%s %s cannot be asked: %v", method, path, err)
		}
		body = bytes.NewReader(b)
	}
	req, err := c.request(ctx, method, root+path, query, body)
	if err != nil {
		return err
	}
	if in != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	req.Header.Set("Accept", "application/x-ndjson, application/json")
	var silent atomic.Bool
	stop := func() { silent.Store(true); cancel() }
	// The first line may take the time of an answer; later ones that of a heartbeat.
	timer := time.AfterFunc(answerTimeout, stop)
	defer timer.Stop()
	broken := func(err error) error {
		if silent.Load() && asked.Err() == nil {
			return levelrail.Errorf(levelrail.ErrUnavailable, "%s went silent", c.Where()).WithNext("try again")
		}
		return c.failed(asked, http.MethodGet, root+path, err)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return broken(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode >= 300 {
		b, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
		err := refusal(resp, b)
		if e := new(levelrail.Error); resp.StatusCode == http.StatusGone && errors.As(err, &e) {
			return &GoneError{Err: e}
		}
		return err
	}
	header(resp.Header)
	if quiet == 0 {
		timer.Stop()
	}
	scan := bufio.NewScanner(resp.Body)
	scan.Buffer(make([]byte, 0, 64<<10), maxLine)
	for scan.Scan() {
		if quiet > 0 {
			timer.Reset(quiet)
		}
		if len(bytes.TrimSpace(scan.Bytes())) == 0 {
			continue
		}
		if quiet > 0 {
			timer.Stop() // what the caller does with a line is not the server's silence
		}
		if err := each(scan.Bytes()); err != nil {
			return err
		}
		if quiet > 0 {
			timer.Reset(quiet)
		}
	}
	if asked.Err() != nil {
		return c.failed(asked, http.MethodGet, root+path, asked.Err())
	}
	if err := scan.Err(); err != nil {
		return broken(err)
	}
	return nil
}

// PostLogs answers a wire.LogRequest: write is called with a context that ends when nobody reads any more, and a function
// that sends one line. PostLogs returns when write has returned and the server has taken the lines; a reader who left is
// not an error. Agent's socket.
func (c *Client) PostLogs(ctx context.Context, id string, write func(ctx context.Context, send func(wire.LogLine) error) error) error {
	asked := ctx
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r, w := io.Pipe()
	req, err := c.request(ctx, http.MethodPost, root+"/agent/logs"+seg(id), nil, r)
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/x-ndjson")
	written := make(chan error, 1)
	go func() {
		// The transport holds a request's headers back until its body has a byte; readers pass over empty lines.
		if _, err := io.WriteString(w, "\n"); err != nil {
			written <- err
			return
		}
		enc := json.NewEncoder(w)
		err := write(ctx, func(line wire.LogLine) error { return enc.Encode(line) })
		w.CloseWithError(err) // nil: the end of the body
		written <- err
	}()
	resp, err := c.http.Do(req)
	if err == nil {
		b, readErr := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
		resp.Body.Close()
		if resp.StatusCode >= 300 {
			err = refusal(resp, b)
		} else {
			err = readErr
		}
	} else {
		err = c.failed(asked, http.MethodPost, root+"/agent/logs", err)
	}
	cancel() // whatever write still waits for, nobody reads it
	r.CloseWithError(errNobodyReads)
	if writeErr := <-written; err != nil && writeErr != nil && !errors.Is(writeErr, errNobodyReads) && !errors.Is(writeErr, context.Canceled) {
		return writeErr
	}
	return err
}

var errNobodyReads = errors.New("nobody reads these lines any more")

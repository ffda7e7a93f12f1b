package hub

import (
	"context"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// PartialSuffix is behind the name of a file that is not complete yet.
const PartialSuffix = ".partial"

// progressEvery is the least time between two calls of a progress function.
const progressEvery = 200 * time.Millisecond

// Got is a finished file.
type Got struct {
	SHA256 string // lower-case hex, computed, also where the Hub says none
	Bytes  int64
}

// Download fetches one file of a commit to dst (mode 0644), in a directory that is there. It writes dst.partial, goes on
// from one that is there already, checks the whole, syncs and renames, so that dst is never anything but the right file.
// When dst is there and right, nothing is fetched. progress gets the bytes so far, at most every 200 ms and once at the
// end; it may be nil.
//
// A wrong checksum removes the partial file (after one new try from the start when the beginning was of an earlier run).
// Any other failure leaves it for the next call. Two downloads to one dst at the same time are the caller's mistake.
func (c *Client) Download(ctx context.Context, repo, commit string, file File, dst string, progress func(done int64)) (Got, error) {
	base, err := c.base()
	if err != nil {
		return Got{}, err
	}
	if !repoName.MatchString(repo) || !safePath(file.Path) || commit == "" {
		return Got{}, &Error{Kind: ErrSettings, Message: fmt.Sprintf("%q of %q at %q is not a file of a repository", clip(file.Path), clip(repo), clip(commit))}
	}
	segments := append(strings.Split(repo, "/"), "resolve", commit)
	d := &download{c: c, repo: repo, commit: commit, file: file, dst: dst, progress: progress, host: base.Host,
		address: path(base, append(segments, strings.Split(file.Path, "/")...)...)}
	defer d.close()
	if got, ok := d.there(ctx); ok {
		d.tell(true)
		return got, nil
	}
	if err := d.open(ctx); err != nil {
		return Got{}, err
	}
	again := d.done > 0
	for {
		if err := c.tries(ctx, func() (bool, error) {
			before := d.done
			err := d.fetch(ctx)
			return d.done > before, err
		}); err != nil {
			return Got{}, err
		}
		got, err := d.finish()
		if err == nil {
			return got, nil
		}
		if !errors.Is(err, ErrChecksum) {
			return Got{}, err
		}
		if !again { // all of it came from this run: the Hub's copy is wrong, or what lies between
			d.close()
			os.Remove(d.partial())
			return Got{}, err
		}
		again = false
		if err := d.restart(); err != nil {
			return Got{}, err
		}
	}
}

// download is one file on its way.
type download struct {
	c        *Client
	repo     string
	commit   string
	file     File
	dst      string
	address  string
	host     string // the Hub's
	progress func(int64)

	f    *os.File
	sum  hash.Hash // SHA-256 of what is in f
	git  hash.Hash // git's blob hash of it, where the Hub gives no SHA-256
	done int64     // bytes in f
	etag string    // of the first answer, for If-Range
	told time.Time
}

func (d *download) partial() string { return d.dst + PartialSuffix }

func (d *download) close() {
	if d.f != nil {
		d.f.Close()
		d.f = nil
	}
}

func (d *download) reset() {
	d.sum, d.git, d.done, d.etag = sha256.New(), sha1.New(), 0, ""
	fmt.Fprintf(d.git, "blob %d\x00", d.file.Bytes)
}

// there tells whether dst is the file already.
func (d *download) there(ctx context.Context) (Got, bool) {
	f, err := os.Open(d.dst)
	if err != nil {
		return Got{}, false
	}
	defer f.Close()
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() || st.Size() != d.file.Bytes {
		return Got{}, false
	}
	d.reset()
	if d.done, err = io.Copy(io.MultiWriter(d.sum, d.git), reader{ctx, f}); err != nil || d.wrong() != "" {
		return Got{}, false
	}
	return Got{SHA256: hex.EncodeToString(d.sum.Sum(nil)), Bytes: d.done}, true
}

// open takes up a partial file: what is in it counts, and is hashed.
func (d *download) open(ctx context.Context) error {
	f, err := os.OpenFile(d.partial(), os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o644)
	if err != nil {
		return d.local("open", err)
	}
	d.f = f
	d.reset()
	st, err := f.Stat()
	if err != nil {
		return d.local("open", err)
	}
	if st.Size() > d.file.Bytes {
		return d.restart()
	}
	if d.done, err = io.Copy(io.MultiWriter(d.sum, d.git), reader{ctx, f}); err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return d.local("read", err)
	}
	return nil
}

// reader stops reading when its context ends: hashing what is there of a large file takes minutes.
type reader struct {
	ctx context.Context
	r   io.Reader
}

func (r reader) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.r.Read(p)
}

// restart empties the partial file.
func (d *download) restart() error {
	if err := d.f.Truncate(0); err != nil {
		return d.local("empty", err)
	}
	if _, err := d.f.Seek(0, io.SeekStart); err != nil {
		return d.local("empty", err)
	}
	d.reset()
	return nil
}

// fetch gets what is missing in one request.
func (d *download) fetch(ctx context.Context) error {
	if d.done == d.file.Bytes && d.file.Bytes > 0 {
		return nil
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	req, err := d.c.request(ctx, d.address)
	if err != nil {
		return err
	}
	req.Header.Set("Accept-Encoding", "identity")
	if d.done > 0 {
		req.Header.Set("Range", "bytes="+strconv.FormatInt(d.done, 10)+"-")
		if d.etag != "" {
			req.Header.Set("If-Range", d.etag)
		}
	}

	// A connection that stands still is given up, so that the next try can go on from here.
	stall := d.c.Stall
	if stall <= 0 {
		stall = 60 * time.Second
	}
	stood := &Error{Kind: ErrTimeout, Message: fmt.Sprintf("the download of %s stood still for %s", d.file.Path, stall), Next: networkNext}
	watch := time.AfterFunc(stall, func() { cancel(stood) })
	defer watch.Stop()

	resp, err := d.c.do(req, d.look)
	if err != nil {
		if errors.Is(context.Cause(ctx), stood) {
			return stood
		}
		return err
	}
	defer resp.Body.Close()
	if err := d.accept(resp, req.Header.Get("Authorization") != ""); err != nil {
		return err
	}
	buf := make([]byte, 256<<10)
	for {
		n, err := resp.Body.Read(buf)
		if n > 0 {
			watch.Reset(stall)
			if d.done+int64(n) > d.file.Bytes {
				return &Error{Kind: ErrChecksum, Message: fmt.Sprintf("the Hub sends more than the %d bytes that %s has", d.file.Bytes, d.file.Path)}
			}
			if _, err := d.f.Write(buf[:n]); err != nil {
				return d.local("write", err)
			}
			d.sum.Write(buf[:n])
			d.git.Write(buf[:n])
			d.done += int64(n)
			d.tell(false)
		}
		switch {
		case err == nil:
		case errors.Is(context.Cause(ctx), stood):
			return stood
		case err == io.EOF && d.done == d.file.Bytes:
			return nil
		case err == io.EOF, errors.Is(err, io.ErrUnexpectedEOF):
			return &Error{Kind: ErrShort, Message: fmt.Sprintf("the download of %s ended after %d of %d bytes", d.file.Path, d.done, d.file.Bytes), Next: networkNext, cause: err}
		default:
			return failedToReach(req.URL.Host, err)
		}
	}
}

// look checks what each answer, and each redirect on the way, says about the file.
func (d *download) look(h http.Header) error {
	if got := h.Get("X-Repo-Commit"); got != "" && fullCommit.MatchString(d.commit) && got != d.commit {
		return &Error{Kind: ErrChecksum, Message: fmt.Sprintf("the Hub answers for commit %s where %s was asked for", clip(got), d.commit), Next: "check APP_HF_BASE_URL: the mirror does not keep to commits"}
	}
	if got := strings.ToLower(strings.Trim(strings.TrimPrefix(h.Get("X-Linked-Etag"), "W/"), `"`)); got != "" && d.file.SHA256 != "" && len(got) == 64 && got != d.file.SHA256 {
		return &Error{Kind: ErrChecksum, Message: fmt.Sprintf("the Hub has another file under %s than its list says", d.file.Path), Next: "it is tried again with a fresh list"}
	}
	return nil
}

// accept decides from an answer's head where its body belongs.
func (d *download) accept(resp *http.Response, hadToken bool) error {
	what := d.file.Path + " of " + d.repo
	switch resp.StatusCode {
	case http.StatusOK:
		if isHTML(resp.Header) && !strings.HasSuffix(d.file.Path, ".html") {
			return &Error{Kind: ErrNotHub, Status: resp.StatusCode, Message: "the answer for " + what + " is not from the Hub: a page was sent in place of the file", Next: "check APP_HF_BASE_URL and HTTPS_PROXY"}
		}
		if resp.ContentLength >= 0 && resp.ContentLength != d.file.Bytes {
			return &Error{Kind: ErrChecksum, Status: resp.StatusCode, Message: fmt.Sprintf("the Hub sends %d bytes for %s, whose size is %d", resp.ContentLength, what, d.file.Bytes), Next: "check that the mirror serves large files themselves and not their pointers"}
		}
		if d.done > 0 { // the server does not resume, or the file behind it is another one
			if err := d.restart(); err != nil {
				return err
			}
		}
	case http.StatusPartialContent:
		from, total, ok := contentRange(resp.Header.Get("Content-Range"))
		if !ok || from != d.done || total >= 0 && total != d.file.Bytes {
			if err := d.restart(); err != nil {
				return err
			}
			return &Error{Kind: ErrShort, Status: resp.StatusCode, Message: fmt.Sprintf("the Hub sent another part of %s than was asked for", what), Next: networkNext}
		}
	case http.StatusRequestedRangeNotSatisfiable:
		if err := d.restart(); err != nil {
			return err
		}
		return &Error{Kind: ErrShort, Status: resp.StatusCode, Message: fmt.Sprintf("the Hub could not go on with %s after a break", what), Next: networkNext}
	default:
		if resp.StatusCode < 500 && resp.StatusCode != http.StatusTooManyRequests && resp.Request.URL.Host != d.host {
			// The storage that the Hub sent us to. Its address is signed and good for a while: a new one is asked for.
			return &Error{Kind: ErrServer, Status: resp.StatusCode, Message: fmt.Sprintf("the Hub's storage at %s answered %d for %s", resp.Request.URL.Host, resp.StatusCode, what)}
		}
		return refused(resp, d.repo, what, hadToken, time.Now())
	}
	if t := resp.Header.Get("ETag"); t != "" && !strings.HasPrefix(t, "W/") { // a weak one cannot stand in If-Range
		d.etag = t
	}
	return nil
}

// contentRange reads "bytes 5-9/10"; total is -1 for "*".
func contentRange(v string) (from, total int64, ok bool) {
	rest, ok := strings.CutPrefix(v, "bytes ")
	if !ok {
		return 0, 0, false
	}
	span, size, ok := strings.Cut(rest, "/")
	if !ok {
		return 0, 0, false
	}
	first, _, ok := strings.Cut(span, "-")
	if !ok {
		return 0, 0, false
	}
	from, err := strconv.ParseInt(first, 10, 64)
	if err != nil {
		return 0, 0, false
	}
	if size == "*" {
		return from, -1, true
	}
	total, err = strconv.ParseInt(size, 10, 64)
	return from, total, err == nil
}

// wrong says in which way the bytes are not the file, or "".
func (d *download) wrong() string {
	if d.done != d.file.Bytes {
		return fmt.Sprintf("it has %d bytes and should have %d", d.done, d.file.Bytes)
	}
	if want := d.file.SHA256; want != "" {
		if got := hex.EncodeToString(d.sum.Sum(nil)); got != want {
			return fmt.Sprintf("its SHA-256 is %s and should be %s", got, want)
		}
		return ""
	}
	if want := d.file.GitOID; len(want) == 40 {
		if got := hex.EncodeToString(d.git.Sum(nil)); got != want {
			return fmt.Sprintf("its git hash is %s and should be %s", got, want)
		}
	}
	return ""
}

// finish checks the whole file and puts it in its place.
func (d *download) finish() (Got, error) {
	if why := d.wrong(); why != "" {
		return Got{}, &Error{Kind: ErrChecksum, Message: fmt.Sprintf("%s of %s did not arrive as it is: %s", d.file.Path, d.repo, why), Next: "it is tried again from the start; when it happens again, look for a faulty proxy or disk"}
	}
	if err := d.f.Sync(); err != nil {
		return Got{}, d.local("sync", err)
	}
	if err := d.f.Chmod(0o644); err != nil {
		return Got{}, d.local("set the mode of", err)
	}
	if err := d.f.Close(); err != nil {
		return Got{}, d.local("close", err)
	}
	d.f = nil
	if err := os.Rename(d.partial(), d.dst); err != nil {
		return Got{}, d.local("rename", err)
	}
	if dir, err := os.Open(filepath.Dir(d.dst)); err == nil {
		dir.Sync() // so that the name outlives a power cut; the bytes are safe without
		dir.Close()
	}
	d.tell(true)
	return Got{SHA256: hex.EncodeToString(d.sum.Sum(nil)), Bytes: d.done}, nil
}

func (d *download) tell(last bool) {
	if d.progress == nil {
		return
	}
	if now := time.Now(); last || now.Sub(d.told) >= progressEvery {
		d.told = now
		d.progress(d.done)
	}
}

// local gives a failure of this machine's files its kind.
func (d *download) local(did string, err error) error {
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		left := d.file.Bytes - d.done
		return &Error{Kind: ErrDiskFull, Message: fmt.Sprintf("the disk is full: %s needs %d more bytes", d.file.Path, left), Next: "free space there; the download then goes on where it stopped", cause: err}
	}
	return &Error{Kind: ErrLocal, Message: fmt.Sprintf("%s %s: %v", did, d.partial(), err), cause: err}
}

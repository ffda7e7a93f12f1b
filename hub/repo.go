package hub

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	gopath "path"
	"strings"
	"time"
)

// Repo is a repository at one commit.
type Repo struct {
	ID      string // as the Hub spells it now; a renamed repository answers under its old name
	Commit  string // 40 hex digits: what Files are of, and what to give Download
	Private bool
	Gated   string // "" when its files are free; else "auto" or "manual". Metadata says nothing about this token's access: CheckAccess does
	License string // "" when not said
	Files   []File // every file, sorted as the Hub does
}

// File is one file of a repository.
type File struct {
	Path   string // relative, with forward slashes
	Bytes  int64
	SHA256 string // lower-case hex, of files in large storage; else empty
	GitOID string // SHA-1 of git's blob, for the other files
}

// mostPages bounds a listing: at a thousand files a page no model is near it.
const mostPages = 200

// Resolve finds a repository's commit and its files at a revision: a branch, a tag or a commit; empty is main.
func (c *Client) Resolve(ctx context.Context, repo, revision string) (Repo, error) {
	base, err := c.base()
	if err != nil {
		return Repo{}, err
	}
	if !repoName.MatchString(repo) || strings.Contains(repo, "..") {
		return Repo{}, &Error{Kind: ErrSettings, Message: fmt.Sprintf("%q is not a repository's name", clip(repo)), Next: "write it as org/name"}
	}
	if revision == "" {
		revision = "main"
	}
	var info struct {
		ID       string          `json:"id"`
		SHA      string          `json:"sha"`
		Private  bool            `json:"private"`
		Gated    json.RawMessage `json:"gated"`
		Disabled bool            `json:"disabled"`
		CardData struct {
			License json.RawMessage `json:"license"`
		} `json:"cardData"`
		Tags []string `json:"tags"`
	}
	segments := append([]string{"api", "models"}, strings.Split(repo, "/")...)
	if _, err := c.getJSON(ctx, path(base, append(segments, "revision", revision)...), repo, "repository "+repo, &info); err != nil {
		return Repo{}, err
	}
	if !fullCommit.MatchString(info.SHA) {
		return Repo{}, &Error{Kind: ErrNotHub, Message: "the answer for " + repo + " names no commit, so it is not from the Hub", Next: "check APP_HF_BASE_URL"}
	}
	if info.Disabled {
		return Repo{}, &Error{Kind: ErrForbidden, Message: "the Hub has disabled " + repo, Next: "choose another repository"}
	}
	r := Repo{ID: info.ID, Commit: info.SHA, Private: info.Private, Gated: gatedText(info.Gated), License: license(info.CardData.License, info.Tags)}
	if r.ID == "" {
		r.ID = repo
	}
	r.Files, err = c.tree(ctx, base, segments, repo, r.Commit)
	return r, err
}

// gatedText reads false, "auto" or "manual".
func gatedText(raw json.RawMessage) string {
	var s string
	if json.Unmarshal(raw, &s) == nil {
		return s
	}
	var b bool
	if json.Unmarshal(raw, &b) == nil && b {
		return "auto"
	}
	return ""
}

// license reads the card's field, a text or a list, else the tag.
func license(raw json.RawMessage, tags []string) string {
	var one string
	var many []string
	switch {
	case json.Unmarshal(raw, &one) == nil && one != "":
		return one
	case json.Unmarshal(raw, &many) == nil && len(many) > 0:
		return strings.Join(many, ", ")
	}
	for _, t := range tags {
		if l, ok := strings.CutPrefix(t, "license:"); ok {
			return l
		}
	}
	return ""
}

// tree lists the files of a commit, page by page.
func (c *Client) tree(ctx context.Context, base *url.URL, segments []string, repo, commit string) ([]File, error) {
	next := path(base, append(segments, "tree", commit)...) + "?recursive=true"
	var files []File
	for page := 0; next != ""; page++ {
		if page == mostPages {
			return nil, &Error{Kind: ErrTooLarge, Message: repo + " has more files than a model can have", Next: "choose another repository"}
		}
		var entries []struct {
			Type string `json:"type"`
			Path string `json:"path"`
			Size int64  `json:"size"`
			OID  string `json:"oid"`
			LFS  *struct {
				OID  string `json:"oid"`
				Size int64  `json:"size"`
			} `json:"lfs"`
		}
		header, err := c.getJSON(ctx, next, repo, "file list of "+repo, &entries)
		if err != nil {
			return nil, err
		}
		for _, e := range entries {
			if e.Type != "file" {
				continue
			}
			if !safePath(e.Path) || e.Size < 0 {
				return nil, &Error{Kind: ErrNotHub, Message: fmt.Sprintf("the file list of %s has an entry that cannot be: %q", repo, clip(e.Path)), Next: "do not use this repository or mirror"}
			}
			f := File{Path: e.Path, Bytes: e.Size, GitOID: strings.ToLower(e.OID)}
			if e.LFS != nil {
				f.SHA256, f.Bytes, f.GitOID = strings.ToLower(strings.TrimPrefix(e.LFS.OID, "sha256:")), e.LFS.Size, ""
			}
			files = append(files, f)
		}
		if next, err = nextPage(base, header); err != nil {
			return nil, err
		}
	}
	return files, nil
}

// safePath refuses what would leave the directory that the file is written to.
func safePath(p string) bool {
	return p != "" && len(p) <= 1024 && !strings.ContainsAny(p, "\x00\\") && !gopath.IsAbs(p) && gopath.Clean(p) == p && p != ".." && !strings.HasPrefix(p, "../")
}

// nextPage reads the Link header's rel="next". Its host is the Hub's whatever it says: a mirror passes the Hub's own
// address on, and the token is for the mirror.
func nextPage(base *url.URL, h http.Header) (string, error) {
	for link := range strings.SplitSeq(h.Get("Link"), ",") {
		target, params, ok := strings.Cut(link, ">")
		if !ok || !strings.Contains(params, `rel="next"`) {
			continue
		}
		_, target, _ = strings.Cut(target, "<")
		u, err := url.Parse(target)
		if err != nil {
			return "", &Error{Kind: ErrNotHub, Message: "the file list's next page has no usable address", Next: "check APP_HF_BASE_URL"}
		}
		same := u.Host == "" || u.Host == base.Host
		prefix := strings.TrimRight(base.Path, "/")
		if !same && prefix != "" && !strings.HasPrefix(u.Path, prefix+"/") {
			u.Path, u.RawPath = prefix+u.Path, ""
		}
		u.Scheme, u.Host, u.User = base.Scheme, base.Host, base.User
		return u.String(), nil
	}
	return "", nil
}

// CheckAccess asks whether this client may read the repository's files. Metadata of a gated repository is open, so only
// this tells.
func (c *Client) CheckAccess(ctx context.Context, repo string) error {
	base, err := c.base()
	if err != nil {
		return err
	}
	segments := append([]string{"api", "models"}, strings.Split(repo, "/")...)
	return c.tries(ctx, func() (bool, error) {
		ctx, cancel := context.WithTimeout(ctx, c.timeout())
		defer cancel()
		req, err := c.request(ctx, path(base, append(segments, "auth-check")...))
		if err != nil {
			return false, err
		}
		resp, err := c.do(req, nil)
		if err != nil {
			return false, err
		}
		defer resp.Body.Close()
		if resp.StatusCode == http.StatusOK && !isHTML(resp.Header) {
			return false, nil
		}
		return false, refused(resp, repo, "repository "+repo, req.Header.Get("Authorization") != "", time.Now())
	})
}

func (c *Client) timeout() time.Duration {
	if c.Timeout > 0 {
		return c.Timeout
	}
	return 10 * time.Second
}

// getJSON fetches one metadata answer into v, with the client's timeout, cap and tries.
func (c *Client) getJSON(ctx context.Context, address, repo, what string, v any) (http.Header, error) {
	limit := c.MaxBytes
	if limit <= 0 {
		limit = 16 << 20
	}
	var header http.Header
	err := c.tries(ctx, func() (bool, error) {
		ctx, cancel := context.WithTimeout(ctx, c.timeout())
		defer cancel()
		req, err := c.request(ctx, address)
		if err != nil {
			return false, err
		}
		req.Header.Set("Accept", "application/json")
		resp, err := c.do(req, nil)
		if err != nil {
			return false, err
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return false, refused(resp, repo, what, req.Header.Get("Authorization") != "", time.Now())
		}
		notHub := &Error{Kind: ErrNotHub, Status: resp.StatusCode, Message: "the answer for " + what + " is not from the Hub", Next: "check APP_HF_BASE_URL and HTTPS_PROXY: a page was sent in place of data"}
		if isHTML(resp.Header) {
			return false, notHub
		}
		body, err := io.ReadAll(io.LimitReader(resp.Body, limit+1))
		if err != nil {
			return false, failedToReach(req.URL.Host, err)
		}
		if int64(len(body)) > limit {
			return false, &Error{Kind: ErrTooLarge, Message: fmt.Sprintf("the answer for %s is larger than %d bytes", what, limit), Next: "raise APP_HF_MAX_RESPONSE_BYTES if the repository is really that large"}
		}
		if err := json.Unmarshal(body, v); err != nil {
			var shape *json.UnmarshalTypeError
			if errors.As(err, &shape) {
				notHub.Message = "the answer for " + what + " does not have the Hub's form"
			}
			return false, notHub
		}
		header = resp.Header
		return false, nil
	})
	return header, err
}

package hubstub

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Hub returns the handler of the Hub itself.
func (s *Stub) Hub() http.Handler {
	return s.recorded(false, s.HubFaults.Wrap(http.HandlerFunc(s.serveHub)))
}

// CDN returns the handler of the content network.
func (s *Stub) CDN() http.Handler {
	return s.recorded(true, s.CDNFaults.Wrap(http.HandlerFunc(s.serveCDN)))
}

func (s *Stub) recorded(cdn bool, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.record(r, cdn)
		next.ServeHTTP(w, r)
	})
}

// A refusal is an answer with the Hub's error headers.
type refusal struct {
	status  int
	code    string // X-Error-Code, may be empty
	message string
}

func (s *Stub) serveHub(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		refuse(w, r, &refusal{http.StatusMethodNotAllowed, "", "Method not allowed"})
		return
	}
	budget := "api"
	if strings.Contains(r.URL.Path, "/resolve/") || strings.HasPrefix(r.URL.Path, "/api/resolve-cache/") {
		budget = "resolvers"
	}
	if !s.spend(w, budget) {
		refuse(w, r, &refusal{http.StatusTooManyRequests, "", "We had to rate limit your IP. To continue using our service, create an account or log in."})
		return
	}
	user, no := s.user(r)
	if no == nil {
		// Split before unescaping: a revision such as refs/pr/1 comes as refs%2Fpr%2F1.
		var parts []string
		for p := range strings.SplitSeq(strings.Trim(r.URL.EscapedPath(), "/"), "/") {
			if q, err := url.PathUnescape(p); err == nil {
				p = q
			}
			parts = append(parts, p)
		}
		no = s.route(w, r, parts, user)
	}
	if no != nil {
		refuse(w, r, no)
	}
}

// keywords end a repository's id in a path.
var keywords = []string{"revision", "tree", "refs", "auth-check", "resolve"}

// route finds what is asked for. Ids have one or two parts, so the first keyword or the end decides.
func (s *Stub) route(w http.ResponseWriter, r *http.Request, parts []string, user *User) *refusal {
	notFound := &refusal{http.StatusNotFound, "", "Sorry, we can't find the page you are looking for."}
	switch {
	case slices.Equal(parts, []string{"api", "whoami-v2"}):
		if user == nil {
			return &refusal{http.StatusUnauthorized, "", "Invalid username or password."}
		}
		return answer(w, map[string]any{"type": "user", "name": user.Name, "auth": map[string]any{"type": "access_token"}})
	case len(parts) > 3 && parts[0] == "api" && parts[1] == "resolve-cache":
		return s.serveCached(w, r, parts[2:], user)
	}
	api := len(parts) > 2 && parts[0] == "api" && parts[1] == "models"
	if api {
		parts = parts[2:]
	}
	at := slices.IndexFunc(parts, func(p string) bool { return slices.Contains(keywords, p) })
	if at == 0 || at < 0 && (!api || len(parts) > 2) || at > 2 {
		return notFound
	}
	id, verb, rest := strings.Join(parts, "/"), "", []string(nil)
	if at > 0 {
		id, verb, rest = strings.Join(parts[:at], "/"), parts[at], parts[at+1:]
	}
	repo, no := s.find(w, r, id, user)
	if no != nil || repo == nil {
		return no
	}
	if !api {
		if verb != "resolve" || len(rest) < 2 {
			return notFound
		}
		return s.resolve(w, r, repo, rest[0], strings.Join(rest[1:], "/"), user)
	}
	rev := "main"
	if len(rest) > 0 {
		rev = rest[0]
	}
	if (verb == "revision" || verb == "tree") && !repo.has(rev) {
		return &refusal{http.StatusNotFound, "RevisionNotFound", "Invalid rev id: " + rev}
	}
	switch verb {
	case "", "revision":
		return answer(w, selected(repo.info(r.URL.Query().Get("blobs") == "true"), r.URL.Query()["expand"]))
	case "tree":
		dir := ""
		if len(rest) > 1 {
			dir = strings.Join(rest[1:], "/")
		}
		return s.tree(w, r, repo, dir)
	case "refs":
		return answer(w, map[string]any{
			"branches": []any{map[string]any{"name": "main", "ref": "refs/heads/main", "targetCommit": repo.commit}},
			"tags":     []any{}, "converts": []any{},
		})
	case "auth-check":
		if no := gate(repo, user); no != nil {
			return no
		}
		w.WriteHeader(http.StatusOK)
		return nil
	}
	return notFound
}

// find gives the repository that this user may know of, or sends a client on to its new name (nil, nil).
func (s *Stub) find(w http.ResponseWriter, r *http.Request, id string, user *User) (*repo, *refusal) {
	repo := s.repos[id]
	if repo != nil && repo.MovedTo != "" {
		w.Header().Set("Location", strings.Replace(r.URL.RequestURI(), id, repo.MovedTo, 1))
		w.WriteHeader(http.StatusTemporaryRedirect)
		return nil, nil
	}
	if user != nil && user.NoReadScope {
		return nil, &refusal{http.StatusForbidden, "", "This token does not have the permission to read this repository."}
	}
	if repo == nil || repo.Private && (user == nil || !slices.Contains(user.MayRead, id)) {
		if user == nil { // does not tell whether it exists
			return nil, &refusal{http.StatusUnauthorized, "", "Invalid username or password."}
		}
		return nil, &refusal{http.StatusNotFound, "RepoNotFound", "Repository not found"}
	}
	return repo, nil
}

// gate refuses files of a gated repository to whom it was not opened. Its metadata is open to all.
func gate(repo *repo, user *User) *refusal {
	switch {
	case repo.Gated == "" || user != nil && slices.Contains(user.MayRead, repo.ID):
		return nil
	case user == nil:
		return &refusal{http.StatusUnauthorized, "GatedRepo", "Access to model " + repo.ID +
			" is restricted. You must have access to it and be authenticated to access it. Please log in."}
	}
	return &refusal{http.StatusForbidden, "GatedRepo", "Access to model " + repo.ID +
		" is restricted and you are not in the authorized list. Visit https://huggingface.co/" + repo.ID + " to ask for access."}
}

// resolve answers for one file: small ones by the Hub itself, on a path of its own; large ones by the content network.
func (s *Stub) resolve(w http.ResponseWriter, r *http.Request, repo *repo, rev, path string, user *User) *refusal {
	if no := gate(repo, user); no != nil {
		return no
	}
	if !repo.has(rev) {
		return &refusal{http.StatusNotFound, "RevisionNotFound", "Invalid rev id: " + rev}
	}
	w.Header().Set("X-Repo-Commit", repo.commit)
	f := repo.files[path]
	if f == nil {
		return &refusal{http.StatusNotFound, "EntryNotFound", "Entry not found"}
	}
	w.Header().Set("Accept-Ranges", "bytes")
	w.Header().Set("X-Linked-Size", strconv.FormatInt(f.size, 10))
	if !f.lfs {
		w.Header().Set("X-Linked-Etag", quoted(f.oid))
		w.Header().Set("ETag", quoted(f.oid))
		w.Header().Set("Location", "/api/resolve-cache/models/"+repo.ID+"/"+repo.commit+"/"+(&url.URL{Path: path}).EscapedPath())
		w.WriteHeader(http.StatusTemporaryRedirect)
		return nil
	}
	w.Header().Set("X-Linked-Etag", quoted(f.sha256))
	w.Header().Set("ETag", quoted(f.sha256))
	w.Header().Set("Location", s.link(repo.ID, path, f))
	w.WriteHeader(http.StatusFound)
	return nil
}

// serveCached serves a small file where resolve sends clients. The token comes along, it is the same host.
func (s *Stub) serveCached(w http.ResponseWriter, r *http.Request, parts []string, user *User) *refusal {
	for n := 2; n <= 3 && n < len(parts)-1; n++ { // "models", then an id of one or two parts
		repo := s.repos[strings.Join(parts[1:n], "/")]
		if repo == nil || parts[n] != repo.commit {
			continue
		}
		if no := gate(repo, user); no != nil {
			return no
		}
		if f := repo.files[strings.Join(parts[n+1:], "/")]; f != nil {
			w.Header().Set("ETag", quoted(f.oid))
			w.Header().Set("X-Repo-Commit", repo.commit)
			s.HubFaults.ServeFile(w, r, f.path)
			return nil
		}
	}
	return &refusal{http.StatusNotFound, "EntryNotFound", "Entry not found"}
}

// link makes a signed link to the content network.
func (s *Stub) link(id, path string, f *file) string {
	s.mu.Lock()
	base := s.cdn
	s.mu.Unlock()
	expires := strconv.FormatInt(time.Now().Add(s.opts.LinkLife).UnixMilli(), 10)
	q := url.Values{"Expires": {expires}, "Signature": {signature(f.sha256, expires)}, "Repo": {id}, "File": {path}}
	return base + "/repos/" + f.sha256 + "?" + q.Encode()
}

func signature(object, expires string) string {
	sum := sha256.Sum256([]byte("link " + object + " " + expires))
	return hex.EncodeToString(sum[:16])
}

// serveCDN serves a large file to whoever has a link that is still good. As with storage services, a second kind of
// authorization is an error.
func (s *Stub) serveCDN(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	object := strings.TrimPrefix(r.URL.Path, "/repos/")
	repo := s.repos[q.Get("Repo")]
	switch until, _ := strconv.ParseInt(q.Get("Expires"), 10, 64); {
	case r.Header.Get("Authorization") != "":
		storageError(w, http.StatusBadRequest, "InvalidArgument", "Only one auth mechanism allowed")
	case repo == nil || repo.files[q.Get("File")] == nil || repo.files[q.Get("File")].sha256 != object,
		q.Get("Signature") != signature(object, q.Get("Expires")):
		storageError(w, http.StatusForbidden, "AccessDenied", "Access denied")
	case time.Now().UnixMilli() > until:
		storageError(w, http.StatusForbidden, "AccessDenied", "Request has expired")
	default:
		w.Header().Set("ETag", quoted(object[:32]+"-12")) // of the storage, not the checksum
		s.CDNFaults.ServeFile(w, r, repo.files[q.Get("File")].path)
	}
}

func storageError(w http.ResponseWriter, status int, code, message string) {
	w.Header().Set("Content-Type", "application/xml")
	w.WriteHeader(status)
	fmt.Fprintf(w, "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Error><Code>%s</Code><Message>%s</Message></Error>", code, message)
}

// tree answers with one page of a file list.
func (s *Stub) tree(w http.ResponseWriter, r *http.Request, repo *repo, dir string) *refusal {
	q := r.URL.Query()
	entries, found := repo.tree(dir, q.Get("recursive") == "true" || q.Get("recursive") == "1")
	if !found {
		return &refusal{http.StatusNotFound, "EntryNotFound", dir + " does not exist on \"main\""}
	}
	size := s.opts.PageSize
	if n, err := strconv.Atoi(q.Get("limit")); err == nil && n > 0 {
		size = min(n, size)
	}
	from, _ := strconv.Atoi(q.Get("cursor"))
	from = min(max(from, 0), len(entries))
	to := min(from+size, len(entries))
	if to < len(entries) {
		q.Set("cursor", strconv.Itoa(to))
		next := url.URL{Scheme: "http", Host: r.Host, Path: r.URL.Path, RawPath: r.URL.RawPath, RawQuery: q.Encode()}
		if r.TLS != nil {
			next.Scheme = "https"
		}
		w.Header().Set("Link", "<"+next.String()+`>; rel="next"`)
	}
	return answer(w, entries[from:to])
}

// user tells who asks; nil without a token.
func (s *Stub) user(r *http.Request) (*User, *refusal) {
	if r.Header.Get("Authorization") == "" {
		return nil, nil
	}
	if token, ok := bearer(r); ok {
		if u, ok := s.opts.Tokens[token]; ok {
			return &u, nil
		}
	}
	return nil, &refusal{http.StatusUnauthorized, "", "Invalid credentials in Authorization header"}
}

func bearer(r *http.Request) (string, bool) {
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	return token, strings.EqualFold(scheme, "Bearer") && token != ""
}

// spend takes one request from a budget and sends the headers about it.
func (s *Stub) spend(w http.ResponseWriter, budget string) bool {
	const quota = 500
	s.mu.Lock()
	defer s.mu.Unlock()
	left, limited := s.limits[budget]
	ok := !limited || left > 0
	if !limited {
		left = quota
	} else if ok {
		left--
		s.limits[budget] = left
	}
	w.Header().Set("RateLimit", fmt.Sprintf("%q;r=%d;t=55", budget, left))
	w.Header().Set("RateLimit-Policy", fmt.Sprintf(`"fixed window";%q;q=%d;w=300`, budget, quota))
	return ok
}

// selected keeps the members asked for by expand, and the id. Without expand all stay.
func selected(info map[string]any, expand []string) map[string]any {
	if len(expand) > 0 {
		maps.DeleteFunc(info, func(k string, _ any) bool { return k != "id" && k != "_id" && !slices.Contains(expand, k) })
	}
	return info
}

func answer(w http.ResponseWriter, v any) *refusal {
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	json.NewEncoder(w).Encode(v)
	return nil
}

func refuse(w http.ResponseWriter, r *http.Request, no *refusal) {
	if no.code != "" {
		w.Header().Set("X-Error-Code", no.code)
	}
	w.Header().Set("X-Error-Message", no.message)
	if strings.HasPrefix(r.URL.Path, "/api/") {
		w.Header().Set("Content-Type", "application/json; charset=utf-8")
		w.WriteHeader(no.status)
		json.NewEncoder(w).Encode(map[string]string{"error": no.message})
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(no.status)
	io.WriteString(w, no.message)
}

func quoted(s string) string { return `"` + s + `"` }

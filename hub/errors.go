package hub

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/levelrail/levelrail"
)

// Kind is one way in which the Hub does not give what was asked. A caller asks with errors.Is(err, hub.ErrGated).
type Kind string

func (k Kind) Error() string { return "hub: " + string(k) }

// The kinds. C041 is why there are so many: the Hub's 401 alone has four meanings.
const (
	ErrMissing         Kind = "missing"          // no such repository, or none that this token may see
	ErrUnclear         Kind = "unclear"          // 401 without a token: missing, private or gated
	ErrGated           Kind = "gated"            // there, and its files want an accepted licence
	ErrBadToken        Kind = "bad_token"        // the Hub does not know this token
	ErrForbidden       Kind = "forbidden"        // the token is good and may not do this
	ErrRevisionMissing Kind = "revision_missing" // no such branch, tag or commit
	ErrFileMissing     Kind = "file_missing"     // no such file at this commit
	ErrRateLimited     Kind = "rate_limited"     // Error.After says until when
	ErrNotHub          Kind = "not_hub"          // an answer, and not the Hub's: a page, a proxy's, another site's
	ErrTooLarge        Kind = "too_large"        // a listing beyond the cap
	ErrTimeout         Kind = "timeout"          // no answer in time
	ErrUnreachable     Kind = "unreachable"      // no connection, or one that broke
	ErrServer          Kind = "server_error"     // 5xx
	ErrRefused         Kind = "refused"          // another 4xx
	ErrShort           Kind = "short"            // a file that ended too early
	ErrChecksum        Kind = "checksum"         // a file that is not the one that the commit names
	ErrDiskFull        Kind = "disk_full"        // no room on this machine
	ErrLocal           Kind = "local"            // another failure of this machine's files
	ErrSettings        Kind = "settings"         // an address or a name that cannot be
)

// passes tells whether trying again later can help without anybody doing anything.
func (k Kind) passes() bool {
	switch k {
	case ErrRateLimited, ErrTimeout, ErrUnreachable, ErrServer, ErrShort:
		return true
	}
	return false
}

// Error is why the Hub did not give what was asked. It never holds a token or a signed address.
type Error struct {
	Kind    Kind
	Status  int           // the HTTP status, 0 when there was none
	Message string        // one sentence
	Next    string        // what to do; empty when nothing but time helps
	After   time.Duration // when the Hub said to come back, for ErrRateLimited and ErrServer; 0: not said

	cause error
}

// Error is the sentence; the next step stands apart, so that whoever shows both does not show one twice.
func (e *Error) Error() string { return e.Message }

// Unwrap lets errors.Is find the kind and the cause.
func (e *Error) Unwrap() []error {
	if e.cause != nil {
		return []error{e.Kind, e.cause}
	}
	return []error{e.Kind}
}

// Reason is what the condition of a model says that waits for this.
func (e *Error) Reason() levelrail.Reason {
	if e.Kind == ErrDiskFull {
		return levelrail.InsufficientDisk
	}
	return levelrail.DownloadFailed
}

// NextStep is what mends it; empty when nothing but time does.
func (e *Error) NextStep() string { return e.Next }

// refused turns an answer that is no success into an Error. what is "repository org/name" or a file of it.
func refused(resp *http.Response, repo, what string, hadToken bool, now time.Time) *Error {
	body := text(resp)
	code, said := resp.Header.Get("X-Error-Code"), resp.Header.Get("X-Error-Message")
	if said == "" {
		var shaped struct {
			Error string `json:"error"`
		}
		if json.Unmarshal([]byte(body), &shaped) == nil {
			said = shaped.Error
		}
	}
	e := &Error{Status: resp.StatusCode}
	page := "https://huggingface.co/" + repo
	gated := code == "GatedRepo"
	switch {
	case resp.StatusCode == http.StatusTooManyRequests:
		e.Kind, e.After = ErrRateLimited, retryAfter(resp.Header, now)
		e.Message = "the Hub has had too many requests from this address"
		if e.After > 0 {
			e.Message += fmt.Sprintf(" and wants none for %s", e.After.Round(time.Second))
		}
		e.Next = "wait"
		if !hadToken {
			e.Next = "wait, or give a Hub token, which has a larger allowance"
		}
	case resp.StatusCode >= 500:
		e.Kind, e.After = ErrServer, retryAfter(resp.Header, now)
		e.Message = fmt.Sprintf("the Hub answered %d for %s", resp.StatusCode, what)
	case gated && hadToken:
		e.Kind, e.Message, e.Next = ErrGated, repo+" is gated, and the account of this token has not been given access", "accept its licence at "+page+", and wait for the approval if it needs one"
	case gated:
		e.Kind, e.Message, e.Next = ErrGated, repo+" is gated: its files need an accepted licence and a token", "accept its licence at "+page+" and give a token with --hf-token-from-env"
	case resp.StatusCode == http.StatusUnauthorized && hadToken:
		e.Kind, e.Message, e.Next = ErrBadToken, "the Hub does not accept this token", "make a new one at https://huggingface.co/settings/tokens and set it"
	case resp.StatusCode == http.StatusUnauthorized:
		e.Kind, e.Message, e.Next = ErrUnclear, repo+" is missing, private or gated: the Hub does not tell which without a token", "check the name, or give a token with --hf-token-from-env"
	case resp.StatusCode == http.StatusForbidden:
		e.Kind, e.Message, e.Next = ErrForbidden, "this token may not read "+what, "give it the right to read this repository at https://huggingface.co/settings/tokens"
		if !hadToken {
			e.Message, e.Next = "the Hub refuses "+what, "give a token with --hf-token-from-env"
		}
	case resp.StatusCode == http.StatusNotFound && code == "RevisionNotFound":
		e.Kind, e.Message, e.Next = ErrRevisionMissing, repo+" has no such revision", "check the revision at "+page
	case resp.StatusCode == http.StatusNotFound && code == "EntryNotFound":
		e.Kind, e.Message, e.Next = ErrFileMissing, "there is no "+what, "look at the files at "+page+"/tree/main"
	case resp.StatusCode == http.StatusNotFound && (code == "RepoNotFound" || hubShaped(resp, body)):
		e.Kind, e.Message, e.Next = ErrMissing, "the Hub has no repository "+repo, "check the spelling"
		if hadToken {
			e.Message = "the Hub has no repository " + repo + " that this token may see"
		}
	case !hubShaped(resp, body):
		e.Kind, e.Message, e.Next = ErrNotHub, fmt.Sprintf("the answer (status %d) is not from the Hub", resp.StatusCode), "check APP_HF_BASE_URL and HTTPS_PROXY"
	default:
		e.Kind, e.Message = ErrRefused, fmt.Sprintf("the Hub answered %d for %s", resp.StatusCode, what)
		if said != "" {
			e.Message += ": " + clip(said)
		}
	}
	return e
}

// hubShaped tells an error of the Hub from a page of some other server: it has the Hub's headers, or a JSON body.
func hubShaped(resp *http.Response, body string) bool {
	if resp.Header.Get("X-Error-Code") != "" || resp.Header.Get("X-Repo-Commit") != "" {
		return true
	}
	if isHTML(resp.Header) {
		return false
	}
	return json.Valid([]byte(body)) && strings.TrimSpace(body) != ""
}

func isHTML(h http.Header) bool {
	return strings.HasPrefix(strings.ToLower(strings.TrimSpace(h.Get("Content-Type"))), "text/html")
}

// retryAfter reads when to come back: Retry-After in seconds or as a date, or the t of `RateLimit: "api";r=0;t=55`.
func retryAfter(h http.Header, now time.Time) time.Duration {
	if v := strings.TrimSpace(h.Get("Retry-After")); v != "" {
		if n, err := strconv.Atoi(v); err == nil && n >= 0 {
			return time.Duration(min(n, 86400)) * time.Second
		}
		if t, err := http.ParseTime(v); err == nil && t.After(now) {
			return t.Sub(now)
		}
	}
	for part := range strings.SplitSeq(h.Get("RateLimit"), ";") {
		if v, ok := strings.CutPrefix(strings.TrimSpace(part), "t="); ok {
			if n, err := strconv.Atoi(v); err == nil && n >= 0 {
				return time.Duration(min(n, 86400)) * time.Second
			}
		}
	}
	return 0
}

func clip(s string) string {
	s = strings.Join(strings.Fields(strings.ToValidUTF8(s, "?")), " ")
	if len(s) > 200 {
		s = strings.ToValidUTF8(s[:200], "") + "…"
	}
	return s
}

// levelrailMessage is an error's sentence without its next step.
func levelrailMessage(err error) string {
	var e *levelrail.Error
	if errors.As(err, &e) {
		return e.Message
	}
	return err.Error()
}

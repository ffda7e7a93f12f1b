package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/raftstore"
)

// refusal is every answer that is not a success: wire.ErrorBody with its HTTP status.
type refusal struct {
	status int
	Err    levelrail.Error `json:"error"`
}

func (r *refusal) Error() string  { return r.Err.Error() }
func (r *refusal) GetStatus() int { return r.status }

// Schema is the refusal in the OpenAPI document.
func (r *refusal) Schema(reg huma.Registry) *huma.Schema {
	if _, there := reg.Map()["Refusal"]; !there {
		kinds := []any{}
		for _, k := range []levelrail.ErrorKind{levelrail.ErrInvalid, levelrail.ErrUnauthorized, levelrail.ErrForbidden, levelrail.ErrNotFound, levelrail.ErrConflict,
			levelrail.ErrRefused, levelrail.ErrUnavailable, levelrail.ErrTimeout, levelrail.ErrInternal} {
			kinds = append(kinds, string(k))
		}
		reg.Map()["Refusal"] = &huma.Schema{Type: huma.TypeObject, Required: []string{"error"}, AdditionalProperties: false, Properties: map[string]*huma.Schema{
			"error": {Type: huma.TypeObject, Required: []string{"kind", "message", "next"}, AdditionalProperties: false, Properties: map[string]*huma.Schema{
				"kind":    {Type: huma.TypeString, Enum: kinds, Description: "stable, for programs"},
				"message": {Type: huma.TypeString, Description: "one sentence for people"},
				"next":    {Type: huma.TypeString, Description: "what to do next"},
			}},
		}}
	}
	return &huma.Schema{Ref: "#/components/schemas/Refusal"}
}

// withStatus gives an error an HTTP status that its kind does not have.
type withStatus struct {
	status int
	err    *levelrail.Error
}

func (e *withStatus) Error() string { return e.err.Error() }
func (e *withStatus) Unwrap() error { return e.err }

func init() {
	huma.ValidateStrictCasing = true // "Name" is no field of ours
	// huma makes its own refusals (validation, unreadable bodies) through this, and hands on what handlers return.
	huma.NewError = func(status int, message string, errs ...error) huma.StatusError {
		if status == http.StatusInternalServerError && len(errs) == 1 && errs[0] != nil {
			return refuse(errs[0])
		}
		return validation(status, message, errs)
	}
	// Who lost the right to a request while it was under way hears that, and not that it was ended.
	huma.NewErrorWithContext = func(ctx huma.Context, status int, message string, errs ...error) huma.StatusError {
		var why *levelrail.Error
		if len(errs) == 1 && errors.Is(errs[0], context.Canceled) && errors.As(ended(ctx.Context()), &why) {
			return refuse(why)
		}
		return huma.NewError(status, message, errs...)
	}
}

// refuse turns any error into an answer. What has no kind is internal: its text stays in the log.
func refuse(err error) *refusal {
	var given *withStatus
	var e *levelrail.Error
	var notLeader *raftstore.NotLeaderError
	out := &refusal{}
	switch {
	case errors.As(err, &given):
		out.status, out.Err = given.status, *given.err
	case errors.As(err, &e):
		out.Err = *e
	case errors.As(err, &notLeader):
		out.Err = levelrail.Error{Kind: levelrail.ErrUnavailable, Message: notLeader.Error(), Next: "try again in a few seconds"}
	case errors.Is(err, raftstore.ErrClosed):
		out.Err = levelrail.Error{Kind: levelrail.ErrUnavailable, Message: "the server is stopping", Next: "try again in a few seconds"}
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		out.Err = levelrail.Error{Kind: levelrail.ErrTimeout, Message: "the request ended before its outcome was known"}
	default:
		out.Err = levelrail.Error{Kind: levelrail.ErrInternal, Message: "the server could not do it"}
	}
	if out.status == 0 {
		out.status = out.Err.Kind.Status()
	}
	if out.Err.Next == "" {
		out.Err.Next = nextFor(out.Err.Kind)
	}
	return out
}

// nextFor is what to do about an error that does not say it itself.
func nextFor(kind levelrail.ErrorKind) string {
	switch kind {
	case levelrail.ErrInvalid:
		return "compare the request with /api/v1/openapi.json, or with levelrail COMMAND --help"
	case levelrail.ErrUnauthorized:
		return "make a token on the server's host with: levelrail tokens create --name NAME --ability read"
	case levelrail.ErrForbidden:
		return "use a token with that ability, or the socket as root or in the group levelrail"
	case levelrail.ErrNotFound:
		return "look what there is: levelrail models list, levelrail nodes list"
	case levelrail.ErrConflict, levelrail.ErrRefused:
		return "read the present state and repeat the change"
	case levelrail.ErrUnavailable:
		return "try again in a few seconds"
	case levelrail.ErrTimeout:
		return "look whether it was done before trying again"
	}
	return "see the server's log: journalctl -u levelrail-server"
}

// validation is a refusal that huma has found. Values are left out of it: they may be secrets.
func validation(status int, message string, errs []error) *refusal {
	out := &refusal{status: status, Err: levelrail.Error{Kind: levelrail.ErrInvalid, Message: message}}
	switch status {
	case http.StatusUnprocessableEntity:
		out.status = http.StatusBadRequest
	case http.StatusRequestEntityTooLarge:
		out.Err.Message = "the body is too large"
		out.Err.Next = "send less at once"
	case http.StatusUnsupportedMediaType:
		out.Err.Next = "send application/json"
	case http.StatusRequestTimeout:
		out.Err.Kind, out.status = levelrail.ErrUnavailable, http.StatusServiceUnavailable
		out.Err.Message = "the body did not arrive in time"
	case http.StatusInternalServerError:
		out.Err.Kind, out.Err.Message = levelrail.ErrInternal, "the server could not do it"
	}
	var details []string
	for _, err := range errs {
		var d *huma.ErrorDetail
		switch {
		case err == nil:
		case !errors.As(err, &d):
			details = append(details, "the value is not usable")
		case d.Location == "" || d.Location == "body" && strings.Contains(d.Message, "unknown content type"):
			details = append(details, "the body is not application/json")
		default:
			details = append(details, d.Location+": "+plainDetail(d.Message))
		}
		if len(details) == 3 {
			break
		}
	}
	if len(details) > 0 && out.Err.Kind == levelrail.ErrInvalid {
		out.Err.Message = "the request is not valid: " + strings.Join(details, "; ")
	}
	if out.Err.Next == "" {
		out.Err.Next = nextFor(out.Err.Kind)
	}
	return out
}

// plainDetail is a validator's word without the values that it may quote.
func plainDetail(message string) string {
	if message == "unexpected property" {
		return "there is no such field"
	}
	if strings.HasPrefix(message, "json: ") || strings.Contains(message, "parsing time") {
		return "the value is not of the right form"
	}
	return message
}

func write(w http.ResponseWriter, r *refusal) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(r.status)
	json.NewEncoder(w).Encode(r) // a reader who has left needs no answer
}

func notFoundModel(name string) *levelrail.Error {
	return levelrail.Errorf(levelrail.ErrNotFound, "there is no model %q", clip(name)).WithNext("levelrail models list")
}

func clip(s string) string {
	if len(s) > 80 {
		return s[:80] + "…"
	}
	return s
}

// internal marks an error of the server itself and keeps its text for the log.
func (s *Server) internal(what string, err error) error {
	if levelrail.KindOf(err) != levelrail.ErrInternal || isLeaderError(err) {
		return err
	}
	s.o.Log.Error("a request failed", "what", what, "error", err)
	return levelrail.Errorf(levelrail.ErrInternal, "the server could not %s", what)
}

func isLeaderError(err error) bool {
	var n *raftstore.NotLeaderError
	return errors.As(err, &n) || errors.Is(err, raftstore.ErrClosed)
}

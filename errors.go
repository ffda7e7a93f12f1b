package levelrail

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// ErrorKind is the stable kind of an error; each has one HTTP status and one exit code of the CLI.
type ErrorKind string

// The kinds of error.
const (
	ErrInvalid      ErrorKind = "invalid"      // 400, exit 4
	ErrUnauthorized ErrorKind = "unauthorized" // 401, exit 1
	ErrForbidden    ErrorKind = "forbidden"    // 403, exit 4
	ErrNotFound     ErrorKind = "not_found"    // 404, exit 3
	ErrConflict     ErrorKind = "conflict"     // 409, exit 4: there already, or changed meanwhile
	ErrRefused      ErrorKind = "refused"      // 409, exit 4: understood and not done
	ErrUnavailable  ErrorKind = "unavailable"  // 503, exit 5: try again
	ErrTimeout      ErrorKind = "timeout"      // 504, exit 6: outcome unknown
	ErrInternal     ErrorKind = "internal"     // 500, exit 1
)

// Status is the HTTP status of the kind.
func (k ErrorKind) Status() int {
	switch k {
	case ErrInvalid:
		return 400
	case ErrUnauthorized:
		return 401
	case ErrForbidden:
		return 403
	case ErrNotFound:
		return 404
	case ErrConflict, ErrRefused:
		return 409
	case ErrUnavailable:
		return 503
	case ErrTimeout:
		return 504
	}
	return 500
}

// Error is an error for people and programs: a stable kind, one sentence, and the next step where there is one.
type Error struct {
	Kind    ErrorKind `json:"kind"`
	Message string    `json:"message"`
	Next    string    `json:"next,omitempty"`
}

func (e *Error) Error() string {
	if e.Next == "" {
		return e.Message
	}
	return e.Message + " (next: " + e.Next + ")"
}

// Errorf makes an Error without a next step.
func Errorf(kind ErrorKind, format string, args ...any) *Error {
	return &Error{Kind: kind, Message: fmt.Sprintf(format, args...)}
}

// WithNext returns a copy of the error that says what to do next.
func (e *Error) WithNext(format string, args ...any) *Error {
	c := *e
	c.Next = fmt.Sprintf(format, args...)
	return &c
}

// KindOf is the kind of the first Error in err's chain, internal when there is none, empty for nil.
func KindOf(err error) ErrorKind {
	if err == nil {
		return ""
	}
	var e *Error
	if errors.As(err, &e) {
		return e.Kind
	}
	return ErrInternal
}

// Duration is a time span that stands in JSON as whole seconds.
type Duration time.Duration

// MarshalJSON writes whole seconds.
func (d Duration) MarshalJSON() ([]byte, error) {
	return strconv.AppendInt(nil, int64(time.Duration(d)/time.Second), 10), nil
}

// UnmarshalJSON reads whole seconds.
func (d *Duration) UnmarshalJSON(b []byte) error {
	n, err := strconv.ParseInt(string(b), 10, 64)
	if err != nil {
		return fmt.Errorf("a duration is a whole number of seconds, not %s", b)
	}
	*d = Duration(time.Duration(n) * time.Second)
	return nil
}

func quoted(s string) string {
	if len(s) > 80 {
		s = s[:80] + "…"
	}
	return strconv.Quote(s)
}

// padded is n in twenty digits: ids made of it sort by number.
func padded(n uint64) string {
	s := strconv.FormatUint(n, 10)
	return strings.Repeat("0", 20-len(s)) + s
}

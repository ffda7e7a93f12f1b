package command

import (
	"encoding/json"
	"fmt"
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/levelrail/levelrail"
)

// Reader is the read side of the state. Values are as EncodeValue says; they belong to the state and are not kept.
type Reader interface {
	// Get returns the value at an id of a bucket, nil when there is none.
	Get(bucket levelrail.Kind, id string) []byte
	// Each calls fn for each id that begins with prefix, in the order of their bytes, until fn returns false.
	Each(bucket levelrail.Kind, prefix string, fn func(id string, value []byte) bool)
}

// The buckets beside those of levelrail's kinds.
const (
	BucketSettingsHistory levelrail.Kind = "settings_history" // NAME/VERSION, the last settingsKept
	BucketUsageSequence   levelrail.Kind = "usage_sequence"   // by gateway: the last batch that was counted
)

// EncodeValue is how an object lies in the state: {"v":1,"index":N,"object":…} with the index of the command that wrote it.
func EncodeValue(index uint64, object json.RawMessage) []byte {
	out := make([]byte, 0, len(object)+48)
	out = append(out, `{"v":1,"index":`...)
	out = strconv.AppendUint(out, index, 10)
	out = append(out, `,"object":`...)
	return append(append(out, object...), '}')
}

// Corrupt is a state that cannot be read. It is no refusal: another server may read the same bucket well, so whoever meets
// it stops.
type Corrupt struct {
	Bucket levelrail.Kind
	ID     string
	Err    error
}

func (c *Corrupt) Error() string {
	return fmt.Sprintf("the state's %s %q cannot be read: %v", c.Bucket, c.ID, c.Err)
}

func (c *Corrupt) Unwrap() error { return c.Err }

// DecodeValue reads an object from its value, with the index of the command that wrote it.
func DecodeValue[T any](bucket levelrail.Kind, id string, value []byte) (T, uint64, error) {
	var v struct {
		V      int    `json:"v"`
		Index  uint64 `json:"index"`
		Object *T     `json:"object"`
	}
	err := json.Unmarshal(value, &v)
	switch {
	case err != nil:
	case v.V != 1:
		err = fmt.Errorf("its shape is version %d, and this release knows version 1", v.V)
	case v.Object == nil:
		err = fmt.Errorf("it has no object")
	default:
		return *v.Object, v.Index, nil
	}
	var zero T
	return zero, 0, &Corrupt{Bucket: bucket, ID: id, Err: err}
}

// Change is one effect of a command.
type Change struct {
	Bucket levelrail.Kind
	ID     string
	Value  []byte          // as it lies in the state; nil: removed
	Object json.RawMessage // the object within the value
}

// Tx is what one command sees and changes: the state with the command's own changes laid over it. Nothing reaches the
// state before the command has ended well.
type Tx struct {
	state   Reader
	index   uint64
	now     time.Time
	by      By
	cluster string
	over    map[slot]int // position in changes
	changes []Change
}

type slot struct {
	bucket levelrail.Kind
	id     string
}

// NewTx begins a command at a position of the log. The time is the log's: the later of the last command's and its own.
func NewTx(state Reader, index uint64, now time.Time, by By, cluster string) *Tx {
	return &Tx{state: state, index: index, now: now.UTC(), by: by, cluster: cluster, over: map[slot]int{}}
}

// Changes lists the effects in the order in which they were made, one for each object.
func (t *Tx) Changes() []Change { return t.changes }

func (t *Tx) raw(bucket levelrail.Kind, id string) []byte {
	if i, ok := t.over[slot{bucket, id}]; ok {
		return t.changes[i].Value
	}
	return t.state.Get(bucket, id)
}

func (t *Tx) set(bucket levelrail.Kind, id string, value []byte, object json.RawMessage) {
	at := slot{bucket, id}
	change := Change{Bucket: bucket, ID: id, Value: value, Object: object}
	if i, ok := t.over[at]; ok {
		t.changes[i] = change
		return
	}
	t.over[at] = len(t.changes)
	t.changes = append(t.changes, change)
}

func (t *Tx) setObject(bucket levelrail.Kind, id string, object any) {
	text, err := json.Marshal(object)
	if err != nil {
		panic(fmt.Sprintf("%s %q: %v", bucket, id, err))
	}
	t.set(bucket, id, EncodeValue(t.index, text), text)
}

// getAt returns an object and the index of the command that wrote it.
func getAt[T levelrail.Object](t *Tx, id string) (T, uint64, bool) {
	var zero T
	value := t.raw(zero.ObjectKind(), id)
	if value == nil {
		return zero, 0, false
	}
	v, index, err := DecodeValue[T](zero.ObjectKind(), id, value)
	if err != nil {
		panic(err)
	}
	return v, index, true
}

func get[T levelrail.Object](t *Tx, id string) (T, bool) {
	v, _, ok := getAt[T](t, id)
	return v, ok
}

func put(t *Tx, o levelrail.Object) { t.setObject(o.ObjectKind(), o.ObjectID(), o) }

// drop removes an object, and does nothing when there is none.
func drop(t *Tx, kind levelrail.Kind, id string) {
	if t.raw(kind, id) != nil {
		t.set(kind, id, nil, nil)
	}
}

// ids lists the ids of a bucket that begin with prefix, sorted.
func ids(t *Tx, bucket levelrail.Kind, prefix string) []string {
	var out []string
	t.state.Each(bucket, prefix, func(id string, _ []byte) bool {
		if i, ok := t.over[slot{bucket, id}]; !ok || t.changes[i].Value != nil {
			out = append(out, id)
		}
		return true
	})
	for _, c := range t.changes {
		if c.Bucket == bucket && c.Value != nil && strings.HasPrefix(c.ID, prefix) && t.state.Get(bucket, c.ID) == nil {
			out = append(out, c.ID)
		}
	}
	sort.Strings(out)
	return out
}

// list returns the objects whose id begins with prefix, sorted by id.
func list[T levelrail.Object](t *Tx, prefix string) []T {
	var zero T
	var out []T
	for _, id := range ids(t, zero.ObjectKind(), prefix) {
		v, _ := get[T](t, id)
		out = append(out, v)
	}
	return out
}

// stamp is the stamp of an object that is written now: from the old one it keeps who made it and when.
func (t *Tx) stamp(old levelrail.Stamp, there bool) levelrail.Stamp {
	if !there {
		return levelrail.Stamp{CreatedAt: t.now, CreatedBy: t.by.Principal, UpdatedAt: t.now}
	}
	old.UpdatedAt = t.now
	return old
}

// unchanged refuses when somebody has written the object since the proposer read it. 0 does not ask.
func unchanged(kind levelrail.Kind, id string, want, have uint64) error {
	if want == 0 || want == have {
		return nil
	}
	if have == 0 {
		return levelrail.Errorf(levelrail.ErrConflict, "the %s %s is not there any more: it was read at index %d", kind, id, want).WithNext("read it again")
	}
	return levelrail.Errorf(levelrail.ErrConflict, "the %s %s has changed meanwhile: it was read at index %d and is now of index %d", kind, id, want, have).
		WithNext("read it again and repeat the change")
}

func orDefault(o levelrail.Owner) levelrail.Owner {
	if o == (levelrail.Owner{}) {
		return levelrail.DefaultOwner
	}
	return o
}

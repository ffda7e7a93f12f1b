package meter

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/caddymodule/dense"
	"github.com/levelrail/levelrail/client/wire"
)

// TestSumHasNoPointers: the garbage collector passes sums by.
func TestSumHasNoPointers(t *testing.T) {
	for _, of := range []reflect.Type{reflect.TypeFor[sum](), reflect.TypeFor[rowKey]()} {
		if dense.Pointers(of) {
			t.Errorf("a %s has pointers", of)
		}
	}
}

// someRows are rows of all kinds, none twice, in the order of a batch.
func someRows(random *rand.Rand, n int) (rows []row) {
	texts := []string{"", "chat", "org/Model:Q4_K_M", `"quo\ted"`, "<&>", "naïve ✓", "\x00\x1f\x7f", "\xff\xfe", "line separator", strings.Repeat("x", 40)}
	text := func() string { return texts[random.IntN(len(texts))] }
	number := func() int64 { return random.Int64() >> random.IntN(64) }
	seen := map[string]bool{}
	for len(rows) < n {
		r := row{Usage: levelrail.Usage{Hour: noon.Add(time.Duration(random.IntN(3)) * time.Hour), KeyID: fmt.Sprintf("key_%d", random.IntN(n)), Model: text(),
			Counts: levelrail.Counts{Requests: number(), OK: number(), ClientErrors: number(), ServerErrors: number(), Limited: number(), Aborted: number(), WithUsage: number(),
				InputTokens: number(), OutputTokens: number(), ResponseBytes: number(), DurationMS: number(), FirstByteMS: number()},
			Owner: levelrail.Owner{Organisation: text(), Project: text()}}}
		if random.IntN(4) == 0 {
			r.KeyID = "k" + text() // no shorter one sorts behind a longer one
		}
		for range random.IntN(3) {
			r.Tags = append(r.Tags, text())
		}
		if random.IntN(3) > 0 {
			r.Used = r.Hour.Add(time.Duration(random.Int64N(int64(time.Hour))))
			if random.IntN(2) == 0 {
				r.Used = r.Used.Truncate(time.Second)
			}
		}
		if !seen[r.ObjectID()] {
			seen[r.ObjectID()] = true
			rows = append(rows, r)
		}
	}
	slices.SortFunc(rows, func(a, b row) int {
		for _, c := range []int{a.Hour.Compare(b.Hour), strings.Compare(a.KeyID, b.KeyID), strings.Compare(a.Model, b.Model)} {
			if c != 0 {
				return c
			}
		}
		return 0
	})
	return rows
}

// TestEncoding: batches are what encoding/json makes of them, byte for byte; another number is all that changes with it; and
// the file says what was there, read back.
func TestEncoding(t *testing.T) {
	for seed := range uint64(200) {
		random := rand.New(rand.NewPCG(seed, 5))
		rows := someRows(random, 1+random.IntN(60))
		u := &unsent{gateway: "gw_a", sequence: 7, lost: random.Int64N(2)}
		want := wire.UsageBatch{GatewayID: "gw_a", Sequence: 8, Dropped: u.lost}
		for _, i := range random.Perm(len(rows)) {
			if u.opened(rows[i].KeyID).put(rows[i]) {
				t.Fatal("a row was there")
			}
		}
		for _, r := range rows {
			want.Rows = append(want.Rows, r.Usage)
			if !r.Used.IsZero() && !want.LastUsed[r.KeyID].After(r.Used) {
				if want.LastUsed == nil {
					want.LastUsed = map[string]time.Time{}
				}
				want.LastUsed[r.KeyID] = r.Used
			}
		}

		var file bytes.Buffer
		if err := u.write(&file); err != nil {
			t.Fatal(err)
		}
		again, err := read(file.Bytes())
		if err != nil {
			t.Fatalf("%v\n%s", err, &file)
		}
		valid := !strings.Contains(fmt.Sprint(rows), "\xff") // what is no UTF-8 comes back as U+FFFD
		for _, u := range []*unsent{u, again} {
			if u == again && !valid {
				continue
			}
			if u.rows() != int64(len(rows)) || u.gateway != "gw_a" || u.sequence != 7 || u.lost != want.Dropped {
				t.Fatalf("seed %d: %d of %d rows, %+v", seed, u.rows(), len(rows), u)
			}
			u.number(1000)
			text, err := json.Marshal(want)
			if err != nil {
				t.Fatal(err)
			}
			if got := u.batches[0]; len(u.batches) != 1 || u.unnumbered() != 0 || got.sequence != 8 || got.rows != len(rows) || string(got.text) != string(text) {
				t.Fatalf("seed %d:\n got %s\nwant %s", seed, got.text, text)
			}
		}

		want.Sequence = 99
		text, _ := json.Marshal(want)
		if got, err := renumbered(u.batches[0].text, 99); err != nil || valid && string(got) != string(text) {
			t.Fatalf("seed %d: %v\n got %s\nwant %s", seed, err, got, text)
		}
		file.Reset()
		if err := u.write(&file); err != nil {
			t.Fatal(err)
		}
		if again, err = read(file.Bytes()); err != nil || len(again.batches) != 1 || again.sequence != 8 || string(again.batches[0].text) != string(u.batches[0].text) || again.rows() != int64(len(rows)) {
			t.Fatalf("seed %d: %v\n%s", seed, err, &file)
		}
	}
}

// TestOldFile: what the release before has left is understood.
func TestOldFile(t *testing.T) {
	u, err := read([]byte(`{"gateway_id":"gw_a","sequence":3,"batches":[{"gateway_id":"gw_a","sequence":3,"rows":[{"hour":"2026-03-01T12:00:00Z","key_id":"key_a","model":"chat","requests":2}]}],
		"open":[{"hour":"2026-03-01T12:00:00Z","key_id":"key_a","model":"chat","requests":5,"owner":{"organisation":"default","project":"default"},"used":"2026-03-01T12:03:00Z"}]}` + "\n"))
	if err != nil || u.rows() != 2 || u.sequence != 3 || len(u.batches) != 1 {
		t.Fatalf("%v %+v", err, u)
	}
	l := u.opened("key_a")
	at := l.place("key_a", "chat", noon.Unix()/3600)
	if s := l.find(&at); s == nil || s.Requests != 5 || !l.row(&at, s).Used.Equal(noon.Add(3*time.Minute)) {
		t.Errorf("the open sum: %+v", s)
	}
}

package route

import (
	"encoding/binary"
	"time"
	"unsafe"
)

// restOfHash is how much of a key's hash stands in its record: two bytes say the path, eight the tag.
const restOfHash = 32 - 2 - 8

// usualRecord is about how long a record is.
const usualRecord = 96

// list is keys in one run of bytes: their tags, which are eight bytes of each hash, then where each record ends, four bytes
// each, then the records. So a look-up reads the tags and one record, and they lie together.
type list struct {
	n    int
	data []byte
}

const perKey = 8 + 4 // bytes before the records

func tag(h *Hash) uint64 { return binary.LittleEndian.Uint64(h[2:10]) }

func (l *list) tag(i int) uint64 { return binary.LittleEndian.Uint64(l.data[8*i:]) }

// end is where the record i ends, counted from where the first begins.
func (l *list) end(i int) int {
	if i < 0 {
		return 0
	}
	return int(binary.LittleEndian.Uint32(l.data[8*l.n+4*i:]))
}

func (l *list) record(i int) []byte {
	first := perKey * l.n
	return l.data[first+l.end(i-1) : first+l.end(i)]
}

// clone is a copy with room for one key more.
func (l *list) clone() list {
	return list{l.n, append(make([]byte, 0, len(l.data)+perKey+usualRecord), l.data...)}
}

func (l *list) add(tag uint64, record []byte) {
	ends, records, all := 8*l.n, perKey*l.n, len(l.data)
	end := l.end(l.n-1) + len(record)
	l.data = append(append(l.data, make([]byte, perKey)...), record...)
	copy(l.data[records+perKey:], l.data[records:all])
	copy(l.data[ends+8:], l.data[ends:records])
	binary.LittleEndian.PutUint64(l.data[ends:], tag)
	l.n++
	binary.LittleEndian.PutUint32(l.data[records+8:], uint32(end))
}

func (l *list) remove(i int) {
	size, first := l.end(i)-l.end(i-1), perKey*l.n
	from := first + l.end(i-1)
	for j := i + 1; j < l.n; j++ {
		at := 8*l.n + 4*j
		binary.LittleEndian.PutUint32(l.data[at-4:], uint32(l.end(j)-size))
	}
	d := append(l.data[:8*i], l.data[8*(i+1):first-4]...)
	d = append(d, l.data[first:from]...)
	l.data = append(d, l.data[from+size:]...)
	l.n--
}

// appendRecord writes a key: the rest of its hash, then numbers and strings with their lengths before them.
func appendRecord(b []byte, k *Key, scope int) []byte {
	b = append(b, k.Hash[32-restOfHash:]...)
	b = binary.AppendUvarint(b, uint64(scope))
	for _, n := range [...]int64{k.Limits.RPM, k.Limits.TPM, k.Limits.TPD, k.Limits.MaxParallel, k.Limits.Weight} {
		b = binary.AppendVarint(b, n)
	}
	if k.Expires.IsZero() {
		b = append(b, 0)
	} else {
		b = append(b, 1)
		b = binary.AppendVarint(b, k.Expires.Unix())
		b = binary.AppendUvarint(b, uint64(k.Expires.Nanosecond()))
	}
	for _, s := range [...]string{k.ID, k.Name, k.Prefix} {
		b = appendString(b, s)
	}
	b = binary.AppendUvarint(b, uint64(len(k.Tags)))
	for _, s := range k.Tags {
		b = appendString(b, s)
	}
	return b
}

func appendString(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

// read copies the leaf's key number i to k; a and b are the first bytes of its hash. The strings share the leaf's bytes.
func (l *keyLeaf) read(i int, a, b byte, k *Key) {
	r := reader{l.record(i)}
	k.Hash[0], k.Hash[1] = a, b
	binary.LittleEndian.PutUint64(k.Hash[2:10], l.tag(i))
	copy(k.Hash[32-restOfHash:], r.b)
	r.b = r.b[restOfHash:]
	s := l.scopes.at(int(r.number()))
	k.Models, k.AllowPaths, k.AllowNames, k.Owner = s.models, s.paths, s.names, s.owner
	k.Limits.RPM, k.Limits.TPM, k.Limits.TPD, k.Limits.MaxParallel, k.Limits.Weight = r.signed(), r.signed(), r.signed(), r.signed(), r.signed()
	k.Expires = time.Time{}
	if r.number() == 1 {
		seconds := r.signed()
		k.Expires = time.Unix(seconds, int64(r.number())).UTC()
	}
	k.ID, k.Name, k.Prefix, k.Tags = r.text(), r.text(), r.text(), nil
	if n := r.number(); n > 0 {
		k.Tags = make([]string, n)
		for i := range k.Tags {
			k.Tags[i] = r.text()
		}
	}
}

// reader takes a record apart. Records are this package's own writing, so nothing in them is broken.
type reader struct{ b []byte }

func (r *reader) number() uint64 {
	n, size := binary.Uvarint(r.b)
	r.b = r.b[size:]
	return n
}

func (r *reader) signed() int64 {
	n, size := binary.Varint(r.b)
	r.b = r.b[size:]
	return n
}

// text is a string of the record's own bytes: nobody writes to them any more once the leaf's edit is done, and a look-up
// would otherwise copy what hardly any request keeps.
func (r *reader) text() string {
	n := r.number()
	if n == 0 {
		return ""
	}
	s := unsafe.String(&r.b[0], n)
	r.b = r.b[n:]
	return s
}

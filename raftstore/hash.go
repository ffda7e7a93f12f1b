package raftstore

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"time"
)

// LogicalHash is a checksum of what the state holds at an index, whatever its files look like: servers at the same index
// have the same one.
func (s *Store) LogicalHash() (sum string, index uint64, err error) {
	err = s.state.view(func(r stateReader) error {
		m, err := readMeta(r)
		if err != nil {
			return err
		}
		h := sha256.New()
		text := func(b []byte) {
			var n [8]byte
			binary.BigEndian.PutUint64(n[:], uint64(len(b)))
			h.Write(n[:])
			h.Write(b)
		}
		text([]byte(m.LogTime.UTC().Format(time.RFC3339Nano)))
		for _, bucket := range buckets {
			text([]byte(bucket))
			r.Each(bucket, "", func(id string, value []byte) bool {
				text([]byte(id))
				text(value)
				return true
			})
		}
		sum, index = hex.EncodeToString(h.Sum(nil)), m.Applied
		return nil
	})
	return sum, index, err
}

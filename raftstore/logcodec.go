package raftstore

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"time"

	"github.com/hashicorp/raft"
)

// An entry in the log file, numbers big-endian: CRC32-C(4) of the index and what follows, shape(1), type(1), term(8),
// time appended(8, Unix nanoseconds, 0 for none), length of the extensions(4), extensions, data.
const (
	entryShape  = 1
	entryHeader = 4 + 1 + 1 + 8 + 8 + 4
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func encodeEntry(l *raft.Log) []byte {
	var at int64
	if !l.AppendedAt.IsZero() {
		at = l.AppendedAt.UnixNano()
	}
	out := make([]byte, 4, entryHeader+len(l.Extensions)+len(l.Data))
	out = append(out, entryShape, byte(l.Type))
	out = binary.BigEndian.AppendUint64(out, l.Term)
	out = binary.BigEndian.AppendUint64(out, uint64(at))
	out = binary.BigEndian.AppendUint32(out, uint32(len(l.Extensions)))
	out = append(append(out, l.Extensions...), l.Data...)
	binary.BigEndian.PutUint32(out, entrySum(l.Index, out))
	return out
}

func entrySum(index uint64, value []byte) uint32 {
	return crc32.Update(crc32.Checksum(binary.BigEndian.AppendUint64(nil, index), castagnoli), castagnoli, value[4:])
}

// decodeEntry reads an entry. It keeps no part of value.
func decodeEntry(index uint64, value []byte, into *raft.Log) error {
	if len(value) < entryHeader {
		return fmt.Errorf("entry %d of the log has %d bytes, fewer than its header", index, len(value))
	}
	if sum, have := binary.BigEndian.Uint32(value), entrySum(index, value); sum != have {
		return fmt.Errorf("entry %d of the log has the checksum %08x and its content has %08x: the disk has changed it", index, sum, have)
	}
	if value[4] != entryShape {
		return fmt.Errorf("entry %d of the log is of shape %d, and this release knows shape %d: install the newer release that wrote it", index, value[4], entryShape)
	}
	ext := int(binary.BigEndian.Uint32(value[22:]))
	rest := value[entryHeader:]
	if ext > len(rest) {
		return fmt.Errorf("entry %d of the log is cut off", index)
	}
	*into = raft.Log{Index: index, Term: binary.BigEndian.Uint64(value[6:]), Type: raft.LogType(value[5])}
	if at := int64(binary.BigEndian.Uint64(value[14:])); at != 0 {
		into.AppendedAt = time.Unix(0, at)
	}
	if ext > 0 {
		into.Extensions = append([]byte(nil), rest[:ext]...)
	}
	into.Data = append([]byte(nil), rest[ext:]...)
	return nil
}

package command

import (
	"encoding/binary"
	"hash/crc32"
)

// Retyped returns a copy of an encoded command under another type's number: what a newer release would write, for tests
// of how an older one meets it.
func Retyped(data []byte, number uint16) []byte {
	out := append([]byte{}, data[:len(data)-4]...)
	binary.BigEndian.PutUint16(out[prefixLen:], number)
	return binary.BigEndian.AppendUint32(out, crc32.Checksum(out, castagnoli))
}

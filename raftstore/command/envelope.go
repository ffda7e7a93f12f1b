package command

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"time"

	"github.com/levelrail/levelrail"
)

// The envelope in the log, all numbers big-endian, every text and block preceded by its length:
//
//	"LRCM"  version(1)  flags(1)  header length(2)
//	header: type(2)  type version(2)  log time(8, Unix nanoseconds)  cluster  proposer  principal kind, id, name
//	        ability  idempotency key  request hash                                      (texts, length 1 byte)
//	payload (JSON, length 4 bytes)
//	CRC32-C of everything before (4)
//
// A later release may append to the header; a reader skips what it does not know by the header's length. Flag 1 marks a
// command that a reader which does not know its type may pass over.
const (
	magic           = "LRCM"
	envelopeVersion = 1
	flagIgnorable   = 1
	prefixLen       = 4 + 1 + 1 + 2
)

// MaxSize is the longest envelope that may be proposed, in bytes: larger entries hold up the log.
const MaxSize = 256 << 10

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Envelope is one command as it lies in the log.
type Envelope struct {
	ClusterID   string
	Proposer    string    // the server's id
	At          time.Time // the proposer's clock, UTC
	By          By        // RequestHash is set
	Number      uint16    // the command's type
	TypeVersion uint16
	Ignorable   bool    // may be passed over by a release that does not know the type
	Command     Command // nil only when Ignorable and not known
}

// Encode writes the envelope of a command. The error is *levelrail.Error: invalid for a command that is too long.
func Encode(e Envelope) ([]byte, error) {
	k, ok := byName[e.Command.Kind()]
	if !ok {
		return nil, levelrail.Errorf(levelrail.ErrInternal, "the command %s is not in the table of commands", e.Command.Kind())
	}
	payload, err := json.Marshal(e.Command)
	if err != nil {
		return nil, levelrail.Errorf(levelrail.ErrInternal, "write the command %s: %v", k.name, err)
	}
	hash := e.By.RequestHash
	if hash == "" {
		sum := sha256.New()
		fmt.Fprintf(sum, "%s\n", k.name)
		sum.Write(payload)
		hash = hex.EncodeToString(sum.Sum(nil))
	}

	header := binary.BigEndian.AppendUint16(nil, k.number)
	header = binary.BigEndian.AppendUint16(header, k.version)
	header = binary.BigEndian.AppendUint64(header, uint64(e.At.UnixNano()))
	for _, text := range []string{e.ClusterID, e.Proposer, e.By.Principal.Kind, e.By.Principal.ID, e.By.Principal.Name, string(e.By.Ability), e.By.IdempotencyKey, hash} {
		if len(text) > math.MaxUint8 {
			return nil, levelrail.Errorf(levelrail.ErrInvalid, "a name, idempotency key or id of the command has %d bytes, and 255 are the most", len(text))
		}
		header = append(append(header, byte(len(text))), text...)
	}

	out := make([]byte, 0, prefixLen+len(header)+4+len(payload)+4)
	out = append(out, magic...)
	out = append(out, envelopeVersion, 0)
	out = binary.BigEndian.AppendUint16(out, uint16(len(header)))
	out = append(out, header...)
	out = binary.BigEndian.AppendUint32(out, uint32(len(payload)))
	out = append(out, payload...)
	out = binary.BigEndian.AppendUint32(out, crc32.Checksum(out, castagnoli))
	if len(out) > MaxSize {
		return nil, levelrail.Errorf(levelrail.ErrInvalid, "the command %s has %d bytes, and %d are the most", k.name, len(out), MaxSize).
			WithNext("send it in smaller parts")
	}
	return out, nil
}

var errEnvelope = errors.New("this is no command of Levelrail")

// Open reads an envelope. A type that this release does not know gives *UnknownError, unless the envelope says that it
// may be passed over: then Command is nil.
func Open(data []byte) (Envelope, error) {
	var e Envelope
	if len(data) < prefixLen+4+4 || string(data[:4]) != magic {
		return e, errEnvelope
	}
	body, sum := data[:len(data)-4], binary.BigEndian.Uint32(data[len(data)-4:])
	if have := crc32.Checksum(body, castagnoli); have != sum {
		return e, fmt.Errorf("the command's checksum is %08x and its content has %08x: it was changed after it was written", sum, have)
	}
	if v := data[4]; v != envelopeVersion {
		return e, fmt.Errorf("the command's envelope is of version %d, and this release knows version %d: install the newer release that wrote it", v, envelopeVersion)
	}
	e.Ignorable = data[5]&flagIgnorable != 0
	headerLen := int(binary.BigEndian.Uint16(data[6:]))
	rest := body[prefixLen:]
	if len(rest) < headerLen+4 || headerLen < 12 {
		return e, errEnvelope
	}
	header, rest := rest[:headerLen], rest[headerLen:]
	e.Number, e.TypeVersion = binary.BigEndian.Uint16(header), binary.BigEndian.Uint16(header[2:])
	e.At = time.Unix(0, int64(binary.BigEndian.Uint64(header[4:]))).UTC()
	header = header[12:]
	for _, into := range []*string{&e.ClusterID, &e.Proposer, &e.By.Principal.Kind, &e.By.Principal.ID, &e.By.Principal.Name, (*string)(&e.By.Ability), &e.By.IdempotencyKey, &e.By.RequestHash} {
		if len(header) < 1 || len(header) < 1+int(header[0]) {
			return e, errEnvelope
		}
		*into, header = string(header[1:1+int(header[0])]), header[1+int(header[0]):]
	}
	if n := binary.BigEndian.Uint32(rest); int64(n) != int64(len(rest)-4) {
		return e, errEnvelope
	}
	k, known := byNumber[e.Number]
	if !known || e.TypeVersion > k.version {
		if e.Ignorable {
			return e, nil
		}
		return e, &UnknownError{Number: e.Number, Version: e.TypeVersion, Proposer: e.Proposer}
	}
	c, err := k.decode(rest[4:])
	if err != nil {
		return e, fmt.Errorf("read the command %s: %w", k.name, err)
	}
	e.Command = c
	return e, nil
}

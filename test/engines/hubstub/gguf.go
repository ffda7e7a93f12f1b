package hubstub

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
)

var errNotGGUF = errors.New("not a GGUF file")

// readGGUF gives what the Hub shows of a GGUF file: number of parameters, architecture, context length, chat template.
func readGGUF(path string) (map[string]any, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	r := &ggufReader{r: bufio.NewReaderSize(f, 1<<16)}
	if string(r.bytes(4)) != "GGUF" || r.err != nil {
		return nil, errNotGGUF
	}
	if version := r.u32(); version < 2 || version > 3 {
		return nil, fmt.Errorf("GGUF version %d", version)
	}
	tensors, pairs := r.u64(), r.u64()
	meta := map[string]any{}
	for i := uint64(0); i < pairs && r.err == nil; i++ {
		key := r.string()
		if v := r.value(r.u32()); v != nil {
			meta[key] = v
		}
	}
	var total uint64
	for i := uint64(0); i < tensors && r.err == nil; i++ {
		r.string()
		elements := uint64(1)
		for d := r.u32(); d > 0 && r.err == nil; d-- {
			elements *= r.u64()
		}
		r.u32() // type
		r.u64() // offset
		total += elements
	}
	if r.err != nil {
		return nil, fmt.Errorf("read GGUF header: %w", r.err)
	}
	arch, _ := meta["general.architecture"].(string)
	out := map[string]any{"total": total, "architecture": arch}
	if n := meta[arch+".context_length"]; n != nil {
		out["context_length"] = n
	}
	if t := meta["tokenizer.chat_template"]; t != nil {
		out["chat_template"] = t
	}
	return out, nil
}

// ggufReader reads little-endian values and remembers the first error.
type ggufReader struct {
	r   io.Reader
	err error
}

func (g *ggufReader) bytes(n uint64) []byte {
	if g.err != nil || n > 1<<26 {
		if g.err == nil {
			g.err = fmt.Errorf("a value of %d bytes", n)
		}
		return make([]byte, 8)
	}
	b := make([]byte, n)
	_, g.err = io.ReadFull(g.r, b)
	return b
}

func (g *ggufReader) u32() uint32    { return binary.LittleEndian.Uint32(g.bytes(4)) }
func (g *ggufReader) u64() uint64    { return binary.LittleEndian.Uint64(g.bytes(8)) }
func (g *ggufReader) string() string { return string(g.bytes(g.u64())) }

// scalarSizes are the sizes of GGUF's fixed types by number; 8 is a string, 9 an array.
var scalarSizes = map[uint32]uint64{0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}

// value reads one value. Strings and unsigned integers are returned, all else is passed over.
func (g *ggufReader) value(kind uint32) any {
	switch kind {
	case 4:
		return g.u32()
	case 10:
		return g.u64()
	case 8:
		return g.string()
	case 9:
		kind, n := g.u32(), g.u64()
		for i := uint64(0); i < n && g.err == nil; i++ {
			g.value(kind)
		}
	default:
		size, ok := scalarSizes[kind]
		if !ok && g.err == nil {
			g.err = fmt.Errorf("a value of unknown type %d", kind)
		}
		g.bytes(size)
	}
	return nil
}

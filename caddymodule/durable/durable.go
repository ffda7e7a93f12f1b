// Package durable writes the files of the gateway's state directory.
//
// It promises that a crash at any moment leaves either the old file or the new one, whole and on disk, and that only the
// gateway's user can read them. What is in the files is the business of whoever keeps something: packages link, meter and
// limit/keep.
package durable

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
)

// unfinished follows a file's name while it is written.
const unfinished = ".new"

// Replace writes the file name in dir with what fill writes, and returns once it is on disk. The directory is made if it is
// not there. After an error the old file is as it was.
func Replace(dir, name string, fill func(io.Writer) error) (err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, name+unfinished+"*") // mode 0600
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			f.Close()
			os.Remove(f.Name())
		}
	}()
	buf := bufio.NewWriterSize(f, 64<<10)
	if err := fill(buf); err != nil {
		return err
	}
	if err := buf.Flush(); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), filepath.Join(dir, name)); err != nil {
		return err
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

// Sweep removes what crashes in the middle of a Replace have left of that file. Without a directory there is nothing.
func Sweep(dir, name string) error {
	if dir == "" {
		return nil
	}
	left, err := filepath.Glob(filepath.Join(dir, name+unfinished+"*"))
	for _, path := range left {
		err = errors.Join(err, os.Remove(path))
	}
	return err
}

// AppendText appends a text as JSON. What needs no care, as ids and names never do, is copied.
func AppendText[text []byte | string](b []byte, s text) []byte {
	for i := range len(s) {
		switch c := s[i]; {
		case c < ' ', c > '~', c == '"', c == '\\', c == '<', c == '>', c == '&':
			quoted, _ := json.Marshal(string(s)) // of a string it cannot fail
			return append(b, quoted...)
		}
	}
	return append(append(append(b, '"'), s...), '"')
}

// Command probe is what an attacker runs inside a unit, and what it is tried on: sockets that anybody may use, planted all
// over a host.
//
//	probe sockets        connect to every socket that can be seen, by file and by abstract name; print those that answer
//	probe plant PATH…    listen at each path with mode 0666 (@NAME: an abstract name), until it is ended
package main

import (
	"bufio"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

func main() {
	switch {
	case len(os.Args) == 2 && os.Args[1] == "sockets":
		walk()
	case len(os.Args) > 2 && os.Args[1] == "plant":
		plant(os.Args[2:])
	default:
		fmt.Fprintln(os.Stderr, "usage: probe sockets | probe plant PATH…")
		os.Exit(2)
	}
}

// kinds of sockets, all of which may stand behind a name.
var kinds = map[string]int{"stream": unix.SOCK_STREAM, "datagram": unix.SOCK_DGRAM, "seqpacket": unix.SOCK_SEQPACKET}

// walk prints "answers KIND NAME" for each socket that takes a connection, and how many it tried.
func walk() {
	tried := 0
	try := func(name string) {
		tried++
		for kind, number := range kinds {
			fd, err := unix.Socket(unix.AF_UNIX, number|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
			if err != nil {
				continue
			}
			if err := unix.Connect(fd, &unix.SockaddrUnix{Name: name}); err == nil || err == unix.EAGAIN || err == unix.EINPROGRESS {
				fmt.Println("answers", kind, name)
			}
			unix.Close(fd)
		}
	}
	filepath.WalkDir("/", func(path string, e fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return nil // not to be seen, so not to be reached
		case path == "/proc" || path == "/sys":
			return fs.SkipDir
		case e.Type()&fs.ModeSocket != 0:
			try(path)
		}
		return nil
	})
	if f, err := os.Open("/proc/net/unix"); err == nil {
		for s := bufio.NewScanner(f); s.Scan(); {
			// Num RefCount Protocol Flags Type St Inode Path
			if fields := strings.Fields(s.Text()); len(fields) > 7 {
				if name := fields[7]; strings.HasPrefix(name, "@") {
					try(name)
				} else if _, err := os.Lstat(name); err == nil {
					try(name)
				}
			}
		}
	}
	fmt.Println("tried", tried, "as", os.Getuid())
}

func plant(names []string) {
	for _, name := range names {
		if !strings.HasPrefix(name, "@") {
			if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(1)
			}
		}
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err == nil {
			err = unix.Bind(fd, &unix.SockaddrUnix{Name: name})
		}
		if err == nil {
			err = unix.Listen(fd, 128)
		}
		if err == nil && !strings.HasPrefix(name, "@") {
			err = os.Chmod(name, 0o666)
		}
		if err != nil {
			fmt.Fprintf(os.Stderr, "plant %s: %v\n", name, err)
			os.Exit(1)
		}
	}
	fmt.Println("planted", len(names))
	time.Sleep(time.Hour) // the host ends it
}

package handover

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// tellMain makes a process the main one of the service for which this one is a helper, and returns once systemd has taken
// that in. Its watchdog then expects to hear from it as often as the process was told.
func tellMain(pid int, watchdog string) error {
	path := os.Getenv("NOTIFY_SOCKET")
	if path == "" {
		return errors.New("NOTIFY_SOCKET is not set: only systemctl reload can do this")
	}
	words := []string{"MAINPID=" + strconv.Itoa(pid), "WATCHDOG=1"}
	if watchdog != "" {
		words = append(words, "WATCHDOG_USEC="+watchdog)
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	systemd := &unix.SockaddrUnix{Name: path} // one that begins with @ is abstract
	if err := unix.Sendto(fd, []byte(strings.Join(words, "\n")), unix.MSG_NOSIGNAL, systemd); err != nil {
		return fmt.Errorf("write to %s: %w", path, err)
	}
	// systemd closes what comes with BARRIER once it has dealt with all that was sent before. It has that already, so there is
	// no way back from here.
	r, w, err := os.Pipe()
	if err != nil {
		return nil
	}
	defer r.Close()
	err = unix.Sendmsg(fd, []byte("BARRIER=1"), unix.UnixRights(int(w.Fd())), systemd, unix.MSG_NOSIGNAL)
	w.Close()
	if err != nil {
		return nil
	}
	r.SetReadDeadline(time.Now().Add(10 * time.Second))
	r.Read(make([]byte, 1)) // ends with the pipe, or with the time
	return nil
}

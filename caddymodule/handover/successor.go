package handover

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// LeaveSignal tells a gateway that its successor serves. Caddy has a use for most other signals, and a program that does
// not know this one ignores it.
const LeaveSignal = unix.SIGWINCH

// Process is a gateway that takes part in handovers.
type Process struct {
	slot     *Slot
	replaces int // the predecessor; 0: there is none
	notify   string
	ready    *os.File
	start    *os.File
}

// Begin gives this process its slot in a state directory. The environment says whether it replaces another one; what is
// said there about that is for this process only and is taken out.
func Begin(state string) (*Process, error) {
	p := &Process{notify: os.Getenv(envNotify)}
	if text := os.Getenv(envReplaces); text != "" {
		pid, err := strconv.Atoi(text)
		if err != nil || pid < 2 {
			return nil, fmt.Errorf("%s=%q is not a process", envReplaces, text)
		}
		unix.CloseOnExec(readyFD)
		unix.CloseOnExec(goFD)
		p.replaces, p.ready, p.start = pid, os.NewFile(readyFD, "ready"), os.NewFile(goFD, "go")
	}
	os.Unsetenv(envReplaces)
	os.Unsetenv(envNotify)
	slot, err := take(state)
	if err != nil {
		return nil, err
	}
	p.slot = slot
	if err := slot.note(""); err != nil {
		return nil, fmt.Errorf("note that the slot is taken: %w", err)
	}
	if p.replaces == 0 {
		if err := slot.lead(); err != nil {
			return nil, fmt.Errorf("note the main slot: %w", err)
		}
	}
	own.Lock()
	defer own.Unlock()
	own.slot = slot
	if name, ok := slotOf(state, p.replaces); ok {
		own.replaces = &name
	}
	return p, nil
}

// Replaces tells whether there is a predecessor to take over from.
func (p *Process) Replaces() bool { return p.replaces != 0 }

// Stopping says that this process was told to stop, so that those that leave are not in a hurry.
func (p *Process) Stopping() error { return p.slot.note(stopping) }

// Replaceable says that this process listens to LeaveSignal.
func (p *Process) Replaceable() error { return p.slot.answersFor(os.Getpid()) }

// errUnwanted is for a successor whose helper has ended before it was made the main process.
var errUnwanted = errors.New("the helper that started this gateway has ended without making it the main process")

// TakeOver is called once this process serves. It returns when it is the service's main process, gets the new connections,
// and the predecessor knows; an error means that it is none of that and has to end.
func (p *Process) TakeOver(log *slog.Logger) error {
	defer p.ready.Close()
	defer p.start.Close()
	if _, err := p.ready.Write([]byte{1}); err != nil {
		return fmt.Errorf("tell that this gateway serves: %w", err)
	}
	if _, err := io.ReadFull(p.start, make([]byte, 1)); err != nil {
		return errUnwanted
	}
	if p.notify != "" {
		os.Setenv("NOTIFY_SOCKET", p.notify) // systemd listens to its main process only
	}
	failed := p.slot.lead()
	if err := steer(); err != nil {
		failed = errors.Join(failed, fmt.Errorf("turn new connections to this process: %w", err))
	}
	if err := unix.Kill(p.replaces, LeaveSignal); err != nil && !errors.Is(err, unix.ESRCH) {
		failed = errors.Join(failed, fmt.Errorf("tell process %d to leave: %w", p.replaces, err))
	}
	if failed != nil {
		log.Error("this process has taken over, but not in order", "error", failed)
	} else {
		log.Info("this process has taken over", "from", p.replaces)
	}
	return nil
}

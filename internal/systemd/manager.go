// SPDX-License-Identifier: Apache-2.0

package systemd

import (
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/coreos/go-systemd/v22/activation"
	"github.com/coreos/go-systemd/v22/daemon"
)

// What a service says to its manager. Several may be put into one message, one
// a line.
const (
	Ready     = daemon.SdNotifyReady     // the start or a reload is over
	Reloading = daemon.SdNotifyReloading // a reload has begun; goes with MonotonicTime, ends with Ready
	Stopping  = daemon.SdNotifyStopping  // the end has begun
	Watchdog  = daemon.SdNotifyWatchdog  // the service lives
)

// sendTime bounds how long a manager that does not read can hold anybody up.
const sendTime = time.Second

// Socket is a descriptor from the manager: FileDescriptorName= of its .socket
// unit, which is the unit's name unless given. Several may have the same name.
type Socket struct {
	Name string
	File *os.File // close-on-exec
}

// Manager is the service manager that started this process, or none. Its
// methods are safe for concurrent use.
type Manager struct {
	// Constant.
	Sockets  []Socket      // in the order of the manager; whoever takes them closes them
	Watchdog time.Duration // within which Watchdog must be said; 0: it is not waited for
	address  string        // of the manager's socket; empty: nobody listens

	mu sync.Mutex // held while a message is sent: they arrive in the order of the calls
}

// Open finds the manager in the environment and takes out of that what is meant
// for this process alone: LISTEN_FDS, LISTEN_FDNAMES, LISTEN_PID and
// WATCHDOG_PID. NOTIFY_SOCKET and WATCHDOG_USEC stay for the process that takes
// over in an upgrade, unless they are another process's. Call it once, before
// anything else opens descriptors. An error says what in the environment makes no
// sense; the Manager can be used all the same.
func Open() (*Manager, error) {
	m := &Manager{address: os.Getenv("NOTIFY_SOCKET")}
	for _, f := range activation.Files(true) {
		m.Sockets = append(m.Sockets, Socket{Name: f.Name(), File: f})
	}
	interval, err := daemon.SdWatchdogEnabled(false)
	if err != nil {
		err = fmt.Errorf("the watchdog stays off: %w", err)
	}
	m.Watchdog = interval
	_ = os.Unsetenv("WATCHDOG_PID") // never fails for a name like this
	if interval == 0 {
		_ = os.Unsetenv("WATCHDOG_USEC")
	}
	return m, err
}

// Listens reports whether there is a manager that waits for messages.
func (m *Manager) Listens() bool { return m.address != "" }

// Notify sends lines of NAME=VALUE to the manager, in one message. It returns
// at once where there is none, and after a second at the latest where the
// manager does not read.
func (m *Manager) Notify(lines ...string) error {
	if m.address == "" {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	// A connection for each: a manager that was started anew listens on another
	// socket with the same path.
	c, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: m.address, Net: "unixgram"})
	if err != nil {
		return fmt.Errorf("service manager: %w", err)
	}
	defer func() { _ = c.Close() }() // nothing is buffered
	if err := c.SetWriteDeadline(time.Now().Add(sendTime)); err != nil {
		return fmt.Errorf("service manager: %w", err)
	}
	if _, err := c.Write([]byte(strings.Join(lines, "\n"))); err != nil {
		return fmt.Errorf("service manager: %w", err)
	}
	return nil
}

// MonotonicTime is the line that goes with Reloading: when the reload began.
func MonotonicTime() string { return strings.TrimSuffix(daemon.SdNotifyMonotonicUsec(), "\n") }

// MainPID is the line that says which process the service is from now on.
func MainPID(pid int) string { return fmt.Sprintf("MAINPID=%d", pid) }

// Status is the line that a person sees. What would end the line is replaced.
func Status(text string) string {
	return "STATUS=" + strings.Map(func(r rune) rune {
		if r < ' ' {
			return ' '
		}
		return r
	}, text)
}

// ExtendTimeout is the line that asks for more time for a start or an end: so
// much from now.
func ExtendTimeout(d time.Duration) string {
	return fmt.Sprintf("EXTEND_TIMEOUT_USEC=%d", d.Microseconds())
}

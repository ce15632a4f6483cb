// SPDX-License-Identifier: Apache-2.0

package l4

import (
	"fmt"
	"os"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/internal/clock"
)

// poller has the goroutine of a loop wait for what happens to many descriptors, as
// another one waits for a socket: a blocking epoll_wait of its own would cost more. The
// runtime takes its processor away after 20 us, looks that often whether there is
// another one to be taken, and has to find one again afterwards. All but strike is for
// that goroutine.
type poller struct {
	// Constant.
	ep, bell int      // epoll instance, eventfd
	file     *os.File // ep, as the runtime waits for it
	read     func(func(uintptr) bool) error

	events [256]unix.EpollEvent
	ready  int             // events that the last wait has found
	alarm  balance.Instant // when a wait ends at the latest; 0: never
}

// open makes what is waited for; of is what its descriptor is called. Release it.
func (p *poller) open(of string) error {
	ep, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return fmt.Errorf("open an epoll instance: %w", err)
	}
	if err := unix.SetNonblock(ep, true); err != nil { // else os.File does not ask the runtime's poller
		_ = unix.Close(ep)
		return fmt.Errorf("wait for an epoll instance: %w", err)
	}
	file := os.NewFile(uintptr(ep), of)
	raw, err := file.SyscallConn()
	if err == nil {
		err = file.SetReadDeadline(time.Time{}) // fails where the runtime cannot wait for it
	}
	if err != nil {
		_ = file.Close()
		return fmt.Errorf("wait for an epoll instance: %w", err)
	}
	bell, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		_ = file.Close()
		return fmt.Errorf("open an eventfd: %w", err)
	}
	if err := unix.EpollCtl(ep, unix.EPOLL_CTL_ADD, bell, &unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLET, Fd: -1}); err != nil {
		_ = unix.Close(bell)
		_ = file.Close()
		return fmt.Errorf("wait for an eventfd: %w", err)
	}
	p.ep, p.bell, p.file, p.read = ep, bell, file, raw.Read
	return nil
}

// release closes everything. Nobody may strike any more.
func (p *poller) release() {
	_ = unix.Close(p.bell)
	_ = p.file.Close()
}

// strike ends a wait, or the next one. It may be called from any goroutine.
func (p *poller) strike() {
	one := [8]byte{1}
	_, _ = unix.Write(p.bell, one[:]) // full only when it rings already
}

// struck takes the strikes so far back. It is for an event whose Fd is negative.
func (p *poller) struck() {
	var b [8]byte
	_, _ = unix.Read(p.bell, b[:])
}

// poll asks for events without waiting, and returns how many there are.
func (p *poller) poll() int {
	n, _, errno := unix.RawSyscall6(unix.SYS_EPOLL_PWAIT, uintptr(p.ep), uintptr(unsafe.Pointer(&p.events)), uintptr(len(p.events)), 0, 0, 0)
	if errno != 0 {
		return 0
	}
	return int(n)
}

// wait waits for events, until a time at the latest (0: for ever), and returns how many
// there are. It may return none before that.
func (p *poller) wait(until balance.Instant) int {
	if until != 0 && (p.alarm == 0 || until < p.alarm) {
		p.setAlarm(until)
	}
	p.ready = 0
	if err := p.read(p.look); err != nil { // the alarm
		p.setAlarm(0)
	}
	return p.ready
}

// setAlarm has waits end at a time. One that is too early costs a turn and is not
// worth moving: times of idle sessions move with each byte.
func (p *poller) setAlarm(t balance.Instant) {
	p.alarm = t
	var at time.Time
	if t != 0 {
		at = time.Now().Add((t.Sub(clock.Now()) + time.Millisecond - 1).Truncate(time.Millisecond))
	}
	_ = p.file.SetReadDeadline(at) // open has seen that it works
}

// look asks for events, and reports that there are some.
func (p *poller) look(uintptr) bool {
	p.ready = p.poll()
	return p.ready > 0
}

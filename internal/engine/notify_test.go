// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"log/slog"
	"net"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/weirlb/weir/internal/config"
	"github.com/weirlb/weir/internal/weirtest"
)

// supervised makes an engine whose service manager is a channel.
func supervised(t *testing.T, text string, opt Options) (*Engine, chan string, *weirtest.Log) {
	t.Helper()
	said, log := make(chan string, 64), &weirtest.Log{}
	opt.Version, opt.Logger = "test", slog.New(slog.NewTextHandler(log, nil))
	opt.Notify = func(state string) { said <- state }
	e, err := New(parse(t, text), opt)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return e, said, log
}

// next returns what is said next, with numbers that differ from run to run as N.
func next(t *testing.T, said <-chan string) string {
	t.Helper()
	select {
	case s := <-said:
		return regexp.MustCompile(`_USEC=\d+`).ReplaceAllString(s, "_USEC=N")
	case <-time.After(limit):
		t.Fatal("nothing was said")
		return ""
	}
}

func saidNext(t *testing.T, said <-chan string, want string) {
	t.Helper()
	if got := next(t, said); got != want {
		t.Errorf("said %q, want %q", got, want)
	}
}

func silent(t *testing.T, said <-chan string) {
	t.Helper()
	select {
	case s := <-said:
		t.Errorf("said %q, where nothing is to be said", s)
	default:
	}
}

const oneRoute = `
admin: {bind: "127.0.0.1:0"}
listeners: {web: {bind: "127.0.0.1:0", routes: [{respond: {body: hello}}]}}
`

// The service manager hears of the start, of each reload whatever came of it,
// and of the end, in that order.
func TestNotifyTellsTheLife(t *testing.T) {
	var broken bool
	load := func() (*config.Plan, error) {
		if broken {
			return nil, os.ErrNotExist
		}
		return parse(t, oneRoute), nil
	}
	e, said, _ := supervised(t, oneRoute, Options{Load: load})
	silent(t, said)
	e.Start()
	saidNext(t, said, "READY=1\nSTATUS=generation 1, 0 connections, 0 of 0 pools ready")

	reload := func(opt ReloadOptions, fine bool) {
		t.Helper()
		if _, err := e.ReloadFile(opt); (err == nil) != fine {
			t.Errorf("reload: %v", err)
		}
	}
	// Listeners keep their sockets, so port 0 is another one each time: the plan stays.
	reload(ReloadOptions{DryRun: true}, true)
	silent(t, said)
	reload(ReloadOptions{}, true)
	saidNext(t, said, "RELOADING=1\nMONOTONIC_USEC=N")
	saidNext(t, said, "READY=1\nSTATUS=generation 2, 0 connections, 0 of 0 pools ready")
	broken = true
	reload(ReloadOptions{}, false)
	saidNext(t, said, "RELOADING=1\nMONOTONIC_USEC=N")
	saidNext(t, said, "READY=1")

	skip := make(chan struct{}, 2)
	skip <- struct{}{}
	skip <- struct{}{}
	if err := e.Shutdown(skip); err != nil {
		t.Error(err)
	}
	saidNext(t, said, "EXTEND_TIMEOUT_USEC=N\nSTOPPING=1\nSTATUS=draining: 0 connections left")
	reload(ReloadOptions{}, false)
	silent(t, said) // a process that ends does not become ready again
}

// A process that handed over is silent: its end is not the service's.
func TestNotifyHandsOver(t *testing.T) {
	e, said, _ := supervised(t, oneRoute, Options{})
	e.Start()
	_ = next(t, said)
	e.notify.handOver(4711)
	saidNext(t, said, "MAINPID=4711\nWATCHDOG=1")
	e.notify.alive("x")
	silent(t, said)
	e.notify.takeBack()
	saidNext(t, said, "MAINPID="+strconv.Itoa(os.Getpid())+"\nWATCHDOG=1")
	e.notify.handOver(4712)
	_ = next(t, said)
	if err := e.Close(); err != nil {
		t.Error(err)
	}
	e.notify.end("the end", endMargin)
	silent(t, said)
}

// The watchdog is fed only while the lock of the engine can be had.
func TestWatchdogNeedsTheLock(t *testing.T) {
	e, said, _ := supervised(t, oneRoute, Options{Watchdog: 40 * time.Millisecond})
	e.Start()
	_ = next(t, said)
	saidNext(t, said, "WATCHDOG=1")
	e.mu.Lock()
	for quiet := false; !quiet; { // one may be on its way
		select {
		case <-said:
		default:
			quiet = true
		}
	}
	select {
	case s := <-said:
		// The tick that was under way when the lock was taken.
		select {
		case s := <-said:
			t.Errorf("said %q while the engine was stuck", s)
		case <-time.After(100 * time.Millisecond):
		}
		_ = s
	case <-time.After(100 * time.Millisecond): // ten ticks
	}
	e.mu.Unlock()
	saidNext(t, said, "WATCHDOG=1")
}

// The watchdog is fed only while clients are accepted.
func TestWatchdogNeedsAccepting(t *testing.T) {
	e, said, log := supervised(t, oneRoute, Options{}) // ticks are the test's
	e.Start()
	_ = next(t, said)
	k, err := e.opt.Sockets.Take("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ln := k.Listener()
	defer ln.Close()
	accept := func() {
		t.Helper()
		c, err := ln.Accept()
		if err != nil {
			t.Fatal(err)
		}
		_ = c.Close()
	}
	const waiting = 3
	for i := range waiting + 1 {
		c, err := net.Dial("tcp", ln.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if i == 0 {
			accept() // serving begins, and nobody calls it again
		}
	}
	stalled, row := false, 0
	weirtest.Eventually(t, "the stuck loop is seen", func() bool {
		for len(said) > 0 {
			<-said
		}
		if stalled = e.sign(stalled); stalled {
			row++
		} else {
			row = 0
		}
		return row == 5 // two looks may come before the loop has run at all
	})
	told := strings.Count(log.String(), "clients wait")
	for len(said) > 0 {
		<-said
	}
	if stalled = e.sign(stalled); !stalled {
		t.Error("still stuck, and not seen")
	}
	silent(t, said)
	if n := strings.Count(log.String(), "clients wait"); n != told || n == 0 {
		t.Errorf("said %d times in the log, and then %d:\n%s", told, n, log)
	}
	for range waiting {
		accept()
	}
	stalled = e.sign(stalled)
	saidNext(t, said, "WATCHDOG=1")
	if stalled {
		t.Error("accepted, and still called stuck")
	}
}

func TestLifeEvery(t *testing.T) {
	for watchdog, want := range map[time.Duration]time.Duration{
		0: statusEvery, time.Microsecond: time.Millisecond, 2 * time.Second: 500 * time.Millisecond, time.Hour: statusEvery,
	} {
		if got := lifeEvery(watchdog); got != want {
			t.Errorf("watchdog %v: every %v, want %v", watchdog, got, want)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weirlb/weir/internal/admin"
	"github.com/weirlb/weir/internal/config"
	"github.com/weirlb/weir/internal/handover"
	"github.com/weirlb/weir/internal/weirtest"
)

const (
	successorRole = "ENGINE_TEST_SUCCESSOR" // what the test binary plays
	successorText = "ENGINE_TEST_CONFIG"
	successorGo   = "ENGINE_TEST_GO" // a file: the successor goes on when it is there
)

// playSuccessor is the process that an upgrade of these tests starts.
func playSuccessor(role string) error {
	if role == "none" {
		return errors.New("this is no weir")
	}
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	p, err := handover.Join("v2")
	if err != nil {
		return err
	}
	if role == "hang" {
		time.Sleep(time.Hour)
	}
	plan, err := config.Parse("test.yaml", []byte(os.Getenv(successorText)), os.LookupEnv)
	if err != nil {
		p.Fail("v2", err)
		return err
	}
	if role == "fail when told" { // it has built, and waits
		_, err := p.Built("v2")
		if err != nil {
			return err
		}
		for _, err = os.Stat(os.Getenv(successorGo)); err != nil; _, err = os.Stat(os.Getenv(successorGo)) {
			time.Sleep(time.Millisecond)
		}
		err = errors.New("it was told to fail")
		p.Fail("v2", err)
		return err
	}
	e, err := New(plan, Options{Version: "v2", Stderr: os.Stderr, Predecessor: p})
	if err != nil {
		p.Fail("v2", err)
		return err
	}
	if err := e.TakeOver(); err != nil {
		return err
	}
	if role == "die" {
		time.Sleep(100 * time.Millisecond)
		os.Exit(3)
	}
	return e.Run(signals)
}

// upgrading is an engine that Run serves and that can hand over.
type upgrading struct {
	*running
	signals chan os.Signal
	ended   chan error // Run's
}

// startUpgrading starts an engine whose successor plays a role with a
// configuration of its own.
func startUpgrading(t *testing.T, text, role, next string, o UpgradeOptions) *upgrading {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	o.Program = handover.Program{Path: self, Args: []string{self}, Env: append(os.Environ(),
		successorRole+"="+role, successorText+"=log: {access: off}\n"+next, successorGo+"="+filepath.Join(t.TempDir(), "go"))}
	u := &upgrading{running: &running{log: &logBuffer{}}, signals: make(chan os.Signal, 4), ended: make(chan error, 1)}
	u.Engine, err = New(parse(t, text), Options{
		Version: "v1", Logger: slog.New(slog.NewTextHandler(u.log, &slog.HandlerOptions{Level: slog.LevelDebug})), Upgrade: &o,
	})
	if err != nil {
		t.Fatal(err)
	}
	b := u.Bound()
	u.running.front = "http://" + b.Listeners[0].Addrs[0]
	if u.running.admin, err = admin.NewClient(admin.ClientOptions{Address: b.Admin, Timeout: time.Minute}); err != nil {
		t.Fatal(err)
	}
	u.Start()
	go func() { u.ended <- u.Run(u.signals) }()
	t.Cleanup(func() {
		u.running.admin.Close()
		select {
		case u.signals <- syscall.SIGINT:
		default:
		}
		if err := u.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
		if t.Failed() {
			t.Log(u.log)
		}
	})
	return u
}

// gone waits until the old process has come to its end.
func (u *upgrading) gone(t *testing.T) {
	t.Helper()
	select {
	case err := <-u.ended:
		if err != nil {
			t.Errorf("run: %v", err)
		}
	case <-time.After(3 * limit):
		t.Fatal("the old process goes on")
	}
}

// stopAtEnd ends a successor with the test and waits for it.
func stopAtEnd(t *testing.T, pid int) {
	t.Helper()
	t.Cleanup(func() {
		_ = syscall.Kill(pid, syscall.SIGINT)
		weirtest.Eventually(t, "the successor ends", func() bool { return !lives(pid) })
	})
}

// lives reports whether a process is there and not waiting to be waited for.
func lives(pid int) bool {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	_, state, _ := strings.Cut(string(text), ") ")
	return err == nil && !strings.HasPrefix(state, "Z")
}

// upgradeText is a configuration of one pool; addresses stay over an upgrade.
func upgradeText(t *testing.T, more string, backends ...*server) string {
	t.Helper()
	var urls []string
	for _, b := range backends {
		urls = append(urls, strconv.Quote(b.URL))
	}
	return fmt.Sprintf("admin: {bind: %q}\nstatus: {bind: %q}\nlisteners: {web: {bind: %q, pool: app}}\npools: {app: {backends: [%s]}}\n%s",
		freeAddress(t), freeAddress(t), freeAddress(t), strings.Join(urls, ", "), more)
}

func freeAddress(t *testing.T) string {
	t.Helper()
	return "127.0.0.1:" + weirtest.FreePort(t)
}

// TestUpgrade: the sockets go over, what is in flight ends here, readiness never
// fails, clients that stay connected are sent on, and both know of each other.
func TestUpgrade(t *testing.T) {
	b := backend(t, "one")
	text := upgradeText(t, "", b)
	u := startUpgrading(t, text, "serve", text, UpgradeOptions{Trial: time.Second})
	keep := client(t)
	expect(t, keep, u.front, answer{200, "one", false})
	slow := make(chan answer, 1)
	go func() {
		a, err := get(client(t), u.front+"/slow")
		if err != nil {
			t.Error(err)
		}
		slow <- a
	}()
	<-b.arrived
	if _, err := u.running.admin.Patch(t.Context(), "app", b.id(), admin.Patch{Weight: new(uint32(7))}); err != nil {
		t.Fatal(err)
	}
	ready := client(t) // stays connected to the old process
	status := "http://" + u.Bound().Status
	expect(t, ready, status+"/readyz", answer{200, "ok\n", false})

	up, err := u.running.admin.Upgrade(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	stopAtEnd(t, up.PID)
	if up.PID == os.Getpid() || up.Version != "v2" || up.Previous != (admin.Process{PID: os.Getpid(), Version: "v1"}) {
		t.Errorf("%+v", up)
	}
	for range 20 { // the old and the new connection
		if a, err := get(ready, status+"/readyz"); err != nil || a.status != 200 {
			t.Errorf("readyz: %+v, %v", a, err)
		}
		expect(t, client(t), u.front, answer{200, "one", false})
	}
	if a, err := get(keep, u.front); err != nil || a.status != 200 {
		t.Errorf("kept connection: %+v, %v", a, err)
	}
	s, err := u.running.admin.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if s.PID != up.PID || s.Version != "v2" || !s.Ready || s.Predecessor == nil || s.Predecessor.PID != os.Getpid() {
		t.Errorf("status: %+v", s)
	}
	if own := u.Status(); own.State != "handed_over" || !own.Ready || own.Successor == nil || own.Successor.PID != up.PID {
		t.Errorf("own status: %+v", own)
	}
	if p, err := u.running.admin.Backend(t.Context(), "app", b.id()); err != nil || p.Weight != 7 {
		t.Errorf("the override is gone: %+v, %v", p, err)
	}
	if _, err := u.Patch("app", b.id(), admin.Patch{ResetWeight: true}); !errors.Is(err, admin.ErrUpgrading) {
		t.Errorf("a change where nobody sees it: %v", err)
	}
	if _, err := u.Upgrade(t.Context(), ""); !errors.Is(err, admin.ErrNoUpgrade) {
		t.Errorf("two successors: %v", err)
	}
	weirtest.Eventually(t, "the successor hears of the connection", func() bool {
		s, err := u.running.admin.Status(t.Context())
		return err == nil && s.Predecessor != nil && s.Predecessor.Connections == 1
	})
	close(b.release)
	if a := <-slow; a.status != 200 || a.body != "one" || !a.closes {
		t.Errorf("what was in flight: %+v", a)
	}
	u.gone(t)
	weirtest.Eventually(t, "the successor is alone", func() bool {
		s, err := u.running.admin.Status(t.Context())
		return err == nil && s.Predecessor == nil
	})
}

func expect(t *testing.T, c *http.Client, url string, want answer) {
	t.Helper()
	if got, err := get(c, url); err != nil || got != want {
		t.Errorf("%s: %+v, %v; want %+v", url, got, err, want)
	}
}

// TestUpgradeRefusedIsTold: an upgrade that is not even begun is among the events, as
// whoever sent the signal has no other answer.
func TestUpgradeRefusedIsTold(t *testing.T) {
	text := upgradeText(t, "", backend(t, "one"))
	u := startUpgrading(t, text, "none", text, UpgradeOptions{})
	missing := filepath.Join(t.TempDir(), "weir")
	if _, err := u.Upgrade(t.Context(), missing); !errors.Is(err, admin.ErrNoUpgrade) {
		t.Errorf("a binary that is not there: %v", err)
	}
	if said := toldOf(u.running, "upgrade"); !strings.Contains(said, missing) || !strings.Contains(said, "no such file") {
		t.Errorf("the events say %q", said)
	}
}

// TestUpgradeFails: whatever the new process does, the old one serves on as
// before, the reason is told, and another upgrade may come.
func TestUpgradeFails(t *testing.T) {
	b := backend(t, "one")
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	for _, c := range []struct {
		name, role, next, outcome, says string
		timeout                         time.Duration
	}{
		{name: "broken configuration", role: "serve", next: "pols: {}", outcome: "failed", says: "did you mean pools"},
		{name: "address in use", role: "serve", next: fmt.Sprintf("listeners: {web: {bind: %q, pool: app}}\npools: {app: {backends: [%q]}}\n", taken.Addr(), b.URL),
			outcome: "failed", says: "address already in use"},
		{name: "hangs", role: "hang", outcome: "timeout", says: "not built within", timeout: 500 * time.Millisecond},
		{name: "not weir", role: "none", outcome: "exited", says: "exit status 2"},
	} {
		t.Run(c.name, func(t *testing.T) {
			u := startUpgrading(t, upgradeText(t, "", b), c.role, c.next, UpgradeOptions{Timeout: c.timeout})
			keep := client(t)
			expect(t, keep, u.front, answer{200, "one", false})
			_, err := u.running.admin.Upgrade(t.Context(), "")
			var p *admin.Problem
			if !errors.As(err, &p) || p.Status != 422 || p.Code != admin.CodeUpgradeFailed || !strings.Contains(p.Detail, c.says) {
				t.Errorf("got %v", err)
			}
			expect(t, keep, u.front, answer{200, "one", false})
			s, err := u.running.admin.Status(t.Context())
			if err != nil || s.PID != os.Getpid() || s.State != "serving" || s.Successor != nil {
				t.Errorf("status: %+v, %v", s, err)
			}
			if _, err := u.running.admin.Patch(t.Context(), "app", b.id(), admin.Patch{Weight: new(uint32(3))}); err != nil {
				t.Errorf("a change afterwards: %v", err)
			}
			if m := scraped(t, u.running); !strings.Contains(m, `weir_upgrades_total{outcome="`+c.outcome+`"} 1`) {
				t.Errorf("no count of %s", c.outcome)
			}
			if !strings.Contains(u.log.String(), "the upgrade failed: this process serves on") {
				t.Error("the log does not say it")
			}
		})
	}
}

func scraped(t *testing.T, r *running) string {
	t.Helper()
	a, err := get(client(t), "http://"+r.Bound().Admin+"/metrics")
	if err != nil {
		t.Fatal(err)
	}
	return a.body
}

// TestUpgradeSaysTheReason: what a successor with a fault says names the fault, and
// not the addresses that the old process has.
func TestUpgradeSaysTheReason(t *testing.T) {
	b := backend(t, "one")
	text := upgradeText(t, "", b)
	next := strings.Replace(text, "pool: app}}", fmt.Sprintf("pool: app}, secure: {bind: %q, pool: app, tls: {certificates: [{cert: /nowhere/a.crt, key: /nowhere/a.key}]}}}", freeAddress(t)), 1)
	u := startUpgrading(t, text, "serve", next, UpgradeOptions{})
	_, err := u.running.admin.Upgrade(t.Context(), "")
	if err == nil || !strings.Contains(err.Error(), "/nowhere/a.crt") || strings.Contains(err.Error(), "in use") {
		t.Errorf("got %v", err)
	}
}

// TestUpgradeTakenBack: a successor that dies at once costs nothing but the
// connections that it had: those that come meanwhile wait, and are served here.
func TestUpgradeTakenBack(t *testing.T) {
	b := backend(t, "one")
	text := upgradeText(t, "", b)
	u := startUpgrading(t, text, "die", text, UpgradeOptions{})
	up, err := u.running.admin.Upgrade(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	weirtest.Eventually(t, "it serves again", func() bool { return u.Status().State == "serving" })
	if lives(up.PID) {
		t.Error("the successor lives")
	}
	keep := client(t)
	for range 3 {
		expect(t, keep, u.front, answer{200, "one", false})
	}
	if _, err := u.running.admin.Patch(t.Context(), "app", b.id(), admin.Patch{Weight: new(uint32(3))}); err != nil {
		t.Errorf("a change afterwards: %v", err)
	}
	if m := scraped(t, u.running); !strings.Contains(m, `weir_upgrades_total{outcome="taken_back"} 1`) {
		t.Error("it is not counted")
	}
	// Once more, as if nothing had happened.
	if up, err = u.running.admin.Upgrade(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	weirtest.Eventually(t, "it serves again", func() bool { return u.Status().State == "serving" && !lives(up.PID) })
	expect(t, client(t), u.front, answer{200, "one", false})
	u.signals <- syscall.SIGINT
	u.gone(t)
}

// TestUpgradeFrozen: between the word that a new process has built and its first
// accept nothing is changed, and afterwards it can be.
func TestUpgradeFrozen(t *testing.T) {
	b := backend(t, "one")
	text := upgradeText(t, "", b)
	u := startUpgrading(t, text, "fail when told", text, UpgradeOptions{})
	failed := make(chan error, 1)
	go func() {
		_, err := u.Upgrade(context.Background(), "")
		failed <- err
	}()
	var p *admin.Problem
	patch := func() error {
		_, err := u.running.admin.Patch(t.Context(), "app", b.id(), admin.Patch{Weight: new(uint32(3))})
		return err
	}
	weirtest.Eventually(t, "changes are refused", func() bool { return errors.As(patch(), &p) })
	if p.Status != 409 || p.Code != admin.CodeUpgrading || !strings.Contains(p.Detail, "about to take over") {
		t.Errorf("a change: %+v", p)
	}
	if _, err := u.running.admin.Reload(t.Context(), false); !errors.As(err, &p) || p.Status != 409 {
		t.Errorf("a reload: %v", err)
	}
	if _, err := u.Reload(parse(t, text), ReloadOptions{}); !errors.Is(err, admin.ErrUpgrading) {
		t.Errorf("a reload: %v", err)
	}
	if _, err := u.running.admin.Upgrade(t.Context(), ""); !errors.As(err, &p) || p.Status != 409 || p.Code != admin.CodeUpgrading {
		t.Errorf("a second upgrade: %v", err)
	}
	for _, kv := range u.opt.Upgrade.Program.Env {
		if path, ok := strings.CutPrefix(kv, successorGo+"="); ok {
			if err := os.WriteFile(path, nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := <-failed; !errors.Is(err, admin.ErrUpgradeFailed) || !strings.Contains(err.Error(), "told to fail") {
		t.Errorf("the upgrade: %v", err)
	}
	if err := patch(); err != nil {
		t.Errorf("a change afterwards: %v", err)
	}
	if _, err := u.Reload(parse(t, text), ReloadOptions{}); err != nil {
		t.Errorf("a reload afterwards: %v", err)
	}
}

// TestUpgradeStopped: who is told to stop during an upgrade ends the new process
// and drains as ever.
func TestUpgradeStopped(t *testing.T) {
	b := backend(t, "one")
	text := upgradeText(t, "", b)
	u := startUpgrading(t, text, "hang", text, UpgradeOptions{})
	failed := make(chan error, 1)
	go func() {
		_, err := u.Upgrade(context.Background(), "")
		failed <- err
	}()
	weirtest.Eventually(t, "the upgrade is under way", func() bool { return strings.Contains(u.log.String(), "upgrade begins") })
	u.signals <- syscall.SIGINT
	if err := <-failed; !errors.Is(err, ErrStopping) {
		t.Errorf("the upgrade: %v", err)
	}
	u.gone(t)
	if _, err := u.Upgrade(t.Context(), ""); !errors.Is(err, admin.ErrNoUpgrade) {
		t.Errorf("an upgrade at the end: %v", err)
	}
}

// TestUpgradeStoppedAfter: when the new process is told to stop, the old one
// does not drain longer; and it leaves at once when it is told so itself twice.
func TestUpgradeStoppedAfter(t *testing.T) {
	t.Run("new", func(t *testing.T) {
		b := backend(t, "one")
		text := upgradeText(t, "shutdown: {delay: none, deadline: 1s}\n", b)
		u := startUpgrading(t, text, "serve", text, UpgradeOptions{})
		up, conn := upgradeWithTunnel(t, u, b)
		stopAtEnd(t, up.PID)
		if err := syscall.Kill(up.PID, syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		u.gone(t)
		expectClosed(t, conn)
	})
	t.Run("old", func(t *testing.T) {
		b := backend(t, "one")
		text := upgradeText(t, "shutdown: {deadline: 1h}\n", b)
		u := startUpgrading(t, text, "serve", text, UpgradeOptions{})
		up, conn := upgradeWithTunnel(t, u, b)
		stopAtEnd(t, up.PID)
		u.signals <- syscall.SIGHUP // upkeep goes on
		u.signals <- syscall.SIGTERM
		u.signals <- syscall.SIGTERM
		u.gone(t)
		expectClosed(t, conn)
		expect(t, client(t), u.front, answer{200, "one", false})
	})
	t.Run("deadline", func(t *testing.T) {
		b := backend(t, "one")
		text := upgradeText(t, "upgrade: {deadline: 1s}\n", b)
		u := startUpgrading(t, text, "serve", text, UpgradeOptions{Trial: time.Millisecond})
		up, conn := upgradeWithTunnel(t, u, b)
		stopAtEnd(t, up.PID)
		u.gone(t)
		expectClosed(t, conn)
		if !strings.Contains(u.log.String(), "cut at the end of the drain") {
			t.Error("what was cut is not told")
		}
	})
}

// upgradeWithTunnel upgrades while a request is in flight.
func upgradeWithTunnel(t *testing.T, u *upgrading, b *server) (admin.Upgrade, net.Conn) {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(u.front, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if _, err := io.WriteString(conn, "GET /slow HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	<-b.arrived
	up, err := u.running.admin.Upgrade(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	return up, conn
}

func expectClosed(t *testing.T, c net.Conn) {
	t.Helper()
	_ = c.SetReadDeadline(time.Now().Add(limit))
	_, err := bufio.NewReader(c).Peek(1 << 10)
	if err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the connection is not closed: %v", err)
	}
}

// TestUpgradeUnix: a socket file stays over an upgrade, and goes with the last
// process.
func TestUpgradeUnix(t *testing.T) {
	b := backend(t, "one")
	dir := t.TempDir()
	web, ops := filepath.Join(dir, "web"), filepath.Join(dir, "admin")
	text := fmt.Sprintf("admin: {bind: \"unix:%s\"}\nlisteners: {web: {bind: \"unix:%s\", pool: app}}\npools: {app: {backends: [%q]}}\n", ops, web, b.URL)
	u := startUpgrading(t, text, "serve", text, UpgradeOptions{Trial: time.Millisecond})
	up, err := u.running.admin.Upgrade(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	u.gone(t)
	stopAtEnd(t, up.PID)
	c := &http.Client{Timeout: limit, Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", web)
	}}}
	expect(t, c, "http://web/", answer{200, "one", true})
	if s, err := u.running.admin.Status(t.Context()); err != nil || s.PID != up.PID {
		t.Errorf("status: %+v, %v", s, err)
	}
	if err := syscall.Kill(up.PID, syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	weirtest.Eventually(t, "the files are gone", func() bool {
		left, err := os.ReadDir(dir)
		return err == nil && len(left) == 0
	})
}

// TestUpgradeToOtherBinds: what the successor's configuration no longer has, also
// where its wider bind is hidden behind the one that it replaces, is served until
// this process closes it, and nobody who comes meanwhile waits or is lost.
func TestUpgradeToOtherBinds(t *testing.T) {
	b := backend(t, "one")
	_, port, _ := net.SplitHostPort(freeAddress(t))
	gone := freeAddress(t)
	const pool = "pools: {app: {backends: [%q]}}\n"
	text := fmt.Sprintf("admin: {bind: %q}\nlisteners: {web: {bind: \"127.0.0.1:%s\", pool: app}, gone: {bind: %q, pool: app}}\n"+pool, freeAddress(t), port, gone, b.URL)
	next := fmt.Sprintf("admin: {bind: %q}\nlisteners: {all: {bind: \":%s\", pool: app}}\n"+pool, freeAddress(t), port, b.URL)
	u := startUpgrading(t, text, "serve", next, UpgradeOptions{Trial: 2 * time.Second})
	up, err := u.running.admin.Upgrade(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	stopAtEnd(t, up.PID)
	c := &http.Client{Timeout: limit, Transport: &http.Transport{DisableKeepAlives: true}}
	for range 5 {
		expect(t, c, "http://127.0.0.1:"+port, answer{200, "one", true})
		expect(t, c, "http://"+gone, answer{200, "one", true})
	}
	select {
	case <-u.ended:
		t.Error("the clients had to wait for the end of the old process")
	default:
	}
	u.gone(t)
	expect(t, c, "http://127.0.0.1:"+port, answer{200, "one", true})
	if nc, err := net.Dial("tcp", gone); err == nil {
		_ = nc.Close()
		t.Error("somebody still listens where nobody should")
	}
}

// TestUpgradeRefused: what cannot be handed over is refused with the reason,
// before anything is started.
func TestUpgradeRefused(t *testing.T) {
	b := backend(t, "one")
	text := upgradeText(t, "", b)
	plain := start(t, text)
	if _, err := plain.Upgrade(t.Context(), ""); !errors.Is(err, admin.ErrNoUpgrade) || !strings.Contains(err.Error(), "weir run") {
		t.Errorf("without a program: %v", err)
	}
	text = upgradeText(t, "", b)
	u := startUpgrading(t, text, "serve", text, UpgradeOptions{})
	var p *admin.Problem
	if _, err := u.running.admin.Upgrade(t.Context(), "/bin/true"); !errors.As(err, &p) || p.Status != 403 || p.Code != admin.CodeForbidden {
		t.Errorf("a binary without a token: %v", err)
	}
	for binary, says := range map[string]string{"weir": "whole path", t.TempDir(): "not a file", "/gone/weir": "no such file"} {
		if _, err := u.Upgrade(t.Context(), binary); !errors.Is(err, admin.ErrNoUpgrade) || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", binary, err)
		}
	}
	u.opt.Upgrade.Program.Path = ""
	if _, err := u.Upgrade(t.Context(), ""); !errors.Is(err, admin.ErrNoUpgrade) || !strings.Contains(err.Error(), "name a binary") {
		t.Errorf("no path: %v", err)
	}
	if _, err := u.ApplyConfig([]byte("log: {access: off}\n"+text), 0, false); err != nil {
		t.Fatal(err)
	}
	if _, err := u.running.admin.Upgrade(t.Context(), ""); !errors.As(err, &p) || p.Status != 409 || p.Code != admin.CodeNoUpgrade || !strings.Contains(p.Detail, "posted") {
		t.Errorf("a posted configuration: %v", err)
	}
	if m := scraped(t, u.running); !strings.Contains(m, `weir_upgrades_total{outcome="refused"} 5`) {
		t.Error("refusals are not counted")
	}
	u.signals <- syscall.SIGINT
	u.gone(t)
	if _, err := u.Upgrade(t.Context(), ""); !errors.Is(err, admin.ErrNoUpgrade) {
		t.Errorf("at the end: %v", err)
	}
}

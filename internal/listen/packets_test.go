// SPDX-License-Identifier: Apache-2.0

package listen

import (
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/weirlb/weir/internal/weirtest"
)

// TestPackets: the sockets of one address are opened once, are nobody else's, and go
// to another process together.
func TestPackets(t *testing.T) {
	s, bind := NewSockets(), "127.0.0.1:"+weirtest.FreePort(t) // which no TCP socket has, either
	k, err := s.TakePackets(bind, 3)
	if err != nil {
		t.Fatal(err)
	}
	where := k.Addr().String()
	if n := len(k.Sockets().Descriptors()); n != 3 {
		t.Errorf("%d sockets, want 3", n)
	}
	if _, err := net.ListenPacket("udp", where); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("somebody else binds it: %v", err)
	}
	other := NewSockets()
	if _, err := other.TakePackets(where, 3); !errors.Is(err, syscall.EADDRINUSE) || !strings.HasPrefix(err.Error(), "bind "+where) {
		t.Errorf("another weir takes it: %v", err)
	}
	if err := other.Check(PacketsBind(where), false); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("another weir may take it: %v", err)
	}
	if err := s.Check(PacketsBind(where), false); err != nil {
		t.Errorf("this one may not: %v", err)
	}
	again, err := s.TakePackets(where, 1)
	if err != nil || again.Sockets() != k.Sockets() {
		t.Errorf("taken again: %v, %v", again, err)
	}
	ln, err := s.Take(where) // a port of TCP is another one
	if err != nil {
		t.Fatal(err)
	}
	_ = ln.Close()

	handed, err := s.Hand()
	if err != nil || len(handed) != 3 {
		t.Fatalf("%d handed over, %v", len(handed), err)
	}
	next := NewSockets()
	for _, h := range handed {
		if h.Bind != PacketsBind(bind) {
			t.Errorf("handed as %s", h.Bind)
		}
		if err := next.Inherit(h.Bind, h.File); err != nil {
			t.Fatal(err)
		}
	}
	k.Close()
	k.Close()
	again.Close()
	got, err := next.TakePackets(where, 1)
	if err != nil || len(got.Sockets().Descriptors()) != 3 || got.Addr().String() != where {
		t.Fatalf("inherited %v, %v", got, err)
	}
	if gone := next.Unclaimed(); len(gone) != 0 {
		t.Errorf("unclaimed: %v", gone)
	}
	got.Close()
	c, err := net.ListenPacket("udp", where)
	if err != nil {
		t.Fatalf("it is not free in the end: %v", err)
	}
	_ = c.Close()
}

// TestPacketsFromManager: a socket that came from outside is known by its name alone,
// and closed when nobody takes it.
func TestPacketsFromManager(t *testing.T) {
	c, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	where := c.LocalAddr().String()
	f, err := c.(*net.UDPConn).File()
	_ = c.Close()
	if err != nil {
		t.Fatal(err)
	}
	s := NewSockets()
	if err := s.Inherit("systemd:dns", f); err != nil {
		t.Fatal(err)
	}
	k, err := s.TakePackets("systemd:dns", 4)
	if err != nil || k.Addr().String() != where || len(k.Sockets().Descriptors()) != 1 {
		t.Fatalf("%v, %v", k, err)
	}
	k.Close() // as one that failed before it served: it can be taken again
	if gone := s.Unclaimed(); len(gone) != 1 || gone[0] != "udp:systemd:dns" {
		t.Errorf("unclaimed: %v", gone)
	}
	if _, err := s.TakePackets("systemd:dns", 1); err == nil || errors.Is(err, os.ErrClosed) {
		t.Errorf("taken after it was closed: %v", err)
	}
	if _, err := s.TakePackets("127.0.0.256:1", 1); err == nil {
		t.Error("an address that is none is bound")
	}
}

// TestPacketsOverlap: a bind that becomes wider takes the address beside the one that
// it replaces.
func TestPacketsOverlap(t *testing.T) {
	s := NewSockets()
	k, err := s.TakePackets("127.0.0.1:0", 2)
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(k.Addr().String())
	wide, err := s.TakePackets(":"+port, 2)
	if err != nil {
		t.Fatal(err)
	}
	if wide.Sockets() == k.Sockets() {
		t.Error("the wider one is the other")
	}
	k.Close()
	wide.Close()
}

// TestPacketsLeaveRoom: the flows of all listeners together leave half of the process's
// places to connections; who has a ceiling of its own has it, as far as the process goes.
func TestPacketsLeaveRoom(t *testing.T) {
	gate := NewGate(8)
	newOne := func(most int) *Listener {
		return start(t, Options{Gate: gate, MaxConnections: most}, echoing)
	}
	a, b, own := newOne(0), newOne(0), newOne(2)
	client := netip.MustParseAddr("192.0.2.1")
	enter := func(l *Listener, ok bool, want Refusal) Place {
		t.Helper()
		p, why, got := l.EnterFlow(client)
		if got != ok || !ok && why != want {
			t.Errorf("entered %v (%v), want %v (%v)", got, why, ok, want)
		}
		return p
	}
	var ofA []Place
	for range 3 {
		ofA = append(ofA, enter(a, true, 0))
	}
	ofB := enter(b, true, 0)
	enter(b, false, ProcessLimit)
	enter(a, false, ProcessLimit)
	c := enter(own, true, 0)
	d := enter(own, true, 0)
	enter(own, false, ListenerLimit)
	echo(t, dial(t, a), "connections are possible")
	own.LeaveFlow(client, c)
	own.LeaveFlow(client, d)
	b.LeaveFlow(client, ofB)
	ofB = enter(b, true, 0)
	enter(b, false, ProcessLimit)
	gate.SetFlows(5) // descriptors for no more: that holds for who has a ceiling, too
	c = enter(own, true, 0)
	enter(own, false, ProcessLimit)
	own.LeaveFlow(client, c)
	gate.SetFlows(0)
	b.LeaveFlow(client, ofB)
	for _, p := range ofA {
		a.LeaveFlow(client, p)
	}
	if n := gate.flows.Load(); n != 0 {
		t.Errorf("%d flows are counted that are no more", n)
	}
}

// TestPacketsSaid: who gets no place and who has to leave it is said once in a while.
func TestPacketsSaid(t *testing.T) {
	var logs syncBuffer
	l := start(t, Options{Name: "dns", Logger: slog.New(slog.NewTextHandler(&logs, nil))}, echoing)
	for i := range 3 {
		client := netip.AddrPortFrom(netip.MustParseAddr("192.0.2.1"), uint16(1000+i))
		l.EvictFlow(client)
		l.RefuseFlow(client, ListenerLimit)
		l.RefuseFlow(client, ClientLimit)
	}
	for _, want := range []string{
		`msg="flow ended to make room for others" listener=dns total=1 client=192.0.2.1:1000`,
		`msg="flow refused at a ceiling" listener=dns reason=listener_limit total=1 client=192.0.2.1:1000`,
		`msg="flow refused at a ceiling" listener=dns reason=client_limit total=1 client=192.0.2.1:1000`,
	} {
		if n := strings.Count(logs.String(), want); n != 1 {
			t.Errorf("%d times: %s\n%s", n, want, logs.String())
		}
	}
	if n := strings.Count(logs.String(), "\n"); n != 3 {
		t.Errorf("%d lines", n)
	}
}

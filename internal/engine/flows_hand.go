// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/internal/handover"
	"github.com/weirlb/weir/internal/l4"
	"github.com/weirlb/weir/internal/listen"
)

// A flow of datagrams is a socket and a few numbers, so a successor goes on with it,
// and its client and its backend see nothing of an upgrade. The flows pass through a
// pair of sockets of their own: the successor asks when it is about to serve, the
// predecessor stops reading, and sends.

const (
	// flowsBind is what the successor's end of the pair is called among the sockets
	// that are offered.
	flowsBind = "flows:"
	// flowsOnce is how many flows one message has: SCM_RIGHTS carries 253 descriptors.
	flowsOnce = 200
	// flowsWithin bounds the exchange, and how long nobody reads: if the successor
	// takes longer to serve, this process goes on.
	flowsWithin = 5 * time.Second
	// flowsMost is more than a message can hold: flows are written in less than a
	// kilobyte, but for the datagram that is kept of those without an answer.
	flowsMost = flowsOnce * 4 << 10
)

// flowGiver is the predecessor's side of one upgrade.
type flowGiver struct {
	e     *Engine
	pair  *net.UnixConn // nil: there are no udp listeners
	ended chan struct{}

	mu    sync.Mutex
	gave  bool
	timer *time.Timer
}

// giveFlows offers a successor the flows. end is to be called with the outcome.
func (e *Engine) giveFlows(o *handover.Offer) (*flowGiver, error) {
	g := &flowGiver{e: e, ended: make(chan struct{})}
	if !slices.ContainsFunc(e.front.all(), func(l *liveListener) bool { return l.cfg.Datagrams() }) {
		close(g.ended)
		return g, nil
	}
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		close(g.ended)
		return g, fmt.Errorf("a pair of sockets for flows: %w", err)
	}
	own := os.NewFile(uintptr(fds[0]), "flows")
	defer own.Close() //nolint:errcheck // the connection has a duplicate
	other := os.NewFile(uintptr(fds[1]), "flows")
	c, err := net.FileConn(own)
	if err != nil {
		close(g.ended)
		_ = other.Close()
		return g, fmt.Errorf("a pair of sockets for flows: %w", err)
	}
	g.pair = c.(*net.UnixConn) //nolint:errcheck,forcetypeassert // of a pair of that family
	_ = g.pair.SetWriteBuffer(4 * flowsMost)
	o.Sockets = append(o.Sockets, handover.Socket{Bind: flowsBind, File: other})
	go g.serve()
	return g, nil
}

// serve waits until the successor asks.
func (g *flowGiver) serve() {
	defer close(g.ended)
	var b [1]byte
	if n, err := g.pair.Read(b[:]); n == 0 || err != nil {
		return // it has no use for them
	}
	g.mu.Lock()
	g.gave = true
	all := g.e.front.flows.Pause()
	g.timer = time.AfterFunc(flowsWithin, func() {
		g.e.log.Warn("the new process has taken the flows and does not serve: this one goes on with them")
		g.e.front.flows.Resume()
	})
	g.mu.Unlock()
	_ = g.pair.SetWriteDeadline(time.Now().Add(flowsWithin))
	for part := range slices.Chunk(all, flowsOnce) {
		if err := g.send(part); err != nil {
			g.e.log.Warn("flows were not handed over: their clients begin others", "flows", len(all), "error", err)
			break
		}
	}
	_ = g.pair.Close() // the end
}

func (g *flowGiver) send(part []l4.FlowState) error {
	text, err := json.Marshal(part)
	if err != nil {
		return err
	}
	fds := make([]int, len(part))
	for i := range part {
		fds[i] = part[i].FD
	}
	_, _, err = g.pair.WriteMsgUnix(text, unix.UnixRights(fds...), nil)
	if half := len(part) / 2; errors.Is(err, unix.EMSGSIZE) && half > 0 {
		// More than the socket may hold (net.core.wmem_max), as they keep large datagrams.
		if err = g.send(part[:half]); err == nil {
			err = g.send(part[half:])
		}
	}
	return err
}

// taken says that the successor serves, but for the binds that it declined.
func (g *flowGiver) taken(declined []string) {
	if !g.finish() {
		return
	}
	stay := map[l4.Group]bool{}
	for _, l := range g.e.front.ever() {
		for _, p := range l.ln.PacketSockets() {
			if slices.Contains(declined, listen.PacketsBind(p.Bind())) {
				stay[p] = true
			}
		}
	}
	g.e.front.flows.GiveAway(func(of l4.Group) bool { return stay[of] })
}

// failed says that there is no successor.
func (g *flowGiver) failed() {
	if g.finish() {
		g.e.front.flows.Resume()
	}
}

// finish ends the exchange and reports whether the flows were asked for.
func (g *flowGiver) finish() bool {
	if g.pair == nil {
		return false
	}
	_ = g.pair.Close()
	<-g.ended
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.timer != nil {
		g.timer.Stop()
	}
	return g.gave
}

// takeFlows is the successor's side: it is called when everything is built and
// nothing is read yet.
func (e *Engine) takeFlows() {
	f := e.flowsFrom
	e.flowsFrom = nil
	if f == nil {
		return
	}
	c, err := net.FileConn(f)
	_ = f.Close()
	if err != nil {
		e.log.Warn("no flows are taken over", "error", err)
		return
	}
	defer c.Close()           //nolint:errcheck // it was used up
	pair := c.(*net.UnixConn) //nolint:errcheck,forcetypeassert // the predecessor has made it so
	known := map[netip.AddrPort]bool{}
	for _, l := range e.front.all() {
		for _, p := range l.ln.PacketSockets() {
			known[p.Bound()] = true
		}
	}
	if len(known) == 0 {
		return // the predecessor goes on with them
	}
	_ = pair.SetDeadline(time.Now().Add(flowsWithin))
	if _, err := pair.Write([]byte{1}); err != nil {
		return
	}
	var all, others []l4.FlowState
	text, rights := make([]byte, flowsMost), make([]byte, unix.CmsgSpace(4*flowsOnce))
	for {
		part, err := receiveFlows(pair, text, rights)
		if err != nil {
			e.log.Warn("not all flows are taken over: their clients begin others", "error", err)
			break
		}
		if part == nil {
			break
		}
		for _, s := range part {
			if known[s.Bound] {
				all = append(all, s)
			} else {
				others = append(others, s)
			}
		}
	}
	for _, s := range others {
		_ = unix.Close(s.FD)
	}
	e.front.flows.Expect(all)
	e.log.Info("flows taken over", "flows", len(all))
}

// receiveFlows reads one message; nil: there are no more.
func receiveFlows(pair *net.UnixConn, text, rights []byte) ([]l4.FlowState, error) {
	n, rn, flags, _, err := pair.ReadMsgUnix(text, rights)
	if n == 0 {
		return nil, nil //nolint:nilerr // the end of the file, or of the predecessor
	}
	if err != nil {
		return nil, err
	}
	var fds []int
	msgs, err := unix.ParseSocketControlMessage(rights[:rn])
	for i := range msgs {
		more, rerr := unix.ParseUnixRights(&msgs[i])
		if rerr == nil {
			fds = append(fds, more...)
		}
	}
	for _, fd := range fds {
		unix.CloseOnExec(fd)
	}
	var part []l4.FlowState
	if err == nil && flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 {
		err = fmt.Errorf("a message was cut at %d bytes", n)
	}
	if err == nil {
		err = json.Unmarshal(text[:n], &part)
	}
	if err == nil && len(fds) != len(part) {
		err = fmt.Errorf("%d descriptors came for %d flows", len(fds), len(part))
	}
	if err != nil {
		for _, fd := range fds {
			_ = unix.Close(fd)
		}
		return nil, err
	}
	for i := range part {
		part[i].FD = fds[i]
	}
	return part, nil
}

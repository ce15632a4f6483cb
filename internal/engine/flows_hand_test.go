// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"bytes"
	"net"
	"net/netip"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/internal/l4"
)

// TestFlowsThroughSmallBuffers: where the kernel lets a socket have little memory
// (net.core.wmem_max), flows that keep a large datagram go in smaller messages.
func TestFlowsThroughSmallBuffers(t *testing.T) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	var ends [2]*net.UnixConn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "flows")
		c, err := net.FileConn(f)
		_ = f.Close()
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = c.Close() }()
		ends[i] = c.(*net.UnixConn)
	}
	if err := ends[0].SetWriteBuffer(32 << 10); err != nil {
		t.Fatal(err)
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = null.Close() }()
	all := make([]l4.FlowState, flowsOnce)
	for i := range all {
		all[i] = l4.FlowState{
			Client: netip.AddrPortFrom(netip.MustParseAddr("192.0.2.1"), uint16(i)), Pool: "app",
			Kept: bytes.Repeat([]byte{byte(i)}, 1500), FD: int(null.Fd()),
		}
	}
	sent := make(chan error, 1)
	go func() {
		sent <- (&flowGiver{pair: ends[0]}).send(all)
		_ = ends[0].Close()
	}()
	var got []l4.FlowState
	text, rights := make([]byte, flowsMost), make([]byte, unix.CmsgSpace(4*flowsOnce))
	for {
		part, err := receiveFlows(ends[1], text, rights)
		if err != nil {
			t.Fatal(err)
		}
		if part == nil {
			break
		}
		got = append(got, part...)
	}
	for i := range got {
		_ = unix.Close(got[i].FD)
		if got[i].Client.Port() != uint16(i) || !bytes.Equal(got[i].Kept, all[i].Kept) {
			t.Fatalf("flow %d is another one", i)
		}
	}
	if err := <-sent; err != nil || len(got) != len(all) {
		t.Errorf("%d of %d flows have come; %v", len(got), len(all), err)
	}
}

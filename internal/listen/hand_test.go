// SPDX-License-Identifier: Apache-2.0

package listen

import "testing"

// TestHandFails: what could not be handed over as a whole is nobody else's, and a socket
// that is closed later lets those in who are connecting, as before.
func TestHandFails(t *testing.T) {
	s := NewSockets()
	k, err := s.Take("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = k.Close() }()
	s.packets = append(s.packets, &openPackets{set: s, bind: "x", holds: 1, group: &PacketSockets{fds: []int{-1}}}) // no descriptor is left for it
	if out, err := s.Hand(); err == nil || out != nil {
		t.Fatalf("%v, %v", out, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if k.o.alien() {
		t.Error("the socket counts as another process's, too")
	}
	s.packets = nil
}

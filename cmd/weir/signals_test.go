// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"os/signal"
	"syscall"
	"testing"
	"time"
)

// TestStopComesThrough: more reloads than anybody keeps account of, which nobody
// has got to, do not drown the signal to stop, and it does not wait for them.
func TestStopComesThrough(t *testing.T) {
	c := serverSignals()
	seen := make(chan os.Signal, 1000)
	signal.Notify(seen, syscall.SIGHUP, syscall.SIGTERM)
	defer signal.Stop(seen)
	send := func(s syscall.Signal) {
		t.Helper()
		if err := syscall.Kill(os.Getpid(), s); err != nil {
			t.Fatal(err)
		}
		select { // two of a kind that come together are one
		case <-seen:
		case <-time.After(10 * time.Second):
			t.Fatalf("%v did not come", s)
		}
	}
	for range 40 {
		send(syscall.SIGHUP)
	}
	send(syscall.SIGTERM)
	late := time.After(10 * time.Second)
	for n := range 3 { // one may be on its way, and be followed by one more
		select {
		case s := <-c:
			if s == syscall.SIGTERM {
				return
			}
		case <-late:
			t.Fatalf("SIGTERM was lost behind SIGHUP, after %d of these", n)
		}
	}
	t.Fatal("SIGTERM waits behind SIGHUP")
}

// SPDX-License-Identifier: Apache-2.0

package weirtest

import (
	"math/rand/v2"
	"net"
	"strconv"
	"sync/atomic"
	"testing"
)

// Ports that FreePort gives lie below those that the system takes for outgoing
// connections, so none of these can take one before it is bound.
const (
	firstPort = 10_000
	manyPorts = 22_000
)

var lastPort atomic.Uint32

func init() { lastPort.Store(rand.Uint32N(manyPorts)) }

// FreePort returns a TCP port that nothing is bound to, on any address, for
// something that has to be told its port before it binds it. No two calls in a
// process return the same one; what binds port 0 and asks afterwards is better
// where that is possible, since another process may take it meanwhile. It is safe
// for concurrent use.
func FreePort(t testing.TB) string {
	t.Helper()
	for range manyPorts {
		port := strconv.Itoa(firstPort + int(lastPort.Add(1)%manyPorts))
		l, err := net.Listen("tcp", ":"+port)
		if err != nil {
			continue
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		return port
	}
	t.Fatalf("no port from %d to %d is free", firstPort, firstPort+manyPorts-1)
	return ""
}

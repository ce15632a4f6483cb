// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"math"
	"testing"
	"time"
	"unsafe"

	"pgregory.net/rapid"
)

// naiveBucket is Prometheus's definition: the first bound that is not below.
func naiveBucket(d time.Duration) int {
	for i, b := range bounds {
		if d <= b {
			return i
		}
	}
	return len(bounds)
}

func TestBucketOf(t *testing.T) {
	for _, b := range bounds {
		for _, d := range []time.Duration{b - 1, b, b + 1} {
			if got, want := bucketOf(d), naiveBucket(d); got != want {
				t.Errorf("bucketOf(%v) = %d, want %d", d, got, want)
			}
		}
	}
	for _, d := range []time.Duration{math.MinInt64, -1, 0, 1, math.MaxInt64} {
		if got, want := bucketOf(d), naiveBucket(d); got != want {
			t.Errorf("bucketOf(%v) = %d, want %d", d, got, want)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		d := time.Duration(rapid.Int64().Draw(t, "d"))
		if got, want := bucketOf(d), naiveBucket(d); got != want {
			t.Fatalf("bucketOf(%v) = %d, want %d", d, got, want)
		}
	})
}

// TestStripesKeepApart: what one core writes must not share a cache line with
// what another does.
func TestStripesKeepApart(t *testing.T) {
	for name, size := range map[string]uintptr{
		"histogram": unsafe.Sizeof(histStripe{}),
		"series":    unsafe.Sizeof(seriesStripe{}),
		"counter":   unsafe.Sizeof(paddedCounter{}),
	} {
		if size%64 != 0 {
			t.Errorf("a %s stripe has %d bytes, no multiple of 64", name, size)
		}
	}
}

func FuzzHostFiles(f *testing.F) {
	f.Add([]byte("TcpExt: SyncookiesSent ListenOverflows\nTcpExt: 0 42\nIpExt: A\nIpExt: 1\n"))
	f.Add([]byte("TCP: inuse 5 orphan 0 tw 7 alloc 9 mem 3\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		netstatValue(text, "TcpExt:", "ListenOverflows")
		sockstatValue(text, "TCP:", "tw")
	})
}

func TestHostFiles(t *testing.T) {
	if n, ok := netstatValue([]byte("IpExt: A\nIpExt: 1\nTcpExt: X ListenOverflows Y\nTcpExt: 1 42 3\n"), "TcpExt:", "ListenOverflows"); !ok || n != 42 {
		t.Errorf("ListenOverflows = %d, %v", n, ok)
	}
	if n, ok := sockstatValue([]byte("sockets: used 9\nTCP: inuse 5 orphan 0 tw 7 alloc 9\n"), "TCP:", "tw"); !ok || n != 7 {
		t.Errorf("tw = %d, %v", n, ok)
	}
	if _, ok := netstatValue([]byte("TcpExt: A B\nTcpExt: 1\n"), "TcpExt:", "B"); ok {
		t.Error("a value was found where the lines disagree")
	}
}

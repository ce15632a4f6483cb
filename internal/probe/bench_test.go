// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"io"
	"log"
	"net"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/weirlb/weir/health"
)

func discard() *log.Logger { return log.New(io.Discard, "", 0) }

// BenchmarkProbe measures the CPU time of a probe: at 10,000 backends every 5 s
// there are 2,000 a second, and 20 % of a core is 100 us each. The backend runs
// in this process and is counted too, so the figure is an upper bound.
func BenchmarkProbe(b *testing.B) {
	tcp := scripted(b, func(c net.Conn) {})
	web := scripted(b, answers("HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"))
	for name, target := range map[string]Target{
		"tcp":  {Address: tcp, OnTrafficPort: true},
		"http": {Address: web, HTTP: get()},
	} {
		b.Run(name, func(b *testing.B) {
			p := newProber(b, Options{})
			var wg sync.WaitGroup
			b.ReportAllocs()
			before := cpu(b)
			for b.Loop() {
				wg.Add(1)
				p.Probe(target, 5*time.Second, func(r health.ProbeResult) {
					if r.Outcome != health.Pass {
						b.Errorf("%+v", r)
					}
					wg.Done()
				})
				wg.Wait()
			}
			b.ReportMetric(float64(cpu(b)-before)/1e3/float64(b.N), "cpu-us/op")
		})
	}
}

func cpu(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

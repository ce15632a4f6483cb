// SPDX-License-Identifier: Apache-2.0

package main

import (
	"crypto/tls"
	"errors"
	"sync"
	"sync/atomic"
	"time"
)

// handshakes connects, completes a full TLS 1.3 handshake and hangs up, four at
// once, and charges the proxy's CPU to each.
func handshakes(p *proxy, addr string, d time.Duration) (result, error) {
	conf := &tls.Config{
		InsecureSkipVerify: true, ServerName: "localhost", MinVersion: tls.VersionTLS13,
		CurvePreferences: []tls.CurveID{tls.X25519}, // what all of them offer
	}
	once := func() error {
		c, err := tls.Dial("tcp", addr, conf)
		if err != nil {
			return err
		}
		return c.Close()
	}
	var n atomic.Int64
	run := func(d time.Duration) error {
		var wg sync.WaitGroup
		var failed [4]error
		for i := range failed {
			wg.Go(func() {
				for end := time.Now().Add(d); failed[i] == nil && time.Now().Before(end); n.Add(1) {
					failed[i] = once()
				}
			})
		}
		wg.Wait()
		return errors.Join(failed[:]...)
	}
	if err := run(d / 4); err != nil {
		return nil, err
	}
	n.Store(0)
	u0, s0 := p.cpu()
	if err := run(d); err != nil {
		return nil, err
	}
	u1, s1 := p.cpu()
	return result{
		"cpu_us_per_handshake": (u1 - u0 + s1 - s0).Seconds() / float64(n.Load()) * 1e6,
		"handshakes_per_s":     float64(n.Load()) / d.Seconds(),
	}, nil
}

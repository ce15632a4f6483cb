// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// echoDatagrams opens a server of UDP that gives every datagram back, and returns its
// port.
func echoDatagrams() (int, io.Closer, error) {
	c, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		return 0, nil, err
	}
	_ = c.SetReadBuffer(4 << 20) // net.core.rmem_max at most
	go func() {
		b := make([]byte, 64<<10)
		for {
			n, from, err := c.ReadFromUDPAddrPort(b)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err == nil {
				_, _ = c.WriteToUDPAddrPort(b[:n], from)
			}
		}
	}()
	return c.LocalAddr().(*net.UDPAddr).Port, c, nil
}

// datagrams has clients send datagrams of a size, each the next one when the answer to
// the last is there; with fresh each comes from a port of its own. A packet is one that
// the proxy has received or sent.
func datagrams(p *proxy, clients, size int, fresh bool, d time.Duration) (result, error) {
	if p.name == "haproxy" || p.name == "caddy" {
		return nil, fmt.Errorf("%s passes no datagrams on: use -proxies weir,nginx", p.name)
	}
	to := net.JoinHostPort("127.0.0.1", strconv.Itoa(p.ports.l4))
	var answered, lost atomic.Int64
	var over atomic.Bool
	var all sync.WaitGroup
	var first atomic.Pointer[error]
	for range clients {
		all.Go(func() {
			if err := talk(to, size, fresh, &answered, &lost, &over); err != nil {
				first.CompareAndSwap(nil, &err)
			}
		})
	}
	time.Sleep(time.Second) // a ramp that is thrown away
	u0, s0 := p.cpu()
	n0 := answered.Load()
	time.Sleep(d)
	n := float64(answered.Load() - n0)
	u1, s1 := p.cpu()
	over.Store(true)
	all.Wait()
	if err := first.Load(); err != nil {
		return nil, *err
	}
	if n == 0 || float64(lost.Load()) > n/10 {
		return nil, fmt.Errorf("%d datagrams were lost, %.0f answered", lost.Load(), n)
	}
	cpu := (u1 - u0 + s1 - s0).Seconds()
	return result{
		"cpu_us_per_packet":      cpu / (4 * n) * 1e6,
		"packets_per_cpu_second": 4 * n / cpu,
		"user_us":                (u1 - u0).Seconds() / (4 * n) * 1e6,
		"exchanges_per_s":        n / d.Seconds(),
		"lost":                   float64(lost.Load()),
	}, nil
}

// talk is one client.
func talk(to string, size int, fresh bool, answered, lost *atomic.Int64, over *atomic.Bool) error {
	b := make([]byte, 64<<10)
	var c net.Conn
	for !over.Load() {
		if c == nil || fresh {
			if c != nil {
				_ = c.Close()
			}
			var err error
			if c, err = net.Dial("udp", to); err != nil {
				return err
			}
		}
		if _, err := c.Write(b[:size]); err != nil {
			return err
		}
		_ = c.SetReadDeadline(time.Now().Add(time.Second))
		if _, err := c.Read(b); err != nil {
			lost.Add(1)
			continue
		}
		answered.Add(1)
	}
	return c.Close()
}

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// result is one measurement: the figures that a case defines.
type result map[string]float64

// closedLoop drives the proxy with wrk for a while and charges its CPU.
// The first second is a ramp that is thrown away.
func closedLoop(p *proxy, url string, conns int, d time.Duration, more ...string) (result, error) {
	if _, err := wrk(url, conns, time.Second, more...); err != nil {
		return nil, err
	}
	u0, s0 := p.cpu()
	out, err := wrk(url, conns, d, more...)
	if err != nil {
		return nil, err
	}
	u1, s1 := p.cpu()
	n := out.requests
	cpu := (u1 - u0 + s1 - s0).Seconds()
	return result{
		"cpu_us_per_request": cpu / n * 1e6,
		"user_us":            (u1 - u0).Seconds() / n * 1e6,
		"cpu_s_per_gib":      cpu / (out.bytes / (1 << 30)),
		"requests_per_s":     out.rate,
		"gib_per_s":          out.bytes / (1 << 30) / d.Seconds(),
		"p50_ms":             out.p50,
		"p99_ms":             out.p99,
	}, nil
}

type wrkOutput struct{ requests, rate, bytes, p50, p99 float64 }

var (
	reTotal = regexp.MustCompile(`(\d+) requests in ([\d.]+)s, ([\d.]+)([KMGT]?B) read`)
	reRate  = regexp.MustCompile(`Requests/sec:\s+([\d.]+)`)
	reQuant = regexp.MustCompile(`\s(50|99)%\s+([\d.]+)(us|ms|s)`)
)

func wrk(url string, conns int, d time.Duration, more ...string) (wrkOutput, error) {
	var o wrkOutput
	args := append([]string{"-t1", "-c", strconv.Itoa(conns), "-d", fmt.Sprintf("%ds", int(d.Seconds())), "--latency"}, more...)
	raw, err := exec.Command("wrk", append(args, url)...).CombinedOutput()
	text := string(raw)
	if err != nil {
		return o, fmt.Errorf("wrk %s: %w: %s", url, err, text)
	}
	if strings.Contains(text, "Non-2xx") || strings.Contains(text, "Socket errors") {
		return o, fmt.Errorf("wrk %s saw errors:\n%s", url, text)
	}
	m, r := reTotal.FindStringSubmatch(text), reRate.FindStringSubmatch(text)
	if m == nil || r == nil {
		return o, fmt.Errorf("wrk %s: cannot read its report:\n%s", url, text)
	}
	o.requests, _ = strconv.ParseFloat(m[1], 64)
	o.bytes, _ = strconv.ParseFloat(m[3], 64)
	o.bytes *= map[string]float64{"B": 1, "KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30, "TB": 1 << 40}[m[4]]
	o.rate, _ = strconv.ParseFloat(r[1], 64)
	for _, q := range reQuant.FindAllStringSubmatch(text, -1) {
		v, _ := strconv.ParseFloat(q[2], 64)
		v *= map[string]float64{"us": 1e-3, "ms": 1, "s": 1e3}[q[3]]
		if q[1] == "50" {
			o.p50 = v
		} else {
			o.p99 = v
		}
	}
	return o, nil
}

// multiplexed is closedLoop over HTTP/2, with h2load.
func multiplexed(p *proxy, url string, conns, streams int, d time.Duration, more ...string) (result, error) {
	if _, _, err := h2load(url, conns, streams, time.Second, more...); err != nil {
		return nil, err
	}
	u0, s0 := p.cpu()
	n, mean, err := h2load(url, conns, streams, d, more...)
	if err != nil {
		return nil, err
	}
	u1, s1 := p.cpu()
	return result{
		"cpu_us_per_request": (u1 - u0 + s1 - s0).Seconds() / n * 1e6,
		"user_us":            (u1 - u0).Seconds() / n * 1e6,
		"requests_per_s":     n / d.Seconds(),
		"mean_ms":            mean,
	}, nil
}

var (
	reDone = regexp.MustCompile(`(\d+) done, (\d+) succeeded, (\d+) failed`)
	reMean = regexp.MustCompile(`time for request:\s+\S+\s+\S+\s+([\d.]+)(us|ms|s)`)
)

// h2load returns how many requests were answered, and their mean time in
// milliseconds. Those that are under way when the time is over are not counted.
func h2load(url string, conns, streams int, d time.Duration, more ...string) (n, mean float64, err error) {
	args := append([]string{"-t1", "-c", strconv.Itoa(conns), "-m", strconv.Itoa(streams), "-D", strconv.Itoa(int(d.Seconds()))}, more...)
	raw, err := exec.Command("h2load", append(args, url)...).CombinedOutput()
	text := string(raw)
	if err != nil {
		return 0, 0, fmt.Errorf("h2load %s: %w: %s", url, err, text)
	}
	m, r := reDone.FindStringSubmatch(text), reMean.FindStringSubmatch(text)
	if m == nil || r == nil || !strings.Contains(text, "Application protocol: h2") {
		return 0, 0, fmt.Errorf("h2load %s: cannot read its report:\n%s", url, text)
	}
	n, _ = strconv.ParseFloat(m[2], 64)
	if failed, _ := strconv.Atoi(m[3]); failed > conns*streams || n == 0 {
		return 0, 0, fmt.Errorf("h2load %s saw errors:\n%s", url, text)
	}
	mean, _ = strconv.ParseFloat(r[1], 64)
	return n, mean * map[string]float64{"us": 1e-3, "ms": 1, "s": 1e3}[r[2]], nil
}

// openLoop sends at a fixed rate over kept connections. Latency counts from
// the instant a request was due, not from when a busy connection came free.
func openLoop(p *proxy, addr string, rate, conns int, d time.Duration) (result, error) {
	var (
		mu  sync.Mutex
		all []time.Duration
		n   int // requests sent, warm-up included
		wg  sync.WaitGroup
		bad error
	)
	gap := time.Duration(conns) * time.Second / time.Duration(rate)
	begin := time.Now().Add(50 * time.Millisecond)
	u0, s0 := p.cpu()
	for i := range conns {
		wg.Go(func() {
			lat, sent, err := pace(addr, begin.Add(gap*time.Duration(i)/time.Duration(conns)), gap, d)
			mu.Lock()
			defer mu.Unlock()
			n += sent
			all, bad = append(all, lat...), errors.Join(bad, err)
		})
	}
	wg.Wait()
	u1, s1 := p.cpu()
	if bad != nil {
		return nil, bad
	}
	slices.Sort(all)
	q := func(f float64) float64 { return all[int(f*float64(len(all)-1))].Seconds() * 1e3 }
	return result{
		"p50_ms": q(.5), "p99_ms": q(.99), "p999_ms": q(.999),
		"cpu_us_per_request": (u1 - u0 + s1 - s0).Seconds() / float64(n) * 1e6,
	}, nil
}

func pace(addr string, first time.Time, gap, d time.Duration) (lat []time.Duration, sent int, err error) {
	c, err := net.Dial("tcp", addr)
	if err != nil {
		return nil, 0, err
	}
	defer c.Close()
	r := bufio.NewReader(c)
	req := []byte("GET / HTTP/1.1\r\nHost: localhost\r\nUser-Agent: pace\r\nAccept: */*\r\n\r\n")
	warm := first.Add(time.Second) // left out: connections and caches are cold
	for due := first; due.Before(first.Add(time.Second + d)); due = due.Add(gap) {
		time.Sleep(time.Until(due))
		if _, err := c.Write(req); err != nil {
			return nil, sent, err
		}
		sent++
		resp, err := http.ReadResponse(r, nil)
		if err != nil {
			return nil, sent, err
		}
		if _, err := io.Copy(io.Discard, resp.Body); err != nil {
			return nil, sent, err
		}
		resp.Body.Close()
		if resp.StatusCode != 200 {
			return nil, sent, fmt.Errorf("fixed rate: status %d", resp.StatusCode)
		}
		if due.After(warm) {
			lat = append(lat, time.Since(due))
		}
	}
	return lat, sent, nil
}

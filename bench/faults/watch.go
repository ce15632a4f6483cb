// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
)

// view is what a balancer says of one backend at one instant.
type view struct {
	at     time.Time
	in     bool // takes new work
	health string
	flips  int
}

// watch asks a balancer again and again whom it considers in rotation. nginx
// has nobody to ask.
type watch struct {
	s    *subject
	quit chan struct{}
	wg   sync.WaitGroup
	mu   sync.Mutex
	seen map[string][]view // guarded by mu: of a backend, changes only
}

func startWatch(s *subject) *watch {
	w := &watch{s: s, quit: make(chan struct{}), seen: map[string][]view{}}
	ask := map[string]func() map[string]view{"weir": w.weir, "haproxy": w.haproxy}[s.name]
	if ask == nil {
		return w
	}
	w.wg.Go(func() {
		for {
			for id, v := range ask() {
				w.add(id, v)
			}
			select {
			case <-w.quit:
				return
			case <-time.After(50 * time.Millisecond):
			}
		}
	})
	return w
}

func (w *watch) stop() {
	close(w.quit)
	w.wg.Wait()
}

func (w *watch) add(id string, v view) {
	w.mu.Lock()
	defer w.mu.Unlock()
	old := w.seen[id]
	if len(old) == 0 || old[len(old)-1].in != v.in || old[len(old)-1].health != v.health || old[len(old)-1].flips != v.flips {
		v.at = time.Now()
		w.seen[id] = append(old, v)
	}
}

func (w *watch) weir() map[string]view {
	c := http.Client{Timeout: time.Second}
	resp, err := c.Get("http://" + w.s.admin + "/api/v1/pools/app")
	if err != nil {
		return nil
	}
	defer resp.Body.Close()
	var body struct {
		Backends []struct {
			ID     string  `json:"id"`
			Health string  `json:"health"`
			Share  float64 `json:"share"`
			Flips  int     `json:"flips"`
		} `json:"backends"`
	}
	if json.NewDecoder(resp.Body).Decode(&body) != nil {
		return nil
	}
	out := map[string]view{}
	for _, b := range body.Backends {
		out[b.ID] = view{in: b.Share > 0, health: b.Health, flips: b.Flips}
	}
	return out
}

// haproxy reads "show stat": column 17 is the status, 22 how often a server went
// down.
func (w *watch) haproxy() map[string]view {
	c, err := net.DialTimeout("unix", w.s.admin, time.Second)
	if err != nil {
		return nil
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(time.Second))
	_, _ = io.WriteString(c, "show stat\n")
	text, err := io.ReadAll(c)
	if err != nil {
		return nil
	}
	out := map[string]view{}
	for line := range strings.Lines(string(text)) {
		f := strings.Split(line, ",")
		if len(f) < 25 || f[0] != "app" || f[1] == "BACKEND" {
			continue
		}
		n := 0
		for _, d := range f[22] {
			n = n*10 + int(d-'0')
		}
		status, _, _ := strings.Cut(f[17], " ")
		out[f[1]] = view{in: status == "UP" || status == "no", health: status, flips: n}
	}
	return out
}

// outAfter returns the first instant after from at which the backend took no
// new work.
func (w *watch) outAfter(id string, from time.Time) (time.Time, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	i := slices.IndexFunc(w.seen[id], func(v view) bool { return v.at.After(from) && !v.in })
	if i < 0 {
		return time.Time{}, false
	}
	return w.seen[id][i].at, true
}

// leftRotation counts how often a backend went from taking work to taking none
// after from.
func (w *watch) leftRotation(id string, from time.Time) (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i, v := range w.seen[id] {
		if i > 0 && !v.in && w.seen[id][i-1].in && v.at.After(from) {
			n++
		}
	}
	return n
}

// fewest returns the least number of backends that took work at once after from.
func (w *watch) fewest(from time.Time) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	var all []time.Time
	for _, vs := range w.seen {
		for _, v := range vs {
			if v.at.After(from) {
				all = append(all, v.at)
			}
		}
	}
	least := w.serving(from)
	for _, t := range all {
		least = min(least, w.serving(t))
	}
	return least
}

// settled waits until n backends take work, if there is somebody to ask, and at
// most for limit.
func (w *watch) settled(n int, limit time.Duration) {
	for end := time.Now().Add(limit); w.s.name != "nginx" && time.Now().Before(end); {
		w.mu.Lock()
		in := w.serving(time.Now())
		w.mu.Unlock()
		if in == n {
			return
		}
		time.Sleep(25 * time.Millisecond)
	}
}

// serving counts the backends that take work at t; mu is held.
func (w *watch) serving(t time.Time) (n int) {
	for _, vs := range w.seen {
		in := false
		for _, v := range vs {
			if !v.at.After(t) {
				in = v.in
			}
		}
		if in {
			n++
		}
	}
	return n
}

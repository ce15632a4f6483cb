// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"
)

// source is a memory of events for tests.
type source struct {
	mu    sync.Mutex
	first uint64 // number of list[0]
	list  []Event
	more  chan struct{}
	epoch string
}

func (s *source) FollowEvents(from uint64) ([]Event, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.more == nil {
		s.more = make(chan struct{})
	}
	return append([]Event(nil), s.list[min(max(from, s.first)-s.first, uint64(len(s.list))):]...), s.more
}

func (s *source) EventEpoch() string { return s.epoch }

func (s *source) add(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.list = append(s.list, Event{Seq: s.first + uint64(len(s.list)), Text: text})
	if s.more != nil {
		close(s.more)
		s.more = nil
	}
}

// forget drops the oldest events.
func (s *source) forget(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.first, s.list = s.first+uint64(n), s.list[n:]
}

func feeding(t *testing.T, src *source) (url string, f *feed, stop func()) {
	t.Helper()
	stopped := make(chan struct{})
	f = &feed{src: src, stopped: stopped, heartbeat: time.Hour, patience: 10 * time.Second}
	s := httptest.NewServer(f)
	t.Cleanup(s.Close)
	stop = sync.OnceFunc(func() { close(stopped) })
	t.Cleanup(stop)
	return s.URL, f, stop
}

// reader reads pieces of a feed.
type reader struct {
	t    *testing.T
	resp *http.Response
	in   *bufio.Scanner
}

func follow(t *testing.T, url, last string) *reader {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	t.Cleanup(cancel)
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	if last != "" {
		r.Header.Set("Last-Event-ID", last)
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = resp.Body.Close() })
	return &reader{t: t, resp: resp, in: bufio.NewScanner(resp.Body)}
}

// next returns the id and text of the next event, or its kind.
func (r *reader) next() string {
	r.t.Helper()
	id := ""
	for r.in.Scan() {
		line := r.in.Text()
		if v, ok := strings.CutPrefix(line, "id: "); ok {
			id = v
		}
		if strings.HasPrefix(line, ": ") {
			return "beat"
		}
		if v, ok := strings.CutPrefix(line, "data: "); ok {
			var e struct {
				Text string
				Lost int
			}
			if err := json.Unmarshal([]byte(v), &e); err != nil {
				r.t.Fatal(err)
			}
			if e.Lost > 0 {
				return fmt.Sprint("lost ", e.Lost)
			}
			return id + " " + e.Text
		}
	}
	return "end"
}

func (r *reader) expect(want ...string) {
	r.t.Helper()
	for _, w := range want {
		if got := r.next(); got != w {
			r.t.Fatalf("%q, want %q", got, w)
		}
	}
}

func TestFeed(t *testing.T) {
	src := &source{epoch: "e"}
	for _, text := range []string{"a", "b", "c"} {
		src.add(text)
	}
	url, _, stop := feeding(t, src)
	all := follow(t, url, "")
	if got := all.resp.Header.Get("Content-Type"); got != "text/event-stream" {
		t.Errorf("Content-Type %q", got)
	}
	all.expect("e-0 a", "e-1 b", "e-2 c")
	src.add("d")
	all.expect("e-3 d")
	follow(t, url+"?last=1", "").expect("e-3 d")
	follow(t, url, "e-1").expect("e-2 c", "e-3 d")
	follow(t, url, "other-1").expect("e-0 a") // of another run: all of this one's
	none := follow(t, url+"?last=0", "")
	follow(t, url, "e-3") // nothing new
	src.add("e")
	none.expect("e-4 e")
	all.expect("e-4 e")
	src.forget(4)
	follow(t, url, "e-1").expect("lost 2", "e-4 e")
	stop()
	all.expect("end")
}

func TestFeedRefuses(t *testing.T) {
	src := &source{epoch: "e"}
	url, _, _ := feeding(t, src)
	if r := follow(t, url+"?last=x", ""); r.resp.StatusCode != http.StatusBadRequest {
		t.Errorf("last=x: %s", r.resp.Status)
	}
	for range maxFeeds {
		follow(t, url, "")
	}
	if r := follow(t, url, ""); r.resp.StatusCode != http.StatusServiceUnavailable || r.resp.Header.Get("Retry-After") == "" {
		t.Errorf("one too many: %s", r.resp.Status)
	}
}

func TestFeedBeats(t *testing.T) {
	url, f, _ := feeding(t, &source{epoch: "e"})
	f.heartbeat = time.Millisecond
	follow(t, url, "").expect("beat", "beat")
}

// A reader that takes nothing is dropped and makes room.
func TestFeedDropsSlowReaders(t *testing.T) {
	src := &source{epoch: "e"}
	for range 12 { // more than the kernel takes in for a reader with a small buffer
		src.add(strings.Repeat("x", 1<<20))
	}
	url, f, _ := feeding(t, src)
	f.patience = 100 * time.Millisecond
	c, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.(*net.TCPConn).SetReadBuffer(4 << 10); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Write([]byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n")); err != nil {
		t.Fatal(err)
	}
	seen := false
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		n := f.open.Load()
		if seen = seen || n == 1; seen && n == 0 {
			return
		}
	}
	t.Error("it is still there")
}

// SPDX-License-Identifier: Apache-2.0

package test

import (
	"compress/gzip"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"time"
)

// TestEveryEventAtOnce: an event is sent only when the one before it has been
// read by the client, so that whatever holds one back, for the next, for a full
// buffer or for compression, stops the stream. One byte is an event as well, and
// compressed content is passed on as the backend flushed it.
func TestEveryEventAtOnce(t *testing.T) {
	const events = 50
	read := make(chan struct{}, 1)
	serve := func(w http.ResponseWriter, r *http.Request) {
		flush := http.NewResponseController(w)
		out, size := io.Writer(w), 0
		switch r.URL.Path {
		case "/gzip":
			w.Header().Set("Content-Encoding", "gzip")
			z := gzip.NewWriter(w)
			out = z
			defer z.Close()
		case "/large":
			size = 100_000
		}
		w.Header().Set("Content-Type", "text/event-stream")
		for i := range events {
			if r.URL.Path == "/byte" {
				_, _ = out.Write([]byte{'a' + byte(i%26)})
			} else {
				fmt.Fprintf(out, "data: %d %0*d\n\n", i, size, 0)
			}
			if z, ok := out.(*gzip.Writer); ok {
				_ = z.Flush()
			}
			if flush.Flush() != nil {
				return
			}
			select {
			case <-read:
			case <-r.Context().Done():
				return
			}
		}
	}
	s := httptest.NewServer(http.HandlerFunc(serve))
	t.Cleanup(s.Close)
	w := startProxy(t, s.URL)
	for _, path := range []string{"/events", "/byte", "/large", "/gzip"} {
		t.Run(path[1:], func(t *testing.T) {
			req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, w.url(path), nil)
			req.Header.Set("Accept-Encoding", "gzip")
			res, err := (&http.Client{Timeout: 20 * time.Second}).Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer res.Body.Close()
			body := io.Reader(res.Body)
			if res.Header.Get("Content-Encoding") == "gzip" {
				if body, err = gzip.NewReader(res.Body); err != nil {
					t.Fatal(err)
				}
			} else if path == "/gzip" {
				t.Error("the compressed stream lost its Content-Encoding")
			}
			var took []time.Duration
			for i := range events {
				size := 0
				if path == "/large" {
					size = 100_000
				}
				want := fmt.Sprintf("data: %d %0*d\n\n", i, size, 0)
				if path == "/byte" {
					want = string(rune('a' + i%26))
				}
				begin, got := time.Now(), make([]byte, len(want))
				if _, err := io.ReadFull(body, got); err != nil || string(got) != want {
					t.Fatalf("event %d: %.40q, %v", i, got, err)
				}
				took = append(took, time.Since(begin))
				read <- struct{}{}
			}
			slices.Sort(took)
			t.Logf("from the word to send until the event is read: median %s, longest %s", took[events/2], took[events-1])
		})
	}
}

// TestEventsUntilClose is the same for an answer that ends with its connection.
func TestEventsUntilClose(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	read := make(chan struct{}, 1)
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				if n, _ := c.Read(make([]byte, 4096)); n == 0 {
					return // a check
				}
				_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
				for i := range 50 {
					fmt.Fprintf(c, "data: %02d\n\n", i)
					<-read
				}
			}()
		}
	}()
	w := startProxy(t, "http://"+ln.Addr().String())
	res, err := (&http.Client{Timeout: 20 * time.Second}).Get(w.url("/"))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	for i := range 50 {
		want := fmt.Sprintf("data: %02d\n\n", i)
		got := make([]byte, len(want))
		if _, err := io.ReadFull(res.Body, got); err != nil || string(got) != want {
			t.Fatalf("event %d: %q, %v", i, got, err)
		}
		read <- struct{}{}
	}
	if rest, err := io.ReadAll(res.Body); len(rest) > 0 || err != nil {
		t.Errorf("at the end %q, %v", rest, err)
	}
}

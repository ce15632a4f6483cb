// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
)

// feedServer serves a feed where the client expects it.
func feedServer(t *testing.T, src *source) *Client {
	t.Helper()
	url, _, _ := feeding(t, src)
	return clientOf(t, url)
}

func clientOf(t *testing.T, url string) *Client {
	t.Helper()
	c, err := NewClient(ClientOptions{Address: url})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func TestClientEvents(t *testing.T) {
	src := &source{epoch: "e"}
	c := feedServer(t, src)
	if got, err := c.Events(t.Context(), -1); err != nil || len(got) != 0 {
		t.Errorf("of none: %v, %v", got, err)
	}
	for _, text := range []string{"unproven -> healthy", "b", "c"} {
		src.add(text)
	}
	for last, want := range map[int]string{-1: "unproven -> healthy b c", 9: "unproven -> healthy b c", 2: "b c", 0: ""} {
		got, err := c.Events(t.Context(), last)
		var texts []string
		for _, e := range got {
			texts = append(texts, e.Text)
		}
		if s := strings.Join(texts, " "); err != nil || s != want {
			t.Errorf("last %d: %q, %v", last, s, err)
		}
	}
}

// What is for people is written as they would: neither the document nor the feed
// escapes a sign that means something on pages only.
func TestEventsAreReadable(t *testing.T) {
	src := &source{epoch: "e"}
	src.add("unproven -> healthy & <well>")
	url, _, _ := feeding(t, src)
	for _, path := range []string{"?follow=0", "?follow=1"} {
		r := follow(t, url+path, "")
		body := ""
		for r.in.Scan() {
			if body = r.in.Text(); strings.Contains(body, "unproven") {
				break
			}
		}
		if !strings.Contains(body, `"unproven -> healthy & <well>"`) {
			t.Errorf("%s: %s", path, body)
		}
	}
	if r := follow(t, url+"?follow=maybe", ""); r.resp.StatusCode != http.StatusBadRequest {
		t.Errorf("follow=maybe: %s", r.resp.Status)
	}
}

// A client that comes back gets what it missed, is told what nobody remembers, and
// of another process gets all.
func TestClientFollows(t *testing.T) {
	src := &source{epoch: "e"}
	for _, text := range []string{"a", "b", "c"} {
		src.add(text)
	}
	c := feedServer(t, src)
	stop := errors.New("enough")
	var f Following
	read := func(f *Following, n int) (got []string) {
		t.Helper()
		err := c.FollowEvents(t.Context(), f, func(e Event, lost uint64) error {
			if lost > 0 {
				got = append(got, fmt.Sprintf("(%d)", lost))
			}
			got = append(got, e.Text)
			if n--; n == 0 {
				return stop
			}
			return nil
		})
		if !errors.Is(err, stop) {
			t.Errorf("ended with %v", err)
		}
		return got
	}
	expect := func(got []string, want ...string) {
		t.Helper()
		if !slices.Equal(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
	}
	expect(read(&f, 2), "a", "b")
	src.add("d")
	expect(read(&f, 2), "c", "d")
	for range 3 {
		src.add("e")
	}
	src.forget(5)
	expect(read(&f, 2), "(1)", "e", "e")
	src.mu.Lock()
	src.epoch, src.first = "another", 0
	src.mu.Unlock()
	expect(read(&f, 2), "e", "e")
	one := 1
	expect(read(&Following{Last: &one}, 1), "e")

	ctx, cancel := context.WithCancel(t.Context())
	err := c.FollowEvents(ctx, new(Following), func(Event, uint64) error { cancel(); return nil })
	if err == nil {
		t.Error("no error of a follower that was stopped")
	}
}

func TestClientFollowsNobody(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		problem(w, http.StatusServiceUnavailable, CodeTooMany, "8 follow the events already")
	}))
	c := clientOf(t, s.URL)
	var f Following
	none := func(Event, uint64) error { return nil }
	if err := c.FollowEvents(t.Context(), &f, none); err == nil || err.Error() != "8 follow the events already" {
		t.Errorf("a refusal: %v", err)
	}
	s.Close()
	var gone *NotRunningError
	if err := c.FollowEvents(t.Context(), &f, none); !errors.As(err, &gone) {
		t.Errorf("nobody there: %v", err)
	}
}

// FuzzReadFeed holds the reader to what it promises of any text: no panic, no event
// that was not one, an error at the end.
func FuzzReadFeed(f *testing.F) {
	f.Add("retry: 2000\n\nid: e-0\ndata: {\"seq\":0,\"text\":\"a\"}\n\n: still here\n\nevent: lost\ndata: {\"lost\":3}\n\n")
	f.Add("data: {\"seq\":1}\ndata: \n\ndata\n\nid\n\n:\n\n\r\n\r\n")
	f.Fuzz(func(t *testing.T, text string) {
		n := 0
		err := readFeed(strings.NewReader(text), new(Following), func(Event, uint64) error { n++; return nil })
		if err == nil || errors.Is(err, io.EOF) && n > strings.Count(text, "data") {
			t.Errorf("%d events, %v", n, err)
		}
	})
}

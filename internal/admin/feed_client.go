// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// Events asks for the last events that are remembered, oldest first; last is how
// many at most, negative: all.
func (c *Client) Events(ctx context.Context, last int) ([]Event, error) {
	path := "/api/v1/events?follow=0"
	if last >= 0 {
		path += "&last=" + strconv.Itoa(last)
	}
	var out rememberedEvents
	err := c.do(ctx, http.MethodGet, path, nil, &out)
	return out.Events, err
}

// Following is where a client is in the feed of events. The zero value begins with
// all that is remembered. It is for one goroutine.
type Following struct {
	Last *int   // begin with so many of the remembered ones at most; nil: with all
	id   string // of the last event, to resume from
}

// FollowEvents calls event with what happens, from where f is on, until ctx ends,
// event returns an error, or the connection ends; then it returns why. Called
// again with the same f it goes on where it was, with what was missed meanwhile as
// far as that is remembered; lost says how many events before this one are not. Of
// another process it gets all.
func (c *Client) FollowEvents(ctx context.Context, f *Following, event func(e Event, lost uint64) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	path := "/api/v1/events"
	if f.id == "" && f.Last != nil {
		path += "?" + url.Values{"last": {strconv.Itoa(*f.Last)}}.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.base+path, nil)
	if err != nil {
		return fmt.Errorf("admin address %q: %w", c.where, err)
	}
	if f.id != "" {
		req.Header.Set("Last-Event-ID", f.id)
	}
	if c.token != "" {
		req.Header.Set("Authorization", "Bearer "+c.token)
	}
	// Not the client's own limit, which would end the feed: so long may nothing
	// come, and the feed says each 15 s that it is there.
	silence := time.AfterFunc(c.http.Timeout, func() { cancel(errSilent) })
	defer silence.Stop()
	patient := *c.http
	patient.Timeout = 0
	resp, err := patient.Do(req)
	if err != nil {
		if errors.Is(context.Cause(ctx), errSilent) {
			return fmt.Errorf("weir at %s did not answer within %v", c.where, c.http.Timeout)
		}
		return c.unreachable(ctx, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK || resp.Header.Get("Content-Type") != "text/event-stream" {
		return c.refusal(resp)
	}
	err = readFeed(&restarting{r: resp.Body, t: silence}, f, event)
	if errors.Is(context.Cause(ctx), errSilent) {
		return fmt.Errorf("weir at %s says nothing any more: %w", c.where, errSilent)
	}
	var own *handlerError
	if errors.As(err, &own) {
		return own.err
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return fmt.Errorf("weir at %s ended the feed of events: %w", c.where, err)
}

var errSilent = errors.New("nothing came for too long")

// restarting gives a feed its time anew with all that comes.
type restarting struct {
	r io.Reader
	t *time.Timer
}

// Read implements io.Reader.
func (r *restarting) Read(p []byte) (int, error) {
	n, err := r.r.Read(p)
	r.t.Reset(3 * feedHeartbeat)
	return n, err
}

// handlerError is an error of whom the events are for.
type handlerError struct{ err error }

func (h *handlerError) Error() string { return h.err.Error() }
func (h *handlerError) Unwrap() error { return h.err }

// maxFeedLine bounds a line of a feed: texts of events are short.
const maxFeedLine = 1 << 20

// readFeed reads server-sent events (the HTML standard, section 9.2.6) until r
// ends. Its error is never nil: io.EOF, r's, or a *handlerError.
func readFeed(r io.Reader, f *Following, event func(Event, uint64) error) error {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxFeedLine)
	var id, kind string
	var data []byte
	lost := uint64(0)
	for lines.Scan() {
		line := lines.Bytes()
		if len(line) > 0 {
			name, value, _ := bytes.Cut(line, []byte(":"))
			value = bytes.TrimPrefix(value, []byte(" "))
			switch string(name) {
			case "id":
				id = string(value)
			case "event":
				kind = string(value)
			case "data":
				data = append(append(data, value...), '\n')
			}
			continue // others, and comments, are nothing
		}
		switch kind {
		case "lost":
			var n struct{ Lost uint64 }
			if json.Unmarshal(data, &n) == nil {
				lost += n.Lost
			}
		case "", "message":
			var e Event
			if len(data) == 0 || json.Unmarshal(data, &e) != nil {
				break
			}
			if id != "" {
				f.id = id
			}
			if err := event(e, lost); err != nil {
				return &handlerError{err}
			}
			lost = 0
		}
		id, kind, data = "", "", data[:0]
	}
	if err := lines.Err(); err != nil {
		return err
	}
	return io.EOF
}

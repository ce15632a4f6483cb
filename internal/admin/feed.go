// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// EventSource is a Controller that remembers what happened.
type EventSource interface {
	// FollowEvents returns the remembered events from a number on, oldest first, and a
	// channel that is closed when there are newer ones.
	FollowEvents(from uint64) (list []Event, more <-chan struct{})
	// EventEpoch names the run of the process: numbers of another are others.
	EventEpoch() string
}

// Event is something that happened: a backend that changed state, a pool in
// panic, the process draining.
type Event struct {
	Seq     uint64    `json:"seq"` // ascending from 0 on; a gap has been forgotten
	At      time.Time `json:"at"`
	Kind    string    `json:"kind"`
	Pool    string    `json:"pool,omitempty"`    // empty: the process as a whole
	Backend string    `json:"backend,omitempty"` // empty: the pool as a whole
	Text    string    `json:"text"`
}

// rememberedEvents are the events without those to come.
type rememberedEvents struct {
	Epoch  string  `json:"epoch"` // the run of the process that numbers belong to
	Events []Event `json:"events"`
}

const (
	maxFeeds      = 8 // of the address's connections; the others stay for calls
	feedHeartbeat = 15 * time.Second
	feedWrite     = 5 * time.Second // a reader that takes nothing for so long is dropped
	feedRetry     = 2 * time.Second // when a client is told to come back
)

// feed serves the events as server-sent events (the HTML standard, section 9.2).
// The id of each is EPOCH-SEQ; a client that comes back with it as Last-Event-ID
// gets what it missed, as far as that is remembered. A new one gets all that is
// remembered, or the last N with ?last=N. A comment each 15 s keeps the connection
// from idling. With ?follow=0 what is remembered is one JSON document instead.
type feed struct {
	src       EventSource
	open      atomic.Int32
	stopped   <-chan struct{} // closed when the server closes
	heartbeat time.Duration
	patience  time.Duration // with a reader that takes nothing
}

// registerFeed serves the feed, if there are events. closing ends those that are
// followed, and those that begin later.
func registerFeed(mux *http.ServeMux, ctl Controller, open *followers) (closing func()) {
	stop := make(chan struct{})
	if src, ok := ctl.(EventSource); ok {
		f := &feed{src: src, stopped: stop, heartbeat: feedHeartbeat, patience: feedWrite}
		mux.Handle("/api/v1/events", only(open.follow(f.ServeHTTP), http.MethodGet))
	}
	return sync.OnceFunc(func() { close(stop) })
}

func (f *feed) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	last := -1
	if s := r.URL.Query().Get("last"); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil || n < 0 {
			problem(w, http.StatusBadRequest, CodeBadBody, "last is a whole number from 0 on")
			return
		}
		last = n
	}
	switch follow := r.URL.Query().Get("follow"); follow {
	case "", "1", "true":
	case "0", "false":
		list, _ := f.src.FollowEvents(0)
		if last >= 0 {
			list = list[max(len(list)-last, 0):]
		}
		if list == nil {
			list = []Event{}
		}
		writeJSON(w, rememberedEvents{Epoch: f.src.EventEpoch(), Events: list})
		return
	default:
		problem(w, http.StatusBadRequest, CodeBadBody, fmt.Sprintf("follow is %q: use 1 or 0", follow))
		return
	}
	if f.open.Add(1) > maxFeeds {
		f.open.Add(-1)
		w.Header().Set("Retry-After", "5")
		problem(w, http.StatusServiceUnavailable, CodeTooMany, fmt.Sprintf("%d follow the events already", maxFeeds))
		return
	}
	defer f.open.Add(-1)
	h := w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("X-Accel-Buffering", "no") // a proxy before this address must not wait for more
	out := &feedWriter{w: w, c: http.NewResponseController(w), patience: f.patience}
	if r.Method == http.MethodHead {
		return
	}
	_ = out.c.SetReadDeadline(time.Time{}) // there is nothing to be read; the write deadlines end it
	out.text(fmt.Sprintf("retry: %d\n\n", feedRetry.Milliseconds()))
	f.follow(out, r, last)
}

// follow sends until the client, or the server, goes.
func (f *feed) follow(out *feedWriter, r *http.Request, last int) {
	epoch := f.src.EventEpoch()
	next, known := resume(r, epoch)
	list, more := f.src.FollowEvents(next)
	if !known && last >= 0 && len(list) > last {
		next = list[len(list)-last-1].Seq + 1
		list = list[len(list)-last:]
	}
	beat := time.NewTicker(f.heartbeat)
	defer beat.Stop()
	for {
		for i := range list {
			if seq := list[i].Seq; seq > next && (known || next > 0) {
				out.text(fmt.Sprintf("event: lost\ndata: {\"lost\":%d}\n\n", seq-next))
			}
			out.event(epoch, &list[i])
			next, known = list[i].Seq+1, true
		}
		if out.flush(); out.err != nil {
			return
		}
		select {
		case <-more:
		case <-beat.C:
			out.text(": still here\n\n")
		case <-r.Context().Done():
			return
		case <-f.stopped:
			return
		}
		list, more = f.src.FollowEvents(next)
	}
}

// resume returns where a client that comes back left off.
func resume(r *http.Request, epoch string) (next uint64, known bool) {
	of, seq, ok := strings.Cut(r.Header.Get("Last-Event-ID"), "-")
	if !ok || of != epoch {
		return 0, false
	}
	n, err := strconv.ParseUint(seq, 10, 63)
	return n + 1, err == nil
}

// feedWriter writes with a deadline for each piece. The first error stays.
type feedWriter struct {
	w        http.ResponseWriter
	c        *http.ResponseController
	patience time.Duration
	err      error
}

func (o *feedWriter) text(s string) {
	if o.err == nil {
		o.err = o.c.SetWriteDeadline(time.Now().Add(o.patience))
	}
	if o.err == nil {
		_, o.err = o.w.Write([]byte(s))
	}
}

func (o *feedWriter) event(epoch string, e *Event) {
	body, err := encoded(e)
	if err != nil { // texts, numbers and a time: cannot happen
		o.err = err
		return
	}
	o.text(fmt.Sprintf("id: %s-%d\ndata: %s\n\n", epoch, e.Seq, body))
}

func (o *feedWriter) flush() {
	if o.err == nil {
		o.err = o.c.Flush()
	}
}

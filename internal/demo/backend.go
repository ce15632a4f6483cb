// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// finishWithin bounds how long requests in flight may take once the listener
// has closed.
const finishWithin = 30 * time.Second

// Options describes one demonstration backend.
type Options struct {
	Listen      string        // host:port; port 0 takes a free one
	Name        string        // what it calls itself; empty means the bound address
	Delay       time.Duration // work of a request; its answer comes that much later
	Spread      Spread        // how work is distributed about Delay; "" means SpreadFixed
	Concurrency int           // requests worked on at once, the others wait in order of arrival; 0 means no limit
	Seed        uint64        // of the spread; 0 means another one in every process
	ErrorRate   float64       // share of answers that are 500, 0..1
	Drain       time.Duration // how long it goes on serving after Stop; 0 closes at once
	IdleTimeout time.Duration // kept connections are closed after this long without a request; 0 means never
	Controls    bool          // POST /break and POST /mend are answered (the demo only)
	Logger      *slog.Logger  // nil discards
}

// Backend is one running demonstration backend. Its methods are safe for
// concurrent use.
type Backend struct {
	// Constant after NewBackend.
	opt      Options
	log      *slog.Logger
	listener net.Listener
	server   *http.Server
	work     *work
	failed   chan error // the server's own failure, at most one

	stop      chan struct{} // closed by Stop
	hurry     chan struct{} // closed by Hurry
	stopOnce  sync.Once
	hurryOnce sync.Once

	notReady    atomic.Bool
	closing     atomic.Bool // answers carry Connection: close
	broken      atomic.Bool
	requests    atomic.Int64
	lastRequest atomic.Int64 // wall clock, Unix nanoseconds; 0 for none yet
}

// NewBackend binds the address. The backend answers once Run is called.
func NewBackend(opt Options) (*Backend, error) {
	l, err := net.Listen("tcp", opt.Listen)
	if err != nil {
		return nil, fmt.Errorf("backend: %w", err)
	}
	if opt.Name == "" {
		opt.Name = l.Addr().String()
	}
	log := opt.Logger
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	b := &Backend{
		opt: opt, log: log.With("backend", opt.Name), listener: l, work: newWork(opt.Delay, opt.Spread, opt.Concurrency, opt.Seed),
		failed: make(chan error, 1), stop: make(chan struct{}), hurry: make(chan struct{}),
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/livez", func(w http.ResponseWriter, _ *http.Request) { answer(w, http.StatusOK, "ok") })
	mux.HandleFunc("/readyz", b.serveReady)
	if opt.Controls {
		mux.HandleFunc("POST /break", b.serveBreak(true))
		mux.HandleFunc("POST /mend", b.serveBreak(false))
	}
	mux.HandleFunc("/", b.serveHello)
	b.server = &http.Server{
		Handler:           b.wrap(mux),
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       idle(opt.IdleTimeout),
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	return b, nil
}

// idle translates 0 (never) into what net/http calls never: its own 0 would
// fall back to ReadTimeout, which is 0 here, but only as long as nobody sets
// one.
func idle(d time.Duration) time.Duration {
	if d <= 0 {
		return -1
	}
	return d
}

// Name returns what the backend calls itself.
func (b *Backend) Name() string { return b.opt.Name }

// Addr returns the bound address as host:port.
func (b *Backend) Addr() string { return b.listener.Addr().String() }

// Stop begins the drain: not ready at once, the rest in order. It returns
// immediately; Run returns when all is done. Later calls do nothing.
func (b *Backend) Stop() {
	b.stopOnce.Do(func() {
		b.notReady.Store(true)
		close(b.stop)
	})
}

// Hurry cuts the wait before the listener closes short. It implies Stop.
func (b *Backend) Hurry() {
	b.Stop()
	b.hurryOnce.Do(func() { close(b.hurry) })
}

// Run serves until Stop and then drains; it returns nil after an orderly end.
func (b *Backend) Run() error {
	go func() { b.failed <- b.server.Serve(b.listener) }()
	select {
	case err := <-b.failed:
		return fmt.Errorf("backend: %w", err)
	case <-b.stop:
	}
	b.log.Info("draining: not ready, still serving", "drain", b.opt.Drain)
	b.wait()
	closedAt := time.Now()
	if b.opt.Drain <= 0 {
		// The rude way, for showing what draining is good for.
		err := b.server.Close()
		<-b.failed
		b.logClosed(closedAt)
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), finishWithin)
	defer cancel()
	err := b.server.Shutdown(ctx) // closes the listener first, then waits
	<-b.failed
	b.logClosed(closedAt)
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("backend: requests still running after %s were cut", finishWithin)
	}
	return err
}

// wait is the drain window: the last quarter of it says Connection: close.
func (b *Backend) wait() {
	if b.opt.Drain <= 0 {
		return
	}
	closing := time.NewTimer(b.opt.Drain - b.opt.Drain/4)
	defer closing.Stop()
	end := time.NewTimer(b.opt.Drain)
	defer end.Stop()
	for {
		select {
		case <-closing.C:
			b.closing.Store(true)
		case <-end.C:
			return
		case <-b.hurry:
			b.closing.Store(true)
			return
		}
	}
}

func (b *Backend) logClosed(at time.Time) {
	last := "never"
	if n := b.lastRequest.Load(); n != 0 {
		last = time.Unix(0, n).UTC().Format(time.RFC3339Nano)
	}
	b.log.Info("listener closed", "closed_at", at.UTC().Format(time.RFC3339Nano),
		"last_request", last, "requests", b.requests.Load())
}

// wrap applies what holds for every path.
func (b *Backend) wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if b.broken.Load() && r.URL.Path != "/mend" {
			reset(w)
			return
		}
		if b.closing.Load() {
			w.Header().Set("Connection", "close")
		}
		next.ServeHTTP(w, r)
	})
}

// reset drops the connection as a crashed process would.
func reset(w http.ResponseWriter) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(http.ErrAbortHandler) // closes the connection
	}
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = conn.Close()
}

func (b *Backend) serveReady(w http.ResponseWriter, _ *http.Request) {
	if b.notReady.Load() {
		answer(w, http.StatusServiceUnavailable, "draining")
		return
	}
	answer(w, http.StatusOK, "ready")
}

func (b *Backend) serveBreak(broken bool) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		b.broken.Store(broken)
		if broken {
			answer(w, http.StatusOK, b.opt.Name+" now resets every connection; POST /mend ends it")
			return
		}
		answer(w, http.StatusOK, b.opt.Name+" works again")
	}
}

func (b *Backend) serveHello(w http.ResponseWriter, r *http.Request) {
	b.requests.Add(1)
	b.lastRequest.Store(time.Now().UnixNano())
	// The whole request first: an answer before its end would cut clients short.
	if _, err := io.Copy(io.Discard, r.Body); err != nil {
		panic(http.ErrAbortHandler) // the client broke off; there is nobody to answer
	}
	if b.opt.Delay > 0 {
		t := time.NewTimer(time.Until(b.work.take(time.Now())))
		defer t.Stop()
		select {
		case <-t.C:
		case <-r.Context().Done():
			return
		}
	}
	if b.opt.ErrorRate > 0 && rand.Float64() < b.opt.ErrorRate {
		answer(w, http.StatusInternalServerError, "error from "+b.opt.Name+" (--error-rate)")
		return
	}
	text := "hello from " + b.opt.Name
	if xff := r.Header.Get("X-Forwarded-For"); xff != "" {
		text += " to " + xff
	}
	answer(w, http.StatusOK, text)
}

func answer(w http.ResponseWriter, status int, text string) {
	text += "\n"
	h := w.Header()
	h.Set("Content-Type", "text/plain; charset=utf-8")
	h.Set("Content-Length", strconv.Itoa(len(text)))
	w.WriteHeader(status)
	_, _ = w.Write([]byte(text)) // a client that left is its own affair
}

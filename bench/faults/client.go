// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// sample is what became of one request.
type sample struct {
	id         string
	method     string
	due        time.Time
	took       time.Duration // since it was due, so that a stall is not hidden
	bad        string        // "" when the whole right answer came with 200
	late       time.Duration // it was sent so long after it was due: the client's own fault
	by         string        // the backend that answered
	retryAfter bool
}

// load is an open-loop client: requests leave at their due instants, spread as
// Poisson's, whatever becomes of those before. It repeats nothing by itself.
type load struct {
	addr    string  // of the balancer
	from    string  // source address; "" leaves it to the kernel
	path    string  // "" is /w
	rate    float64 // requests per second at the start
	posts   float64 // share of them that are POST, which must not be repeated
	patient time.Duration
	seed    uint64

	dice *rand.Rand // of the goroutine that sends
	n    int
	pace atomic.Uint64 // bits of the rate now
	stop atomic.Bool
	mu   sync.Mutex
	idle []*kept  // guarded by mu
	all  []sample // guarded by mu
	wg   sync.WaitGroup
}

type kept struct {
	net.Conn
	r *bufio.Reader
}

// prepare fills in what was left out.
func (l *load) prepare() {
	if l.patient == 0 {
		l.patient = 10 * time.Second
	}
	if l.path == "" {
		l.path = "/w"
	}
	l.dice = rand.New(rand.NewPCG(l.seed, 7))
	l.setRate(l.rate)
}

// start sends in the background until end.
func (l *load) start() {
	l.prepare()
	l.wg.Go(func() {
		due := time.Now()
		for {
			rate := math.Float64frombits(l.pace.Load())
			due = due.Add(time.Duration(l.dice.ExpFloat64() / rate * float64(time.Second)))
			time.Sleep(time.Until(due))
			if l.stop.Load() {
				return
			}
			l.sendAt(due)
		}
	})
}

func (l *load) setRate(r float64) { l.pace.Store(math.Float64bits(r)) }

// sendAt sends the next request, due at an instant that may lie ahead.
func (l *load) sendAt(due time.Time) {
	s := sample{id: fmt.Sprintf("%d-%d", l.seed, l.n), method: "GET", due: due}
	l.n++
	if l.dice.Float64() < l.posts {
		s.method = "POST"
	}
	l.wg.Go(func() {
		time.Sleep(time.Until(due))
		l.one(s)
	})
}

// burst sends n requests within spread of at, and returns when all have an end.
func (l *load) burst(n int, at time.Time, spread time.Duration) {
	for range n {
		l.sendAt(at.Add(time.Duration((l.dice.Float64()*2 - 1) * float64(spread))))
	}
	l.wg.Wait()
}

// end stops sending and returns when every request has an end.
func (l *load) end() []sample {
	l.stop.Store(true)
	l.wg.Wait()
	for _, c := range l.idle {
		c.Close()
	}
	return l.all
}

func (l *load) one(s sample) {
	s.late = time.Since(s.due)
	s.bad = l.ask(&s)
	s.took = time.Since(s.due)
	l.mu.Lock()
	l.all = append(l.all, s)
	l.mu.Unlock()
}

// ask sends one request and returns what was wrong with its answer.
func (l *load) ask(s *sample) string {
	c, err := l.conn()
	if err != nil {
		return "connect: " + plain(err)
	}
	_ = c.SetDeadline(time.Now().Add(l.patient))
	head := s.method + " " + l.path + "?id=" + s.id + " HTTP/1.1\r\nHost: app.example\r\n"
	if s.method == "POST" {
		head += "Content-Length: 4\r\n\r\nbody"
	} else {
		head += "\r\n"
	}
	if _, err := io.WriteString(c, head); err != nil {
		c.Close()
		return "send: " + plain(err)
	}
	resp, err := http.ReadResponse(c.r, nil)
	if err != nil {
		c.Close()
		return "no answer: " + plain(err)
	}
	text, err := io.ReadAll(resp.Body)
	s.retryAfter = resp.Header.Get("Retry-After") != ""
	switch {
	case err != nil:
		c.Close()
		return "cut answer: " + plain(err)
	case resp.Close:
		c.Close()
	default:
		l.keep(c)
	}
	if resp.StatusCode != 200 {
		return strconv.Itoa(resp.StatusCode)
	}
	by, id, _ := strings.Cut(string(text), " ")
	s.by = strings.TrimPrefix(by, "by=")
	if !strings.HasPrefix(id, "id="+s.id+" ") {
		return "wrong answer"
	}
	return ""
}

func plain(err error) string {
	var timeout net.Error
	switch {
	case errors.As(err, &timeout) && timeout.Timeout():
		return "timeout"
	case errors.Is(err, syscall.ECONNRESET):
		return "reset"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "refused"
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF), errors.Is(err, os.ErrClosed):
		return "closed"
	}
	return err.Error()
}

// conn returns a kept connection that still stands, or a new one.
func (l *load) conn() (*kept, error) {
	for {
		l.mu.Lock()
		n := len(l.idle)
		if n == 0 {
			l.mu.Unlock()
			break
		}
		c := l.idle[n-1]
		l.idle = l.idle[:n-1]
		l.mu.Unlock()
		if c.quiet() {
			return c, nil
		}
		c.Close()
	}
	d := net.Dialer{Timeout: l.patient}
	if l.from != "" {
		d.LocalAddr = &net.TCPAddr{IP: net.ParseIP(l.from)}
	}
	c, err := d.Dial("tcp", l.addr)
	if err != nil {
		return nil, err
	}
	return &kept{c, bufio.NewReaderSize(c, 1024)}, nil
}

func (l *load) keep(c *kept) {
	l.mu.Lock()
	l.idle = append(l.idle, c)
	l.mu.Unlock()
}

// quiet says whether nothing came on an idle connection: no end, and no bytes
// that nobody asked for (those would be taken for the next answer; a client that
// reads them by mistake is what the case of over-long answers is about, so they
// are left to be read).
func (c *kept) quiet() bool {
	raw, err := c.Conn.(*net.TCPConn).SyscallConn()
	if err != nil {
		return false
	}
	ok := false
	_ = raw.Read(func(fd uintptr) bool {
		var one [1]byte
		n, _, err := syscall.Recvfrom(int(fd), one[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		ok = errors.Is(err, syscall.EAGAIN) || err == nil && n > 0
		return true
	})
	return ok
}

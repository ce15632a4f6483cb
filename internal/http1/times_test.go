// SPDX-License-Identifier: Apache-2.0

package http1

import (
	"errors"
	"io"
	"net"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirlb/weir/internal/message"
	"github.com/weirlb/weir/internal/netconn"
)

// times are S7's defaults.
var times = Timeouts{
	Header: 10 * time.Second, Idle: 75 * time.Second, Write: 30 * time.Second,
	BodyMinRate: 240, BodyGrace: 10 * time.Second,
}

// piped runs f against a server in a bubble with a clock of its own, over an
// in-memory connection, and checks that everything ends.
func piped(t *testing.T, s *Server, f func(t *testing.T, c net.Conn, heard func() []*Error)) {
	synctest.Test(t, func(t *testing.T) {
		var bad []*Error
		s.OnBadRequest = func(_ *ServerConn, e *Error) { bad = append(bad, e) }
		client, server := net.Pipe()
		go s.Serve(netconn.New(server), nil)
		f(t, client, func() []*Error { synctest.Wait(); return bad })
		client.Close()
		s.CloseAll()
		s.Wait()
		time.Sleep(time.Minute) // writers in the tests see the end
	})
}

// readAll returns what comes until the end, and how long that took.
func readAll(c net.Conn) (string, time.Duration) {
	start := time.Now()
	b, _ := io.ReadAll(c)
	return string(b), time.Since(start)
}

func TestHeaderTimeout(t *testing.T) {
	for _, c := range []struct {
		name, sent string
		after      time.Duration // from the last byte
		want       string        // start of the answer
		reason     bool
	}{
		{"silence", "", 10 * time.Second, "", true},
		{"half a head", "GET / HTTP/1.1\r\nHost:", 10 * time.Second, "HTTP/1.1 408 Request Timeout\r\n", true},
		{"a stray line end", "\r\n", 10 * time.Second, "", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			piped(t, &Server{Handler: echo, Timeouts: times}, func(t *testing.T, conn net.Conn, heard func() []*Error) {
				if c.sent != "" {
					io.WriteString(conn, c.sent)
				}
				got, took := readAll(conn)
				if !strings.HasPrefix(got, c.want) || c.want == "" && got != "" || took != c.after {
					t.Errorf("%q after %v, want %q after %v", got, took, c.want, c.after)
				}
				if bad := heard(); (len(bad) == 1 && bad[0].Reason == message.HeaderTimeout) != c.reason {
					t.Errorf("heard %v", bad)
				}
			})
		})
	}
}

// TestHeaderTimeoutIsTotal: one byte a second does not extend the time, which
// starts with a later request's first byte and not with its connection.
func TestHeaderTimeoutIsTotal(t *testing.T) {
	piped(t, &Server{Handler: echo, Timeouts: times}, func(t *testing.T, c net.Conn, heard func() []*Error) {
		io.WriteString(c, "GET /1 HTTP/1.1\r\nHost: x\r\n\r\n")
		io.ReadFull(c, make([]byte, len(ok("GET /1 "))))
		time.Sleep(60 * time.Second)
		go func() {
			for _, b := range []byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n") {
				if _, err := c.Write([]byte{b}); err != nil {
					return
				}
				time.Sleep(time.Second)
			}
		}()
		if got, took := readAll(c); !strings.HasPrefix(got, "HTTP/1.1 408 ") || took != 10*time.Second {
			t.Errorf("%q after %v", got, took)
		}
	})
}

func TestIdleTimeout(t *testing.T) {
	piped(t, &Server{Handler: echo, Timeouts: times}, func(t *testing.T, c net.Conn, heard func() []*Error) {
		io.WriteString(c, "GET /1 HTTP/1.1\r\nHost: x\r\n\r\n")
		io.ReadFull(c, make([]byte, len(ok("GET /1 "))))
		if got, took := readAll(c); got != "" || took != 75*time.Second {
			t.Errorf("%q after %v", got, took)
		}
		if bad := heard(); len(bad) > 0 {
			t.Errorf("an idle connection is no error: %v", bad)
		}
	})
}

func TestBodyRate(t *testing.T) {
	head := "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n"
	for _, c := range []struct {
		name  string
		piece int           // bytes
		every time.Duration // apart
		cut   bool
		after time.Duration // of the cut
	}{
		{"nothing", 0, time.Second, true, 10 * time.Second},
		{"a byte a second", 1, time.Second, true, 10*time.Second + 40*time.Millisecond},
		{"too slow", 200, time.Second, true, 54 * time.Second},
		{"just fast enough", 241, time.Second, false, 0},
		{"in bursts", 2400, 9900 * time.Millisecond, false, 0},
		{"in bursts too far apart", 100000 / 2, 10001 * time.Millisecond, true, 10 * time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			var result error
			s := &Server{Timeouts: times, Handler: func(c *ServerConn) {
				for {
					_, err := c.ReadBody()
					if err != nil {
						result = err
						answer(c, 408, "slow")
						return
					}
				}
			}}
			piped(t, s, func(t *testing.T, conn net.Conn, heard func() []*Error) {
				start := time.Now()
				go func() {
					io.WriteString(conn, head)
					for left := 100000; left > 0; time.Sleep(c.every) {
						n := min(left, c.piece)
						if _, err := conn.Write([]byte(strings.Repeat("a", n))); err != nil {
							return
						}
						left -= n
					}
				}()
				buf := make([]byte, 100)
				n, _ := conn.Read(buf)
				took := time.Since(start)
				synctest.Wait()
				var e *Error
				if cut := errors.As(result, &e) && e.Reason == message.BodyTimeout; cut != c.cut {
					t.Errorf("%v after %v: %q", result, took, buf[:n])
				}
				if c.after > 0 && (took < c.after || took > c.after+2*time.Second) {
					t.Errorf("cut after %v, want %v", took, c.after)
				}
				conn.Close()
			})
		})
	}
}

// TestBodyRateExemptsUs: time that the handler takes is not the client's.
func TestBodyRateExemptsUs(t *testing.T) {
	var result error
	s := &Server{Timeouts: times, Handler: func(c *ServerConn) {
		for result == nil {
			time.Sleep(time.Minute)
			_, result = c.ReadBody()
		}
		answer(c, 200, "x")
	}}
	piped(t, s, func(t *testing.T, conn net.Conn, _ func() []*Error) {
		go func() {
			io.WriteString(conn, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\n")
			for range 3 {
				io.WriteString(conn, "a")
				time.Sleep(2 * time.Second)
			}
		}()
		io.ReadFull(conn, make([]byte, len(ok("x"))))
		if !errors.Is(result, io.EOF) {
			t.Errorf("content ended with %v", result)
		}
	})
}

// TestWriteTimeout: a client that stops reading is cut, at the latest after
// twice the time (when it stopped in the midst of a write), and so is one that
// trickles; one that reads slowly is not, as long as it takes 240 bytes a second.
func TestWriteTimeout(t *testing.T) {
	for _, c := range []struct {
		name  string
		piece int           // what the client reads; 0: 50 bytes and no more
		every time.Duration // apart
		rate  int64
		cut   time.Duration // at the latest; 0: not
	}{
		{"stops", 0, 0, 240, time.Minute},
		{"a byte a second", 1, time.Second, 240, time.Minute},
		{"a little within each deadline", 10, 29 * time.Second, 240, 90 * time.Second},
		{"too slow", 200, time.Second, 240, 4 * time.Minute},
		{"just fast enough", 241, time.Second, 240, 0},
		{"in lumps", 7200, 29 * time.Second, 240, 0},
		{"slowly, and no rate is asked for", 1000, 29 * time.Second, 0, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			set := times
			set.BodyMinRate = c.rate
			var result error
			var took time.Duration
			s := &Server{Timeouts: set, Handler: func(c *ServerConn) {
				start := time.Now()
				result = c.WriteHead(&message.Response{Status: 200, Body: message.Sized, ContentLength: 100_000}, nil, false)
				if result == nil {
					result = c.WriteBody(make([]byte, 100_000), true)
				}
				took = time.Since(start)
			}}
			piped(t, s, func(t *testing.T, conn net.Conn, _ func() []*Error) {
				io.WriteString(conn, "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
				if c.piece == 0 {
					io.ReadFull(conn, make([]byte, 50))
					time.Sleep(2 * time.Minute)
				}
				for buf := make([]byte, c.piece); c.piece > 0; time.Sleep(c.every) {
					if _, err := conn.Read(buf); err != nil {
						break
					}
				}
				synctest.Wait()
				var e *Error
				switch {
				case c.cut == 0 && result != nil:
					t.Errorf("cut after %v: %v", took, result)
				case c.cut > 0 && (!errors.As(result, &e) || e.Reason != message.WriteTimeout || took < 30*time.Second || took > c.cut):
					t.Errorf("after %v: %v", took, result)
				}
			})
		})
	}
}

// TestCancelRead: a handler's second goroutine stops waiting for content.
func TestCancelRead(t *testing.T) {
	s := &Server{Timeouts: times, Handler: func(c *ServerConn) {
		read := make(chan error)
		go func() {
			_, err := c.ReadBody()
			read <- err
		}()
		time.Sleep(time.Second)
		c.CancelRead()
		if err := <-read; !errors.Is(err, errCancelled) {
			panic(err)
		}
		answer(c, 200, "x")
	}}
	piped(t, s, func(t *testing.T, conn net.Conn, _ func() []*Error) {
		io.WriteString(conn, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\n")
		want := "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nConnection: close\r\n\r\nx"
		if got, _ := readAll(conn); got != want {
			t.Errorf("%q", got)
		}
	})
}

// TestPauseRead: a handler's second goroutine stops waiting for content for a while, and
// goes on where it was; the connection lives on.
func TestPauseRead(t *testing.T) {
	s := &Server{Timeouts: times, Handler: func(c *ServerConn) {
		read := make(chan error)
		go func() {
			_, err := c.ReadBody()
			for err == nil {
				_, err = c.ReadBody()
			}
			read <- err
		}()
		time.Sleep(time.Second)
		c.PauseRead()
		if err := <-read; !errors.Is(err, errPaused) {
			panic(err)
		}
		if _, err := c.ReadBody(); !errors.Is(err, errPaused) {
			panic(err)
		}
		c.ResumeRead()
		p, err := c.ReadBody()
		answer(c, 200, string(p)+" "+strconv.FormatBool(err == nil))
	}}
	piped(t, s, func(t *testing.T, conn net.Conn, _ func() []*Error) {
		io.WriteString(conn, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nab")
		time.Sleep(2 * time.Second)
		io.WriteString(conn, "c")
		want := "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nc true"
		got := make([]byte, len(want))
		if io.ReadFull(conn, got); string(got) != want {
			t.Errorf("%q", got)
		}
	})
}

// TestDrainSpread: idle connections are closed evenly over the duration, and
// one that is busy ends with its answer.
func TestDrainSpread(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &Server{Timeouts: times, Handler: func(c *ServerConn) {
			if string(c.Request().Path) == "/slow" {
				time.Sleep(20 * time.Second)
			}
			echo(c)
		}}
		const n = 40
		ended := make(chan time.Time, n)
		start := time.Now()
		for range n {
			client, server := net.Pipe()
			go s.Serve(netconn.New(server), nil)
			io.WriteString(client, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
			io.ReadFull(client, make([]byte, len(ok("GET / "))))
			go func() {
				io.Copy(io.Discard, client)
				ended <- time.Now()
			}()
		}
		busy, server := net.Pipe()
		go s.Serve(netconn.New(server), nil)
		io.WriteString(busy, "GET /slow HTTP/1.1\r\nHost: x\r\n\r\n")
		synctest.Wait()
		s.Drain(10 * time.Second)
		var halfway int
		for range n {
			at := (<-ended).Sub(start)
			if at <= 5*time.Second {
				halfway++
			}
			if at > 10*time.Second {
				t.Errorf("closed after %v", at)
			}
		}
		if halfway < n/2-4 || halfway > n/2+4 {
			t.Errorf("%d of %d were closed halfway", halfway, n)
		}
		want := "HTTP/1.1 200 OK\r\nContent-Length: 10\r\nConnection: close\r\n\r\nGET /slow "
		if got, _ := readAll(busy); got != want {
			t.Errorf("the busy one got %q", got)
		}
		s.Wait()
	})
}

func TestDrainAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &Server{Timeouts: times, Handler: echo}
		client, server := net.Pipe()
		go s.Serve(netconn.New(server), nil)
		synctest.Wait()
		s.Drain(0)
		if got, took := readAll(client); got != "" || took != firstGrace { // it was new
			t.Errorf("%q after %v", got, took)
		}
		// What comes later is still answered, once.
		client, server = net.Pipe()
		go s.Serve(netconn.New(server), nil)
		io.WriteString(client, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
		if got, _ := readAll(client); got != "HTTP/1.1 200 OK\r\nContent-Length: 6\r\nConnection: close\r\n\r\nGET / " {
			t.Errorf("%q", got)
		}
		s.Wait()
	})
}

// SPDX-License-Identifier: Apache-2.0

package l4

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/weirlb/weir/internal/clock"
	"github.com/weirlb/weir/internal/message"
	"github.com/weirlb/weir/internal/netconn"
	"github.com/weirlb/weir/internal/observe"
	"github.com/weirlb/weir/internal/weirtest"
	"github.com/weirlb/weir/pool"
)

// secured is a backend that speaks TLS.
func secured(t *testing.T, cfg *tls.Config, serve func(*tls.Conn)) string {
	t.Helper()
	return server(t, func(c *net.TCPConn) {
		s := tls.Server(c, cfg)
		if s.Handshake() == nil {
			serve(s)
		}
	})
}

func echoTLS(c *tls.Conn) {
	_, _ = io.Copy(struct{ io.Writer }{c}, struct{ io.Reader }{c})
	_ = c.Close()
}

// verified has a rig's backends spoken to in TLS, and verified.
func verified(ca *weirtest.Authority) func(*rig, *pool.Config) {
	return func(r *rig, _ *pool.Config) { r.ups.TLS = &tls.Config{RootCAs: ca.Pool(), ServerName: "db.test"} }
}

// A plain client beside a backend with TLS: both halves end one after the other, of a
// client that came whole and of one that came as a descriptor.
func TestSecureBackend(t *testing.T) {
	ca := weirtest.NewAuthority(t)
	addr := secured(t, &tls.Config{Certificates: []tls.Certificate{ca.Issue("db.test")}}, func(c *tls.Conn) {
		all, err := io.ReadAll(c) // until the client has ended its half
		if err == nil {
			_, _ = c.Write(append(all, " and all"...))
		}
		_ = c.Close()
	})
	r := newRig(t, []string{addr}, verified(ca))
	for range 4 {
		c := r.dial()
		say(t, c, "hello")
		_ = c.CloseWrite()
		hear(t, c, "hello and all")
		ends(t, c, false)
		if rec := r.want(message.OK, 5, 13); rec.Attempts != 1 || rec.Connect == 0 || rec.Detail != "" {
			t.Errorf("%+v", rec)
		}
	}
}

// The other half: the backend ends first, and the client goes on.
func TestSecureBackendEndsFirst(t *testing.T) {
	ca := weirtest.NewAuthority(t)
	heard := make(chan string, 1)
	addr := secured(t, &tls.Config{Certificates: []tls.Certificate{ca.Issue("db.test")}}, func(c *tls.Conn) {
		_, _ = io.WriteString(c, "bye")
		_ = c.CloseWrite()
		all, _ := io.ReadAll(c)
		heard <- string(all)
	})
	r := newRig(t, []string{addr}, verified(ca))
	c := r.dial()
	hear(t, c, "bye")
	ends(t, c, false)
	say(t, c, "still here")
	_ = c.CloseWrite()
	if got := <-heard; got != "still here" {
		t.Errorf("the backend heard %q", got)
	}
	r.want(message.OK, 10, 3)
}

// What is offered in ALPN is what the client has agreed on, and else nothing. A backend
// that does not know it refuses.
func TestSecureBackendProtocol(t *testing.T) {
	ca := weirtest.NewAuthority(t)
	own := ca.Issue("db.test")
	offered := make(chan []string, 8)
	addr := secured(t, &tls.Config{GetConfigForClient: func(h *tls.ClientHelloInfo) (*tls.Config, error) {
		offered <- h.SupportedProtos
		return &tls.Config{Certificates: []tls.Certificate{own}, NextProtos: []string{"imap"}}, nil
	}}, echoTLS)
	front := func(protocols ...string) *rig {
		return newRig(t, []string{addr}, func(r *rig, c *pool.Config) {
			verified(ca)(r, c)
			r.wrap = func(nc net.Conn) *netconn.Conn {
				c := netconn.Server(nc, &tls.Config{Certificates: []tls.Certificate{own}, NextProtos: protocols})
				_ = c.Handshake(clock.Now().Add(patience))
				return c
			}
		})
	}
	for _, c := range []struct {
		listener, client []string
		want             string
		refused          bool
	}{
		{[]string{"imap", "pop3"}, []string{"pop3", "imap"}, "imap", false},
		{[]string{"imap"}, nil, "", false},
		{nil, []string{"h2"}, "", false},
		{[]string{"pop3"}, []string{"pop3"}, "pop3", true},
	} {
		r := front(c.listener...)
		s := tls.Client(r.dial(), &tls.Config{RootCAs: ca.Pool(), ServerName: "db.test", NextProtos: c.client})
		_, err := io.WriteString(s, "x")
		if err == nil && !c.refused {
			hear(t, s, "x")
			_ = s.CloseWrite()
			_, err = io.ReadAll(s)
		}
		if err != nil && !c.refused {
			t.Error(err)
		}
		rec := r.record()
		if got := strings.Join(<-offered, " "); got != c.want {
			t.Errorf("listener %q, client %q: offered %q, want %q", c.listener, c.client, got, c.want)
		}
		if want := map[bool]message.Reason{true: message.TLSFailed, false: message.OK}[c.refused]; rec.Reason != want {
			t.Errorf("listener %q, client %q: ended %s (%s), want %s", c.listener, c.client, rec.Reason, rec.Detail, want)
		}
		for len(offered) > 0 {
			<-offered // of the other attempt
		}
	}
}

// The PROXY header comes before TLS, once, and is none of the session's bytes.
func TestSecureBackendIntroduced(t *testing.T) {
	ca := weirtest.NewAuthority(t)
	cfg := &tls.Config{Certificates: []tls.Certificate{ca.Issue("db.test")}}
	const header = "PROXY TCP4 192.0.2.7 198.51.100.7 5 443\r\n"
	addr := server(t, func(c *net.TCPConn) {
		got := make([]byte, len(header))
		if _, err := io.ReadFull(c, got); err != nil || string(got) != header {
			t.Errorf("before TLS came %q, %v", got, err)
			return
		}
		if s := tls.Server(c, cfg); s.Handshake() == nil {
			echoTLS(s)
		}
	})
	r := newRig(t, []string{deadPort(t), addr}, func(r *rig, c *pool.Config) {
		verified(ca)(r, c)
		r.rt.ProxyHeader = func(dst []byte, _ *Client) []byte { return append(dst, header...) }
	})
	for range 4 {
		c := r.dial()
		say(t, c, "x")
		hear(t, c, "x")
		_ = c.CloseWrite()
		ends(t, c, false)
		r.want(message.OK, 1, 1)
	}
}

// A handshake that fails has cost nothing: another backend is tried, and the log says
// why. Nobody waits longer than connecting may take.
func TestSecureBackendFails(t *testing.T) {
	ca, other := weirtest.NewAuthority(t), weirtest.NewAuthority(t)
	good := secured(t, &tls.Config{Certificates: []tls.Certificate{ca.Issue("db.test")}}, echoTLS)
	silent := func(c *net.TCPConn) { _, _ = io.Copy(io.Discard, c) }
	for name, c := range map[string]struct{ addr, says string }{
		"another name":      {secured(t, &tls.Config{Certificates: []tls.Certificate{ca.Issue("other.test")}}, echoTLS), "db.test"},
		"another authority": {secured(t, &tls.Config{Certificates: []tls.Certificate{other.Issue("db.test")}}, echoTLS), "unknown authority"},
		"plain":             {server(t, func(c *net.TCPConn) { _, _ = io.WriteString(c, "220 mail.test ready\r\n"); silent(c) }), "TLS handshake"},
		"hangs up":          {server(t, func(*net.TCPConn) {}), "tls_failed"},
		"silent":            {server(t, silent), "i/o timeout"},
	} {
		t.Run(name, func(t *testing.T) {
			edit := func(r *rig, cfg *pool.Config) {
				verified(ca)(r, cfg)
				r.ups.ConnectTimeout, r.ups.TLSTimeout = time.Second, time.Hour
				r.rt.Connect = time.Hour
			}
			r := newRig(t, []string{c.addr, good}, edit)
			for range 2 { // by turns: one of two meets the bad one first
				began := time.Now()
				conn := r.dial()
				say(t, conn, "x")
				hear(t, conn, "x")
				_ = conn.CloseWrite()
				ends(t, conn, false)
				if rec := r.want(message.OK, 1, 1); len(rec.Tried) > 0 && rec.Tried[0].Reason != message.TLSFailed {
					t.Errorf("tried: %+v", rec.Tried)
				}
				if d := time.Since(began); d > 5*time.Second {
					t.Errorf("it took %v", d)
				}
			}
			r = newRig(t, []string{c.addr}, edit)
			r.turnedAway()
			if rec := r.record(); rec.Reason != message.TLSFailed || !strings.Contains(rec.Detail, c.says) || rec.Sent {
				t.Errorf("ended %s (%s)", rec.Reason, rec.Detail)
			}
		})
	}
}

// How sessions end whose backend has TLS.
func TestSecureBackendEnds(t *testing.T) {
	ca := weirtest.NewAuthority(t)
	own := []tls.Certificate{ca.Issue("db.test")}
	t.Run("reset", func(t *testing.T) {
		r := newRig(t, []string{secured(t, &tls.Config{Certificates: own}, func(c *tls.Conn) {
			_, _ = io.WriteString(c, "x")
			_, _ = c.Read(make([]byte, 1))
			_ = c.NetConn().(*net.TCPConn).SetLinger(0)
		})}, verified(ca))
		c := r.dial()
		hear(t, c, "x")
		say(t, c, "y")
		ends(t, c, true)
		if rec := r.want(message.ResetMidResponse, 1, 1); rec.Detail != "connection reset by peer" {
			t.Errorf("the detail is %q", rec.Detail)
		}
	})
	t.Run("no closing alert", func(t *testing.T) {
		r := newRig(t, []string{secured(t, &tls.Config{Certificates: own}, func(c *tls.Conn) { _, _ = io.WriteString(c, "x") })}, verified(ca))
		c := r.dial()
		hear(t, c, "x")
		ends(t, c, false)
		_ = c.CloseWrite()
		if rec := r.record(); !strings.Contains(rec.Detail, "without a closing alert") {
			t.Errorf("ended %s (%s)", rec.Reason, rec.Detail)
		}
	})
	t.Run("no client certificate", func(t *testing.T) {
		r := newRig(t, []string{secured(t, &tls.Config{Certificates: own, ClientAuth: tls.RequireAnyClientCert, MinVersion: tls.VersionTLS13}, echoTLS)}, verified(ca))
		r.turnedAway()
		if rec := r.record(); rec.Reason != message.ResetBeforeResponse || !strings.Contains(rec.Detail, "certificate required") {
			t.Errorf("ended %s (%s)", rec.Reason, rec.Detail)
		}
	})
	t.Run("idle", func(t *testing.T) {
		r := newRig(t, []string{secured(t, &tls.Config{Certificates: own}, echoTLS)}, func(r *rig, c *pool.Config) {
			verified(ca)(r, c)
			r.rt.Idle = 100 * time.Millisecond
		})
		ends(t, r.dial(), false)
		r.want(message.StreamIdleTimeout, 0, 0)
	})
	t.Run("total", func(t *testing.T) {
		r := newRig(t, []string{secured(t, &tls.Config{Certificates: own}, echoTLS)}, func(r *rig, c *pool.Config) {
			verified(ca)(r, c)
			r.rt.Total = 200 * time.Millisecond
		})
		c := r.dial()
		say(t, c, "x")
		hear(t, c, "x")
		ends(t, c, true)
		r.want(message.MaxAge, 1, 1)
	})
	t.Run("told", func(t *testing.T) {
		r := newRig(t, []string{secured(t, &tls.Config{Certificates: own}, echoTLS)}, verified(ca))
		c := r.dial()
		say(t, c, "x")
		hear(t, c, "x")
		r.session().End(observe.TunnelByDrain, 0)
		ends(t, c, true)
		r.want(message.DrainCut, 1, 1)
	})
	t.Run("cut", func(t *testing.T) {
		r := newRig(t, []string{secured(t, &tls.Config{Certificates: own}, echoTLS)}, verified(ca))
		c := r.dial()
		say(t, c, "x")
		hear(t, c, "x")
		r.targets[0].SetDraining(true)
		r.targets[0].Cut()
		ends(t, c, true)
		r.want(message.DrainCut, 1, 1)
	})
	t.Run("quit in the handshake", func(t *testing.T) {
		begun := make(chan struct{}, 1)
		r := newRig(t, []string{server(t, func(c *net.TCPConn) {
			_, _ = io.ReadFull(c, make([]byte, 1))
			begun <- struct{}{}
			_, _ = io.Copy(io.Discard, c)
		})}, func(r *rig, c *pool.Config) {
			verified(ca)(r, c)
			r.ups.ConnectTimeout = time.Hour
		})
		c := r.dial()
		<-begun
		r.px.Quit()
		ends(t, c, true)
		r.want(message.DrainCut, 0, 0)
	})
}

// Sessions of one backend resume TLS: the certificate is not asked for again.
func TestSecureBackendResumes(t *testing.T) {
	ca := weirtest.NewAuthority(t)
	resumed := make(chan bool, 4)
	r := newRig(t, []string{secured(t, &tls.Config{Certificates: []tls.Certificate{ca.Issue("db.test")}}, func(c *tls.Conn) {
		resumed <- c.ConnectionState().DidResume
		echoTLS(c)
	})}, verified(ca))
	for i := range 3 {
		c := r.dial()
		say(t, c, "x")
		hear(t, c, "x")
		if got := <-resumed; got != (i > 0) {
			t.Errorf("session %d: resumed is %v", i, got)
		}
		_ = c.CloseWrite()
		ends(t, c, false)
		r.want(message.OK, 1, 1)
	}
}

// A client that asks for TLS in clear has none with a backend that begins with it, and
// nothing is said to that one in the wrong order.
func TestSecureBackendAsked(t *testing.T) {
	ca := weirtest.NewAuthority(t)
	r := newRig(t, []string{secured(t, &tls.Config{Certificates: []tls.Certificate{ca.Issue("db.test")}}, func(*tls.Conn) {
		t.Error("the backend was reached")
	})}, func(r *rig, c *pool.Config) {
		verified(ca)(r, c)
		r.serve = func(c *netconn.Conn, ci *Client) {
			ci.Asked = true
			r.px.Serve(c, ci, r.rt, nil)
		}
	})
	r.turnedAway()
	if rec := r.record(); rec.Reason != message.TLSFailed || !strings.Contains(rec.Detail, "tls://") {
		t.Errorf("ended %s (%s)", rec.Reason, rec.Detail)
	}
}

func TestInTLS(t *testing.T) {
	plain := netconn.New(struct{ net.Conn }{})
	for _, c := range []struct {
		err  error
		want string
	}{
		{nil, ""},
		{&netconn.TunnelError{Conn: plain, Err: &net.OpError{Op: "remote error", Err: errors.New("tls: bad certificate")}}, "remote error: tls: bad certificate"},
		{&netconn.TunnelError{Conn: plain, Err: &net.OpError{Op: "read", Err: io.ErrUnexpectedEOF}}, ""},
		{x509.UnknownAuthorityError{}, ""},
	} {
		if got := inTLS(c.err, plain); got != c.want {
			t.Errorf("%v: %q, want %q", c.err, got, c.want)
		}
	}
}

// What a session in TLS moves counts while it moves, and a backend's first byte is its
// success; one that hangs up at once after its handshake counts as failing, as in clear.
func TestSecureBackendMoves(t *testing.T) {
	ca := weirtest.NewAuthority(t)
	leaf := &tls.Config{Certificates: []tls.Certificate{ca.Issue("db.test")}}
	series := observe.NewMetrics(observe.MetricsOptions{}).Route("db", "r", "app")
	r := newRig(t, []string{secured(t, leaf, echoTLS)}, func(r *rig, c *pool.Config) {
		verified(ca)(r, c)
		r.rt.Series = series
	})
	c := r.dial()
	say(t, c, "hello")
	hear(t, c, "hello")
	b := series.For("b0").Session()
	weirtest.Eventually(t, "5 bytes each way while it is open", func() bool { return b.In.Load() == 5 && b.Out.Load() == 5 })
	_ = c.CloseWrite()
	ends(t, c, false)
	r.want(message.OK, 5, 5)

	gone := newRig(t, []string{secured(t, leaf, func(c *tls.Conn) { _ = c.Close() })}, verified(ca))
	c = gone.dial()
	ends(t, c, false)
	_ = c.Close()
	gone.want(message.ResetBeforeResponse, 0, 0)
}

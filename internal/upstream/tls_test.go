// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"crypto/tls"
	"os"
	"testing"
	"time"

	"github.com/weirlb/weir/internal/clock"
	"github.com/weirlb/weir/internal/weirtest"
)

// tlsBackend answers over TLS.
func tlsBackend(t *testing.T, cfg *tls.Config) string {
	t.Helper()
	ln, err := tls.Listen("tcp", "127.0.0.1:0", cfg)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	t.Cleanup(func() { _ = ln.Close(); <-done })
	go func() {
		defer close(done)
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				p := make([]byte, 4096)
				for {
					if _, err := c.Read(p); err != nil {
						return
					}
					if _, err := c.Write([]byte(okAnswer)); err != nil {
						return
					}
				}
			}()
		}
	}()
	return ln.Addr().String()
}

func TestTLS(t *testing.T) {
	ca, other := weirtest.NewAuthority(t), weirtest.NewAuthority(t)
	dir := t.TempDir()
	roots := ca.WritePool(dir)
	crt, key := ca.Write(dir, "client", ca.Issue("client.test"))
	addr := tlsBackend(t, &tls.Config{Certificates: []tls.Certificate{ca.Issue("127.0.0.1", "app.test")}})
	mutual := tlsBackend(t, &tls.Config{
		Certificates: []tls.Certificate{ca.Issue("127.0.0.1")}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: ca.Pool(),
		MaxVersion: tls.VersionTLS12, // so that the client sees the refusal within the handshake
	})
	for name, c := range map[string]struct {
		addr string
		opt  TLSOptions
		ok   bool
	}{
		"verified by address":     {addr, TLSOptions{CAFile: roots}, true},
		"verified by name":        {addr, TLSOptions{CAFile: roots, ServerName: "app.test"}, true},
		"another name":            {addr, TLSOptions{CAFile: roots, ServerName: "other.test"}, false},
		"another authority":       {addr, TLSOptions{CAFile: other.WritePool(t.TempDir())}, false},
		"system authorities":      {addr, TLSOptions{}, false},
		"insecure":                {addr, TLSOptions{InsecureSkipVerify: true, ServerName: "other.test"}, true},
		"client certificate":      {mutual, TLSOptions{CAFile: roots, CertFile: crt, KeyFile: key}, true},
		"no client certificate":   {mutual, TLSOptions{CAFile: roots}, false},
		"version below the floor": {mutual, TLSOptions{CAFile: roots, CertFile: crt, KeyFile: key, MinVersion: tls.VersionTLS13}, false},
	} {
		t.Run(name, func(t *testing.T) {
			cfg, err := c.opt.Config()
			if err != nil {
				t.Fatal(err)
			}
			opt := options(c.addr)
			opt.TLS = cfg
			target := newTarget(t, opt)
			conn, err := target.Dial(clock.Now(), clock.Now().Add(patience), nil)
			if (err == nil) != c.ok {
				t.Fatal(err)
			}
			if err != nil {
				if kind(t, err) != TLS {
					t.Error(err)
				}
				return
			}
			// Session tickets come unasked; the connection is kept all the same,
			// looked at, watched and used again.
			start := clock.Now()
			for i := range 3 {
				use(t, target, conn, start.Add(time.Duration(i)*time.Second))
				if got := target.Get(start.Add(time.Duration(i)*time.Second+100*time.Millisecond), false); got != conn {
					t.Fatalf("use %d: not handed out: %+v", i, target.Stats())
				}
			}
			use(t, target, conn, clock.Now())
			eventually(t, "watch", func() bool {
				target.mu.Lock()
				defer target.mu.Unlock()
				return conn.watched
			})
			if target.Get(clock.Now(), false) != conn {
				t.Error("lost while watched")
			}
			conn.Close()
			again := mustDial(t, target)
			if !again.nc.TLS().ConnectionState().DidResume {
				t.Error("the session was not resumed")
			}
			again.Close()
		})
	}
}

func TestTLSOptionErrors(t *testing.T) {
	dir := t.TempDir()
	ca := weirtest.NewAuthority(t)
	crt, key := ca.Write(dir, "c", ca.Issue("c.test"))
	for name, o := range map[string]TLSOptions{
		"no file":    {CAFile: dir + "/none"},
		"no pem":     {CAFile: key},
		"half":       {CertFile: crt},
		"other half": {KeyFile: key},
		"swapped":    {CertFile: key, KeyFile: crt},
	} {
		if _, err := o.Config(); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// TestClientCertFollowsFiles: what is shown to backends is what the files hold,
// looked at every few seconds; a broken file leaves the old one.
func TestClientCertFollowsFiles(t *testing.T) {
	ca, dir := weirtest.NewAuthority(t), t.TempDir()
	cert, key := ca.Write(dir, "client", ca.Issue("one"))
	own := &clientCert{cert: cert, key: key}
	at := time.Unix(1_000_000, 0)
	if err := own.load(at); err != nil {
		t.Fatal(err)
	}
	shown := func(after time.Duration) string {
		at = at.Add(after)
		return own.get(at).Leaf.Subject.CommonName
	}
	ca.Write(dir, "client", ca.Issue("two, which is longer"))
	if got := shown(clientCertEvery - 1); got != "one" {
		t.Errorf("looked too often: %q", got)
	}
	if got := shown(1); got != "two, which is longer" {
		t.Errorf("after the change: %q", got)
	}
	if err := os.WriteFile(cert, []byte("garbage"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := shown(clientCertEvery); got != "two, which is longer" || own.failed == "" {
		t.Errorf("garbage: %q, %q", got, own.failed)
	}
	if err := os.Remove(key); err != nil {
		t.Fatal(err)
	}
	if got := shown(clientCertEvery); got != "two, which is longer" {
		t.Errorf("without a key: %q", got)
	}
	ca.Write(dir, "client", ca.Issue("three"))
	if got := shown(clientCertEvery); got != "three" || own.failed != "" {
		t.Errorf("mended: %q, %q", got, own.failed)
	}
}

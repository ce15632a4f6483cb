// SPDX-License-Identifier: Apache-2.0

package acme

import (
	"crypto/tls"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/weirlb/weir/internal/weirtest"
)

// TestMain checks that a closed Manager leaves nothing behind. Who keeps a lock's
// file fresh finds out within 5 s that it is gone.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/caddyserver/certmagic.keepLockfileFresh"))
}

// nowhere is an authority that refuses every connection.
func nowhere(t *testing.T) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ln.Close() }()
	return "https://" + ln.Addr().String() + "/dir"
}

func options(t *testing.T) Options {
	t.Helper()
	return Options{Directory: nowhere(t), Storage: filepath.Join(t.TempDir(), "acme"), HTTP: true, TLS: true, Key: "p256"}
}

// TestNobodyAnswers: an authority that cannot be reached is told of, and asked for
// nothing by the way; what is no challenge is not answered; Close ends the attempts.
func TestNobodyAnswers(t *testing.T) {
	failed := make(chan error, 10)
	m, err := New(options(t), Hooks{OnOrder: func(name string, err error) {
		if name == "a.example.com" {
			failed <- err
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	m.Load([]string{"a.example.com"})
	m.Manage([]string{"a.example.com"})
	select {
	case err := <-failed:
		if err == nil {
			t.Error("issued by nobody")
		}
	case <-time.After(30 * time.Second):
		t.Fatal("no attempt was made")
	}
	s := m.Status()
	if len(s) != 1 || s[0].Name != "a.example.com" || !s[0].NotAfter.IsZero() || s[0].Err == "" || s[0].Tried.IsZero() {
		t.Errorf("%+v", s)
	}
	for _, q := range []struct{ host, path string }{
		{"a.example.com", Path + "token"}, {"b.example.com", Path + "token"}, {"A.example.com.:80", Path + "token"}, {"a.example.com", Path},
		{"a.example.com", Path + "../x"}, {"a.example.com", Path + strings.Repeat("a", maxToken+1)}, {"a.example.com", "/"}, {"", Path + "x"},
	} {
		if text := m.Challenge(q.host, q.path); text != nil {
			t.Errorf("%+v: %q", q, text)
		}
	}
	near, far := net.Pipe()
	defer func() { _, _ = near.Close(), far.Close() }()
	for _, protos := range [][]string{nil, {ALPN}, {"h2", ALPN}} {
		if c := m.Certificate(&tls.ClientHelloInfo{ServerName: "a.example.com", SupportedProtos: protos, Conn: near}, "a.example.com"); c != nil {
			t.Errorf("%q: a certificate from nowhere", protos)
		}
	}
	m.Manage(nil)
	if s := m.Status(); len(s) != 0 {
		t.Errorf("after the names are gone: %+v", s)
	}
	m.Close()
	m.Manage([]string{"c.example.com"}) // nothing happens
}

// TestOptions: what is wrong is said at once, and not at the first renewal.
func TestOptions(t *testing.T) {
	dir := t.TempDir()
	garbage := filepath.Join(dir, "garbage")
	if err := os.WriteFile(garbage, []byte("garbage"), 0o600); err != nil {
		t.Fatal(err)
	}
	good := options(t)
	good.CAFile = weirtest.NewAuthority(t).WritePool(dir)
	for name, edit := range map[string]func(*Options){
		"acme.ca: ":           func(o *Options) { o.CAFile = garbage },
		"acme.storage: ":      func(o *Options) { o.Storage = filepath.Join(garbage, "below") },
		"acme.eab_key_file: ": func(o *Options) { o.EABKeyID, o.EABKeyFile = "id", filepath.Join(dir, "none") },
	} {
		o := good
		edit(&o)
		if m, err := New(o, Hooks{}); err == nil || !strings.HasPrefix(err.Error(), name) {
			t.Errorf("%s%v", name, err)
			if err == nil {
				m.Close()
			}
		}
	}
	m, err := New(good, Hooks{})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if other := good; !m.Same(other) {
		t.Error("the same options are others")
	}
	other := good
	other.Email = "ops@example.com"
	if m.Same(other) {
		t.Error("other options are the same")
	}
	if err := Check(good); err != nil {
		t.Error(err)
	}
	if err := Check(Options{CAFile: filepath.Join(dir, "none")}); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}

// FuzzChallenge: whoever asks for whatever gets nothing, and no file is looked at
// outside the storage.
func FuzzChallenge(f *testing.F) {
	f.Add("a.example.com", Path+"x")
	f.Add("../../etc/passwd", Path+"..")
	dir, err := os.MkdirTemp("", "acme-fuzz-")
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = os.RemoveAll(dir) })
	m, err := New(Options{Directory: "https://127.0.0.1:1/dir", Storage: dir, HTTP: true, Key: "p256"}, Hooks{})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(m.Close)
	m.names.Store(&map[string]bool{"a.example.com": true})
	f.Fuzz(func(t *testing.T, host, path string) {
		if text := m.Challenge(host, path); text != nil {
			t.Fatalf("%q", text)
		}
	})
}

// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

func client(t *testing.T, opt ClientOptions) *Client {
	t.Helper()
	c, err := NewClient(opt)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func TestClient(t *testing.T) {
	f := newFake()
	s := serve(t, Options{Controller: f, TokenFile: tokenFile(t, testToken)})
	c := client(t, ClientOptions{Address: s.Addr().String(), TokenFile: tokenFile(t, testToken)})
	ctx := t.Context()
	if got, err := c.Status(ctx); err != nil || !reflect.DeepEqual(got, f.Status()) {
		t.Errorf("status: %+v, %v", got, err)
	}
	if got, err := c.Pools(ctx); err != nil || len(got) != 2 || !reflect.DeepEqual(got[0], f.pool) {
		t.Errorf("pools: %+v, %v", got, err)
	}
	if got, err := c.Pool(ctx, "app"); err != nil || !reflect.DeepEqual(got, f.pool) {
		t.Errorf("pool: %+v, %v", got, err)
	}
	if got, err := c.Backend(ctx, "app", "a/b:c%"); err != nil || got.ID != "a/b:c%" {
		t.Errorf("backend: %+v, %v", got, err)
	}
	w := uint32(9)
	for _, p := range []Patch{
		{Admin: "draining", Deadline: 90 * time.Second}, {Weight: &w}, {ResetWeight: true}, {Admin: "enabled", Weight: &w},
	} {
		if _, err := c.Patch(ctx, "app", "a/b:c%", p); err != nil {
			t.Errorf("%+v: %v", p, err)
		}
		if got := f.patches[len(f.patches)-1]; !reflect.DeepEqual(got, p) {
			t.Errorf("sent %+v, arrived %+v", p, got)
		}
	}
	var p *Problem
	if _, err := c.Pool(ctx, "nope"); !errors.As(err, &p) || p.Code != CodeUnknownPool || err.Error() != "no such pool: nope" {
		t.Errorf("unknown pool: %v", err)
	}
	if _, err := c.Patch(ctx, "app", "nope", Patch{Admin: "enabled"}); !errors.As(err, &p) || p.Code != CodeUnknownBackend {
		t.Errorf("unknown backend: %v", err)
	}
}

// TestClientErrors: each says what to do.
func TestClientErrors(t *testing.T) {
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	refused := closed.Addr().String()
	closed.Close()
	other := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(other.Close)
	silentListener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { silentListener.Close() })
	guarded := serve(t, Options{TokenFile: tokenFile(t, testToken)}).Addr().String()
	for _, c := range []struct {
		name string
		opt  ClientOptions
		want string
	}{
		{"nobody", ClientOptions{Address: refused}, "weir is not running at " + refused + ": start it or give --admin"},
		{"no socket", ClientOptions{Address: "unix:" + filepath.Join(t.TempDir(), "s")}, "start it or give --admin"},
		{"somebody else", ClientOptions{Address: "http://" + other.Listener.Addr().String() + "/"}, "is not weir's admin address"},
		{"silent", ClientOptions{Address: silentListener.Addr().String(), Timeout: 50 * time.Millisecond}, "did not answer within 50ms"},
		{"no token", ClientOptions{Address: guarded}, "give --token-file"},
		{"wrong token", ClientOptions{Address: guarded, TokenFile: tokenFile(t, "0123456789abcdef")}, "does not accept the token"},
	} {
		_, err := client(t, c.opt).Status(t.Context())
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
		var down *NotRunningError
		if got := errors.As(err, &down); got != strings.Contains(c.want, "start it") {
			t.Errorf("%s: NotRunningError: %v", c.name, got)
		}
	}
	for _, bad := range []string{"", "127.0.0.1", "host:", "http://"} {
		if _, err := NewClient(ClientOptions{Address: bad}); err == nil {
			t.Errorf("address %q was accepted", bad)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := client(t, ClientOptions{Address: refused}).Status(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

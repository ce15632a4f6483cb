// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"
)

// listing is a fake that has two sessions and remembers what it was asked.
type listing struct {
	*fake
	asked SessionQuery
}

func (f *listing) Sessions(q SessionQuery) (Sessions, error) {
	f.asked = q
	switch {
	case q.Pool == "nope":
		return Sessions{}, fmt.Errorf("%w: nope; there is app", ErrUnknownPool)
	case q.Listener == "nope":
		return Sessions{}, fmt.Errorf("%w: nope; there is web", ErrUnknownListener)
	case q.Limit == 1:
		return Sessions{Total: 2}, nil
	}
	return Sessions{Total: 3, Matched: 2, Sessions: []Session{
		{Kind: "session", Protocol: "sni", Listener: "web", Route: "r", Pool: "app", Backend: "10.0.1.21:8080", Client: "192.0.2.7:4711", Name: "shop.example.com", Since: epoch, AgeS: 1.5, Ending: true},
		{Kind: "flow", Protocol: "udp", Listener: "dns", Route: "default", Pool: "app", Backend: "10.0.1.21:8080", Client: "[2001:db8::1]:53", Since: epoch, AgeS: 0.5},
	}}, nil
}

// TestSessionsAPI: what is asked arrives, by hand and by the client, and mistakes are
// answered with what they are.
func TestSessionsAPI(t *testing.T) {
	f := &listing{fake: newFake()}
	s := serve(t, Options{Controller: f})
	for _, c := range []struct {
		query  string
		status int
		want   string
	}{
		{"", 200, `{"total":3,"matched":2,"sessions":[{"kind":"session","protocol":"sni","listener":"web","route":"r","pool":"app","backend":"10.0.1.21:8080","client":"192.0.2.7:4711","name":"shop.example.com","since":"2026-01-02T03:04:05.678Z","age_s":1.5,"ending":true},{"kind":"flow",`},
		{"?limit=1", 200, `{"total":2,"matched":0,"sessions":[]}`},
		{"?limit=0", 400, `limit is \"0\": use 1 to 10000`},
		{"?limit=10001", 400, `use 1 to 10000`},
		{"?limit=x", 400, `use 1 to 10000`},
		{"?client=192.0.2.300", 400, `client \"192.0.2.300\" is neither an address nor a block`},
		{"?pool=a&pool=b", 400, `pool is given more than once`},
		{"?pol=a", 400, `there is no \"pol\" here: use listener, pool, backend, client or limit`},
		{"?pool=nope", 404, `"code":"unknown_pool"`},
		{"?listener=nope", 404, `"code":"unknown_listener"`},
	} {
		w, body := send(t, s, request{path: "/api/v1/sessions" + c.query})
		if w.StatusCode != c.status || !strings.Contains(body, c.want) {
			t.Errorf("%q: %d %s", c.query, w.StatusCode, body)
		}
	}
	if w, _ := send(t, s, request{method: "POST", path: "/api/v1/sessions", body: "{}", header: asJSON}); w.StatusCode != 405 {
		t.Errorf("POST: %d", w.StatusCode)
	}
	c, err := NewClient(ClientOptions{Address: s.Addr().String(), Timeout: 10 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for text, want := range map[string]string{"192.0.2.7": "192.0.2.7/32", "192.0.2.7/24": "192.0.2.0/24", "::ffff:192.0.2.7": "192.0.2.7/32", "2001:db8::1": "2001:db8::1/128"} {
		p, err := ParseClients(text)
		if err != nil || p != netip.MustParsePrefix(want) {
			t.Errorf("%s: %v %v", text, p, err)
		}
		q := SessionQuery{Listener: "w&b", Pool: "a b", Backend: "10.0.1.21:8080", Client: p, Limit: 7}
		if got, err := c.Sessions(context.Background(), q); err != nil || f.asked != q || len(got.Sessions) != 2 || got.Sessions[1].Client != "[2001:db8::1]:53" {
			t.Errorf("asked %+v, not %+v: %+v, %v", f.asked, q, got, err)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"
)

// keeper is a fake whose pool takes backends.
type keeper struct {
	*fake
	added    []string  // what was sent
	removals []Removal // and asked for
}

func (k *keeper) AddBackend(pool string, text []byte) (Backend, bool, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.added = append(k.added, string(text))
	var in NewBackend
	_ = json.Unmarshal(text, &in) // a keeper of backends would say more
	switch {
	case pool != "app":
		return Backend{}, false, fmt.Errorf("%w: %s", ErrUnknownPool, pool)
	case in.URL == "":
		return Backend{}, false, fmt.Errorf("%w: a backend has no url", ErrBadBackend)
	case in.ID == "taken":
		return Backend{}, false, fmt.Errorf("%w: it is there", ErrConflict)
	}
	return Backend{ID: "10.0.0.9:80/x", URL: in.URL, Source: SourceAPI, Added: &Added{At: epoch}}, in.ID != "again", nil
}

func (k *keeper) RemoveBackend(_, id string, r Removal) (Backend, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.removals = append(k.removals, r)
	switch id {
	case "nobody":
		return Backend{}, fmt.Errorf("%w: %s", ErrUnknownBackend, id)
	case "listed":
		return Backend{}, fmt.Errorf("%w: it is in the configuration", ErrConflict)
	}
	return Backend{ID: id, Removed: true, Drain: &Drain{Done: true}}, nil
}

// TestAddAndRemove: statuses, codes and what reaches the controller; only JSON is
// taken, as for any change.
func TestAddAndRemove(t *testing.T) {
	k := &keeper{fake: newFake()}
	s := serve(t, Options{Controller: k})
	const all = "/api/v1/pools/app/backends"
	for _, c := range []struct {
		q      request
		status int
		code   string
	}{
		{request{method: "POST", path: all, body: `{"url":"http://10.0.0.9"}`, header: asJSON}, 201, ""},
		{request{method: "POST", path: all, body: `{"url":"http://10.0.0.9","id":"again"}`, header: asJSON}, 200, ""},
		{request{method: "POST", path: all, body: `{"id":"x"}`, header: asJSON}, 422, CodeBadBackend},
		{request{method: "POST", path: all, body: `{"url":"http://a","id":"taken"}`, header: asJSON}, 409, CodeConflict},
		{request{method: "POST", path: "/api/v1/pools/nope/backends", body: `{"url":"http://a"}`, header: asJSON}, 404, CodeUnknownPool},
		{request{method: "POST", path: all, body: `url: http://a`, header: asJSON}, 400, CodeBadBody},
		{request{method: "POST", path: all, body: strings.Repeat(" ", maxBody+1), header: asJSON}, 413, CodeBadBody},
		{request{method: "POST", path: all, body: `{"url":"http://a"}`}, 415, CodeNotJSON},
		{request{method: "POST", path: all, body: `{"url":"http://a"}`, header: map[string]string{"Content-Type": "application/json", "Origin": "http://evil.example"}}, 403, CodeCrossOrigin},
		{request{method: "PUT", path: all, body: `{}`, header: asJSON}, 405, CodeBadMethod},
		{request{path: all}, 200, ""},
		{request{path: "/api/v1/pools/nope/backends"}, 404, CodeUnknownPool},

		{request{method: "DELETE", path: all + "/x", header: asJSON}, 200, ""},
		{request{method: "DELETE", path: all + "/x?deadline=90s", body: "{}", header: asJSON}, 200, ""},
		{request{method: "DELETE", path: all + "/x?force=1", header: asJSON}, 200, ""},
		{request{method: "DELETE", path: all + "/x?force", header: asJSON}, 200, ""},
		{request{method: "DELETE", path: all + "/x?force=0", header: asJSON}, 200, ""},
		{request{method: "DELETE", path: all + "/nobody", header: asJSON}, 404, CodeUnknownBackend},
		{request{method: "DELETE", path: all + "/listed", header: asJSON}, 409, CodeConflict},
		{request{method: "DELETE", path: all + "/x?deadline=soon", header: asJSON}, 400, CodeBadBody},
		{request{method: "DELETE", path: all + "/x?deadline=0s", header: asJSON}, 400, CodeBadBody},
		{request{method: "DELETE", path: all + "/x?force=1&deadline=5s", header: asJSON}, 400, CodeBadBody},
		{request{method: "DELETE", path: all + "/x?force=maybe", header: asJSON}, 400, CodeBadBody},
		{request{method: "DELETE", path: all + "/x?wait=1", header: asJSON}, 400, CodeBadBody},
		{request{method: "DELETE", path: all + "/x", body: `{"deadline":"5s"}`, header: asJSON}, 400, CodeBadBody},
		{request{method: "DELETE", path: all + "/x"}, 415, CodeNotJSON},
	} {
		w, body := send(t, s, c.q)
		var p Problem
		if err := json.Unmarshal([]byte(body), &p); err != nil && c.status >= 400 {
			t.Errorf("%+v: %v: %s", c.q, err, body)
		}
		if w.StatusCode != c.status || c.code != "" && p.Code != c.code {
			t.Errorf("%s %s: %d %s, want %d %s\n%s", c.q.method, c.q.path, w.StatusCode, p.Code, c.status, c.code, body)
		}
		if at := w.Header.Get("Location"); (at != "") != (c.status == 201) || at != "" && at != all+"/10.0.0.9:80%2Fx" {
			t.Errorf("Location %q with %d", at, c.status)
		}
	}
	want := []Removal{{}, {Deadline: 90 * time.Second}, {Force: true}, {Force: true}, {}, {}, {}}
	if fmt.Sprint(k.removals) != fmt.Sprint(want) {
		t.Errorf("removals %v, want %v", k.removals, want)
	}
	if w, _ := send(t, serve(t, Options{}), request{method: "POST", path: all, body: `{}`, header: asJSON}); w.StatusCode != 405 {
		t.Errorf("a controller that cannot: %d", w.StatusCode)
	}
	guarded := serve(t, Options{Controller: k, TokenFile: tokenFile(t, testToken)})
	for _, method := range []string{"POST", "DELETE"} {
		path := map[string]string{"POST": all, "DELETE": all + "/x"}[method]
		if w, _ := send(t, guarded, request{method: method, path: path, body: `{}`, header: asJSON}); w.StatusCode != 401 {
			t.Errorf("%s without the token: %d", method, w.StatusCode)
		}
	}
}

// TestClientAddsAndRemoves: the client sends what the server takes, and hands over
// refusals as they are.
func TestClientAddsAndRemoves(t *testing.T) {
	k := &keeper{fake: newFake()}
	s := serve(t, Options{Controller: k})
	c, err := NewClient(ClientOptions{Address: s.Addr().String()})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	zero := uint32(0)
	b, err := c.AddBackend(t.Context(), "app", NewBackend{URL: "http://10.0.0.9", Weight: &zero, Zone: "z", Backup: true, Priority: 3})
	if err != nil || b.Source != SourceAPI || b.Added == nil || k.added[0] != `{"url":"http://10.0.0.9","weight":0,"zone":"z","backup":true,"priority":3}` {
		t.Errorf("%+v, %v; sent %q", b, err, k.added)
	}
	for _, r := range []Removal{{}, {Force: true}, {Deadline: 1500 * time.Millisecond}} {
		if b, err := c.RemoveBackend(t.Context(), "app", "a/b:c%", r); err != nil || !b.Removed || b.ID != "a/b:c%" || k.removals[len(k.removals)-1] != r {
			t.Errorf("%+v, %v", b, err)
		}
	}
	_, err = c.RemoveBackend(t.Context(), "app", "listed", Removal{})
	var p *Problem
	if !errors.As(err, &p) || p.Status != http.StatusConflict || p.Code != CodeConflict {
		t.Error(err)
	}
}

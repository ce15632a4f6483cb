// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
)

// postList sends a list of changes to the pool app.
func postList(t *testing.T, r *running, body string) (int, string) {
	t.Helper()
	q, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+r.Bound().Admin+"/api/v1/pools/app/backends", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	q.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(q)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, strings.TrimSpace(string(text))
}

// A list of backends is taken as one: all of it, or with every reason nothing.
func TestBackendsAsAList(t *testing.T) {
	a := backend(t, "a")
	r := start(t, simple("", a))
	ids := func() (out []string) {
		p, err := r.Pool("app")
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range p.Members {
			if !m.Removed {
				out = append(out, m.ID)
			}
		}
		return out
	}
	var many []string
	for i := range 300 {
		many = append(many, fmt.Sprintf(`{"url": "http://127.1.%d.%d:1"}`, i/250, i%250+1))
	}
	for _, c := range []struct {
		body   string
		status int
		want   string // in the answer
		size   int    // of the pool afterwards
	}{
		{`[]`, 200, `{"added":0,"changed":0,"removed":0}`, 1},
		{"[" + strings.Join(many, ",") + "]", 200, `{"added":300,"changed":0,"removed":0}`, 301},
		{"[" + strings.Join(many, ",") + "]", 200, `{"added":0,"changed":0,"removed":0}`, 301},
		{`[{"url":"http://127.1.0.1:1","weight":3},{"url":"http://127.2.0.1:1"},{"remove":"127.1.0.2:1"}]`, 200, `{"added":1,"changed":1,"removed":1}`, 301},
		{`[{"url":"http://127.3.0.1:1"},{"url":"nonsense"},{"remove":"127.9.9.9:1"},{"url":"http://127.3.0.2:1","weight":-1}]`, 422, "item 3", 301},
		{`[{"url":"http://127.3.0.1:1"},{"remove":"127.9.9.9:1"},{"remove":"` + a.id() + `"}]`, 409, "item 2", 301},
		{`[{"remove":"127.2.0.1:1"},{"url":"http://127.2.0.1:1"}]`, 409, "removed by the same list", 301},
		{`[{"remove":7}]`, 422, "item 0", 301},
		{`[{"remove":"127.2.0.1:1","url":"x"}]`, 422, "nothing else", 301},
		{`[7]`, 422, "item 0", 301},
	} {
		status, text := postList(t, r, c.body)
		if status != c.status || !strings.Contains(text, c.want) || !json.Valid([]byte(text)) || len(ids()) != c.size {
			t.Errorf("%.60s: %d %s, now %d backends", c.body, status, text, len(ids()))
		}
	}
}

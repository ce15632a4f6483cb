// SPDX-License-Identifier: Apache-2.0

package config

import (
	"strings"
	"testing"
)

// TestSecureSessions: backends in clear and with TLS may be in one pool of sessions, and
// tls says something only where there is one of the latter.
func TestSecureSessions(t *testing.T) {
	for backends, want := range map[string]string{
		`"tcp://10.0.0.1:1", "TLS://Redis.example.com:6380"`: "",
		`"tls://[FD00::1]:6380"`:                             "",
		`"tcp://10.0.0.1:1"`:                                 "no backend of pool db is tls, so tls says nothing",
	} {
		text := "listeners: {db: {bind: \":1\", protocol: tcp, pool: db}}\npools: {db: {backends: [" + backends + "], tls: {server_name: db.test}}}\n"
		plan, err := Parse("weir.yaml", []byte(text), nil)
		if err != nil {
			t.Errorf("%s: %v", backends, err)
			continue
		}
		var said []string
		for _, w := range plan.Warnings {
			said = append(said, w.Text)
		}
		if got := strings.Join(said, "; "); got != want {
			t.Errorf("%s: %q, want %q", backends, got, want)
		}
		p := plan.Pool("db")
		if last := p.Backends[len(p.Backends)-1]; p.Scheme() != "tcp" || last.TLS != (want == "") || strings.ToLower(last.URL) != last.URL {
			t.Errorf("%s: scheme %s, %+v", backends, p.Scheme(), last)
		}
	}
}

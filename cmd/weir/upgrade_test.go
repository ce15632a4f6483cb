// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/weirlb/weir/internal/admin"
)

// TestWaitPredecessor: whom an upgrade has replaced may answer once more, on the
// connection that it was asked on, and that is no failure; a process that serves
// without a successor is one.
func TestWaitPredecessor(t *testing.T) {
	drains := admin.Status{PID: 1, Successor: &admin.Process{PID: 2}, Predecessor: &admin.Predecessor{Process: admin.Process{PID: 7}}}
	serves := admin.Status{PID: 2, Predecessor: &admin.Predecessor{Process: admin.Process{PID: 1}, Connections: 3}}
	for _, c := range []struct {
		name    string
		answers []admin.Status
		said    string
		err     string
	}{
		{"in order", []admin.Status{serves, {PID: 2}}, "process 1 still has 3 connections\nprocess 1 has ended\n", ""},
		{"the old one answers first", []admin.Status{drains, serves, {PID: 2}}, "process 1 still has 3 connections\nprocess 1 has ended\n", ""},
		{"taken back", []admin.Status{drains, {PID: 1}}, "", "process 1 serves: the new one has ended"},
		{"upgraded again", []admin.Status{{PID: 3}}, "", "process 3 serves"},
	} {
		t.Run(c.name, func(t *testing.T) {
			left := c.answers
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				_ = json.NewEncoder(w).Encode(left[0])
				if len(left) > 1 {
					left = left[1:]
				}
			}))
			defer s.Close()
			client, err := admin.NewClient(admin.ClientOptions{Address: strings.TrimPrefix(s.URL, "http://")})
			if err != nil {
				t.Fatal(err)
			}
			defer client.Close()
			var said strings.Builder
			u := admin.Upgrade{PID: 2, Previous: admin.Process{PID: 1}}
			err = waitPredecessor(t.Context(), client, &u, func(format string, args ...any) { fmt.Fprintf(&said, format+"\n", args...) })
			if said.String() != c.said || (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
				t.Errorf("says %q and %v, want %q and %q", said.String(), err, c.said, c.err)
			}
		})
	}
}

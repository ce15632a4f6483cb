// SPDX-License-Identifier: Apache-2.0

package test

import (
	"io"
	"net/http"
	"strconv"
	"sync"
	"testing"
	"time"
)

func answering(bind, body string) string {
	return `listeners: {web: {bind: "` + bind + `", routes: [{respond: {body: "` + body + `"}}]}}
shutdown: {delay: none, deadline: 5s}
`
}

// With the socket units systemd has the ports: the first client starts weir, and
// nobody is refused while it is started anew or handed over.
func TestSystemdSocket(t *testing.T) {
	t.Parallel()
	m := bootSystemd(t, `listeners:
  web: {bind: "systemd:web", routes: [{respond: {body: "hello"}}]}
  secure: {bind: "systemd:tls", routes: [{respond: {body: "hello, too"}}]}
shutdown: {delay: none, deadline: 5s}
`)
	m.must("systemctl", "start", "weir.socket", "weir-tls.socket")
	if got := m.show("ActiveState"); got != "inactive" {
		t.Fatalf("weir is %s before anybody asked", got)
	}
	c := m.client()
	resp, err := c.Get("http://127.0.0.1/")
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if resp, err = c.Get("http://127.0.0.1:443/"); err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if bad := m.whileAsked(func() { m.must("systemctl", "restart", "weir") }); bad != "" {
		t.Errorf("during a restart: %s", bad)
	}
	before := m.show("MainPID")
	if bad := m.whileAsked(func() { m.must("weir", "upgrade") }); bad != "" {
		t.Errorf("during an upgrade: %s", bad)
	}
	eventually(t, 10*time.Second, "another process is the service", func() bool { return m.show("MainPID") != before })
	if bad := m.whileAsked(func() { m.must("systemctl", "restart", "weir") }); bad != "" {
		t.Errorf("during a restart after an upgrade: %s", bad)
	}
}

// whileAsked makes requests on new connections while f runs, and returns what
// went wrong with them.
func (m *machine) whileAsked(f func()) string {
	var got tally
	var wg sync.WaitGroup
	stop := make(chan struct{})
	for range 4 {
		c := m.client()
		c.Transport.(*http.Transport).DisableKeepAlives = true
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				case <-time.After(5 * time.Millisecond):
				}
				begin := time.Now()
				resp, err := c.Get("http://127.0.0.1/")
				if err != nil {
					got.add("error: "+err.Error(), "", time.Since(begin))
					continue
				}
				_, err = io.Copy(io.Discard, resp.Body)
				_ = resp.Body.Close()
				if err != nil {
					got.add("error in body: "+err.Error(), "", time.Since(begin))
					continue
				}
				got.add(strconv.Itoa(resp.StatusCode), "", time.Since(begin))
			}
		})
	}
	f()
	close(stop)
	wg.Wait()
	if got.total() == 0 {
		return "nobody asked"
	}
	return got.bad()
}

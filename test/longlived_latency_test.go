// SPDX-License-Identifier: Apache-2.0

package test

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/weirlb/weir/internal/weirtest"
)

// TestEventsAreFast: each of 50 events is with the client within 10 ms of being
// sent, with nothing set for it, by both versions and with and without TLS. A busy
// machine gets five times as long, and three tries.
func TestEventsAreFast(t *testing.T) {
	const events = 50
	serve := func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		flush := http.NewResponseController(w)
		for range events {
			fmt.Fprintf(w, "data: %d\n\n", time.Now().UnixNano())
			if flush.Flush() != nil {
				return
			}
			select {
			case <-time.After(4 * time.Millisecond):
			case <-r.Context().Done():
				return
			}
		}
	}
	s := httptest.NewServer(http.HandlerFunc(serve))
	t.Cleanup(s.Close)
	ca := weirtest.NewAuthority(t)
	cert, key := ca.Write(t.TempDir(), "site", ca.Issue("localhost", "127.0.0.1"))
	secure := freeAddr(t)
	w := startRun(t, fmt.Sprintf(`
admin: {bind: "${ADMIN}"}
listeners:
  plain: {bind: "${LISTEN}", pool: app}
  secure: {bind: %q, pool: app, tls: {certificates: [{cert: %q, key: %q}]}}
pools: {app: {backends: [%q]}}
`, secure, cert, key, s.URL))
	waitListening(t, w.process, secure)
	once := func(c *http.Client, url string) (took []time.Duration, err error) {
		res, err := c.Get(url) //nolint:noctx // the client has a timeout
		if err != nil {
			return nil, err
		}
		defer res.Body.Close()
		for lines := bufio.NewScanner(res.Body); lines.Scan(); {
			if text, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
				at, _ := strconv.ParseInt(text, 10, 64)
				took = append(took, time.Since(time.Unix(0, at)))
			}
		}
		if len(took) != events {
			err = fmt.Errorf("%d events", len(took))
		}
		slices.Sort(took)
		return took, err
	}
	for name, url := range map[string]string{"h1": w.url("/"), "h2c": w.url("/"), "h1 over TLS": "https://" + secure + "/", "h2 over TLS": "https://" + secure + "/"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := new(http.Protocols)
			p.SetHTTP1(strings.HasPrefix(name, "h1"))
			p.SetHTTP2(name == "h2 over TLS")
			p.SetUnencryptedHTTP2(name == "h2c")
			tr := &http.Transport{Protocols: p, TLSClientConfig: &tls.Config{RootCAs: ca.Pool()}}
			defer tr.CloseIdleConnections()
			c := &http.Client{Transport: tr, Timeout: 20 * time.Second}
			for try := 1; ; try++ {
				took, err := once(c, url)
				if err != nil {
					t.Fatal(err)
				}
				t.Logf("from the sending of an event until it is read: median %s, longest %s", took[events/2], took[events-1])
				if took[events-1] <= eventsWithin {
					return
				}
				if try == 3 {
					t.Fatalf("an event took %s, of %s", took[events-1], eventsWithin)
				}
			}
		})
	}
}

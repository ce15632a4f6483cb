// SPDX-License-Identifier: Apache-2.0

//go:build long

package test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/weirlb/weir/internal/weirtest"
)

// browserPage opens a WebSocket and a stream of events, and tells what came.
const browserPage = `<!doctype html><title>weir</title><script>
const result = {page: performance.getEntriesByType('navigation')[0].nextHopProtocol, events: []}
const ws = new Promise((resolve, reject) => {
  const s = new WebSocket('wss://' + location.host + '/ws')
  s.onopen = () => s.send('hello')
  s.onmessage = m => { result.message = m.data; s.close(4000, 'enough') }
  s.onclose = e => { result.closed = e.code + ' ' + e.reason + ' ' + e.wasClean; result.extensions = s.extensions; resolve() }
  s.onerror = reject
})
const sse = new Promise((resolve, reject) => {
  const s = new EventSource('/events')
  s.onmessage = m => {
    result.events.push(Date.now() - Number(m.data))
    if (result.events.length == 50) { s.close(); resolve() }
  }
  s.onerror = reject
})
Promise.all([ws, sse]).catch(e => { result.error = String(e) }).finally(() => {
  fetch('/result', {method: 'POST', body: JSON.stringify(result)})
})
</script>`

// TestChromium: a browser loads a page over HTTP/2, and from it talks over a
// WebSocket and gets events, all through weir as it is by default.
func TestChromium(t *testing.T) {
	results := make(chan []byte, 1)
	serve := func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/ws":
			c, err := websocket.Accept(w, r, &websocket.AcceptOptions{CompressionMode: websocket.CompressionContextTakeover, OriginPatterns: []string{"*"}})
			if err != nil {
				t.Error(err)
				return
			}
			defer func() { _ = c.CloseNow() }()
			for {
				kind, p, err := c.Read(r.Context())
				if err != nil {
					if websocket.CloseStatus(err) != 4000 {
						t.Errorf("the browser closed with %v", err)
					}
					return
				}
				_ = c.Write(r.Context(), kind, p)
			}
		case "/events":
			w.Header().Set("Content-Type", "text/event-stream")
			for range 60 {
				fmt.Fprintf(w, "data: %d\n\n", time.Now().UnixMilli())
				if http.NewResponseController(w).Flush() != nil {
					return
				}
				time.Sleep(5 * time.Millisecond)
			}
			<-r.Context().Done()
		case "/result":
			b, _ := io.ReadAll(r.Body)
			results <- b
		default:
			w.Header().Set("Content-Type", "text/html")
			_, _ = io.WriteString(w, browserPage)
		}
	}
	s := httptest.NewServer(http.HandlerFunc(serve))
	t.Cleanup(s.Close)
	ca := weirtest.NewAuthority(t)
	dir := t.TempDir()
	cert, key := ca.Write(dir, "site", ca.Issue("localhost", "127.0.0.1"))
	access := filepath.Join(dir, "access.log")
	secure := freeAddr(t)
	w := startRun(t, fmt.Sprintf(`
admin: {bind: "${ADMIN}"}
log: {access: {path: %q}}
listeners:
  plain: {bind: "${LISTEN}", pool: app}
  secure: {bind: %q, pool: app, tls: {certificates: [{cert: %q, key: %q}]}}
pools: {app: {backends: [%q]}}
`, access, secure, cert, key, s.URL))
	waitListening(t, w.process, secure)
	spawn(t, tool(t, "chromium"), "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
		"--disable-component-update", "--disable-sync", "--user-data-dir="+t.TempDir(), "--ignore-certificate-errors",
		"--remote-debugging-port=0", "https://"+secure+"/")
	var got struct {
		Page, Message, Closed, Extensions, Error string
		Events                                   []float64 // milliseconds that each was under way
	}
	select {
	case b := <-results:
		if err := json.Unmarshal(b, &got); err != nil {
			t.Fatal(err)
		}
	case <-time.After(time.Minute):
		t.Fatal("the browser says nothing")
	}
	if got.Page != "h2" || got.Message != "hello" || got.Closed != "4000 enough true" || got.Error != "" ||
		!strings.HasPrefix(got.Extensions, "permessage-deflate") || len(got.Events) != 50 {
		t.Errorf("%+v", got)
	}
	t.Logf("%+v", got)
	for _, path := range []string{"/ws", "/events"} {
		eventually(t, 5*time.Second, path+" is logged, as one over HTTP/2", func() bool {
			text, _ := os.ReadFile(access)
			for line := range strings.Lines(string(text)) {
				if strings.Contains(line, `"path":"`+path+`"`) {
					return strings.Contains(line, `"proto":"HTTP/2"`)
				}
			}
			return false
		})
	}
}

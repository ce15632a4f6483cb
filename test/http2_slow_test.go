// SPDX-License-Identifier: Apache-2.0

package test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// TestSlowReadersStallNobody: of one connection's streams a hundred are not read by
// the client and a hundred uploads not by the backend; what comes beside them
// passes at once, both ways, over backends of both versions.
func TestSlowReadersStallNobody(t *testing.T) {
	t.Parallel()
	const slow, size = 100, 4 << 20
	for _, back := range []string{"http", "h2c"} {
		t.Run(back, func(t *testing.T) {
			t.Parallel()
			var held atomic.Int64
			over := make(chan struct{})
			s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				switch r.URL.Path {
				case "/hold": // it does not read
					held.Add(1)
					<-over
				case "/give":
					w.Header().Set("Content-Length", fmt.Sprint(size))
					_, _ = io.CopyN(w, zeros{}, size)
				default:
					n, _ := io.Copy(io.Discard, r.Body)
					_, _ = fmt.Fprint(w, n)
				}
			}))
			s.Config.Protocols = new(http.Protocols)
			s.Config.Protocols.SetHTTP1(true)
			s.Config.Protocols.SetUnencryptedHTTP2(true)
			s.Start()
			t.Cleanup(s.Close)
			defer close(over)
			w := startRun(t, fmt.Sprintf(`
admin: {bind: "${ADMIN}"}
log: {access: {path: off}}
shutdown: {delay: none, deadline: 100ms}
listeners: {web: {bind: "${LISTEN}", pool: app}}
pools: {app: {backends: ["%s://%s"]}}
`, back, strings.TrimPrefix(s.URL, "http://")))
			// Of a client that holds little the streams stall soon; one connection takes
			// 128 of them, so that uploads have another one.
			client := func() *http.Client {
				p := new(http.Protocols)
				p.SetUnencryptedHTTP2(true)
				tr := &http.Transport{Protocols: p, HTTP2: &http.HTTP2Config{MaxReceiveBufferPerStream: 64 << 10}}
				t.Cleanup(tr.CloseIdleConnections)
				return &http.Client{Transport: tr}
			}
			down, up := client(), client()
			for range slow {
				a, err := down.Get(w.url("/give")) //nolint:noctx // it is left at the end
				if err != nil {
					t.Fatal(err)
				}
				defer a.Body.Close()
			}
			for range slow {
				body, stop := io.Pipe()
				defer stop.Close()
				go func() {
					for piece := make([]byte, 64<<10); ; {
						if _, err := stop.Write(piece); err != nil {
							return
						}
					}
				}()
				go func() {
					if a, err := up.Post(w.url("/hold"), "text/plain", body); err == nil { //nolint:noctx // as above
						_ = a.Body.Close()
					}
				}()
			}
			eventually(t, 20*time.Second, "all uploads stall", func() bool { return held.Load() == slow })
			begun := time.Now()
			for name, c := range map[string]*http.Client{"downloads": down, "uploads": up} {
				a, err := c.Get(w.url("/give")) //nolint:noctx // as above
				if err != nil {
					t.Fatal(err)
				}
				if n, err := io.Copy(io.Discard, a.Body); n != size || err != nil {
					t.Errorf("beside slow %s: got %d bytes, %v", name, n, err)
				}
				_ = a.Body.Close()
				a, err = c.Post(w.url("/"), "text/plain", io.LimitReader(zeros{}, size)) //nolint:noctx // as above
				if err != nil {
					t.Fatal(err)
				}
				if b, err := io.ReadAll(a.Body); string(b) != fmt.Sprint(size) || err != nil {
					t.Errorf("beside slow %s: sent %s bytes, %v", name, b, err)
				}
				_ = a.Body.Close()
			}
			if took := time.Since(begun); took > 15*time.Second {
				t.Errorf("it took %s", took)
			}
		})
	}
}

// zeros are as many as are asked for.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

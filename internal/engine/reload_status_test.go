// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"testing"

	"github.com/weirlb/weir/internal/admin"
)

// TestStatusWhileListenersComeAndGo: who asks in the moment of a reload may see
// a generation and listeners that do not belong together.
func TestStatusWhileListenersComeAndGo(t *testing.T) {
	const one = `admin: {bind: "127.0.0.1:0"}
pools: {app: {backends: ["http://127.0.0.1:1"], health: {active: off}}}
listeners:
  web: {bind: "127.0.0.1:0", pool: app}
`
	r := start(t, one)
	stop, asked := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(asked)
		for {
			select {
			case <-stop:
				return
			default:
			}
			if s := r.Status(); len(s.Listeners) == 0 || len(s.Listeners) > 2 {
				t.Errorf("%d listeners", len(s.Listeners))
			}
			if _, err := r.Explain(admin.Question{Method: "GET", URL: "http://x/", Listener: "web"}); err != nil {
				t.Error(err)
			}
		}
	}()
	for range 50 {
		for _, text := range []string{one + "  side: {bind: \"127.0.0.1:0\", pool: app}\n", one} {
			if _, err := r.Reload(parse(t, text), ReloadOptions{}); err != nil {
				t.Fatal(err)
			}
		}
	}
	close(stop)
	<-asked
}

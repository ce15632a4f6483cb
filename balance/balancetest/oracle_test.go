// SPDX-License-Identifier: Apache-2.0

package balancetest

import (
	"fmt"
	"testing"

	"github.com/weirlb/weir/balance"
)

// first is the simplest wrong policy: it knows one rule of five.
type first struct{ set *balance.Set }

func (p first) Pick(balance.Request) (*balance.Backend, bool) {
	for _, m := range p.set.Members() {
		if m.Weight > 0 {
			return m.Backend, true
		}
	}
	return nil, false
}

// recorder notes a failure instead of failing.
type recorder struct{ failed string }

func (r *recorder) Helper()                           {}
func (r *recorder) Fatalf(format string, args ...any) { r.failed = fmt.Sprintf(format, args...) }

// The check must be able to fail: each state that first ignores is noticed, and
// none in which it is right.
func TestCheckCatches(t *testing.T) {
	for name, c := range map[string]struct {
		state func(b *balance.Backend, r *balance.Request)
		wrong bool
	}{
		"calm":        {func(*balance.Backend, *balance.Request) {}, false},
		"share 0.1":   {func(b *balance.Backend, _ *balance.Request) { b.SetShare(0.1) }, false},
		"share 0":     {func(b *balance.Backend, _ *balance.Request) { b.SetShare(0) }, true},
		"draining":    {func(b *balance.Backend, _ *balance.Request) { b.SetAdmin(balance.Draining) }, true},
		"suspect":     {func(b *balance.Backend, _ *balance.Request) { b.SetSuspect(true) }, true},
		"unreachable": {func(b *balance.Backend, _ *balance.Request) { b.SetUnreachable(true) }, true},
		"full":        {func(b *balance.Backend, _ *balance.Request) { b.SetLimit(1); b.Reserve() }, true},
		"tried":       {func(b *balance.Backend, r *balance.Request) { r.Tried.Add(b.Hash()) }, true},
		"prefer":      {func(_ *balance.Backend, r *balance.Request) { r.Prefer = backend(1).Hash() }, true},
	} {
		for _, others := range []int{0, 1} {
			members := []balance.Member{{Backend: backend(0), Weight: 1}}
			for i := range others {
				members = append(members, balance.Member{Backend: backend(1 + i), Weight: 1})
			}
			set := balance.NewSet(members, 1, false)
			var r balance.Request
			c.state(members[0].Backend, &r)
			var got recorder
			Check(&got, set, first{set}, r)
			// Alone it is right to be chosen unless it is excluded.
			want := c.wrong && (others > 0 || name == "share 0" || name == "draining")
			if (got.failed != "") != want {
				t.Errorf("%s, %d others: failed %q, want a failure: %v", name, others, got.failed, want)
			}
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"regexp"
	"testing"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/pool"
)

// TestLeaseFinishedTwiceIsCounted checks that a broken promise about leases is on
// the dashboard while weir runs, not only in the log when it stops.
func TestLeaseFinishedTwiceIsCounted(t *testing.T) {
	r := start(t, simple("", backend(t, "a")))
	var l pool.Lease
	if got := r.gen.Load().pools["app"].pool.Pick(&l, &balance.Request{}); got != pool.Granted {
		t.Fatal(got)
	}
	for range 2 {
		l.Done(pool.Outcome{Kind: pool.Canceled})
	}
	count := regexp.MustCompile(`weir_bug_total\{where="lease"\} [1-9]`)
	eventually(t, "counted", func() bool {
		return count.MatchString(mustGet(t, client(t), "http://"+r.Bound().Admin+"/metrics").body)
	})
}

func TestEjectionCauses(t *testing.T) {
	for why, want := range map[string]string{
		"5 bad answers in a row; ejected for 30s":                        "consecutive",
		"5 of 21 answers were 5xx, 0 of 40 elsewhere; ejected for 30s":   "error_share",
		"60 of 200 requests failed, 0 of 800 elsewhere; ejected for 30s": "success_rate",
		"median latency 503ms, 19ms elsewhere; ejected for 30s":          "latency",
		"failed on probation; ejected for 1m0s":                          "probation",
		"failed on probation: refused; ejected for 1m0s":                 "probation",
	} {
		if got := ejectionCause(why); got != want {
			t.Errorf("%q is %q, want %q", why, got, want)
		}
	}
}

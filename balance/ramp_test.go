// SPDX-License-Identifier: Apache-2.0

package balance_test

import (
	"math"
	"testing"
	"time"

	"github.com/weirlb/weir/balance"
)

func TestRampIsTheSmallerOfTwo(t *testing.T) {
	start := balance.Instant(0).Add(time.Hour)
	b := balance.NewBackend("a", "a")
	b.SetRamp(&balance.Ramp{Start: start, Window: 30 * time.Second, From: 0.1})
	for _, tt := range []struct {
		after       time.Duration
		share, want float64
	}{
		{-time.Second, 1, 0.1}, {0, 1, 0.1}, {15 * time.Second, 1, 0.55}, {15 * time.Second, 0.3, 0.3},
		{30 * time.Second, 1, 1}, {time.Hour, 0.5, 0.5}, {0, 0, 0},
	} {
		b.SetShare(tt.share)
		if got := b.ShareAt(start.Add(tt.after)); math.Abs(got-tt.want) > 1e-6 {
			t.Errorf("%v after the start, share %v: %v, want %v", tt.after, tt.share, got, tt.want)
		}
	}
	b.SetShare(1)
	b.SetRamp(nil)
	if b.ShareAt(start) != 1 || b.Ramp() != nil {
		t.Error("the ramp is not over")
	}
	if (&balance.Ramp{From: 0.1}).At(start) != 1 {
		t.Error("a ramp without a window takes time")
	}
}

func TestTotalCountsWhatIsInFlight(t *testing.T) {
	var total balance.Total
	var backends []*balance.Backend
	for _, id := range []string{"a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k"} {
		b := balance.NewBackend(id, id)
		b.SetTotal(&total)
		b.SetLimit(3)
		backends = append(backends, b)
	}
	want := int64(0)
	for i := range 1000 {
		b := backends[i*i%len(backends)]
		if i%3 == 2 && b.InFlight() > 0 {
			b.Release()
		} else {
			b.Reserve() // refused above 3: must not count
		}
		want = 0
		for _, b := range backends {
			want += b.InFlight()
		}
		if got := total.InFlight(); got != want {
			t.Fatalf("step %d: total %d, the backends hold %d", i, got, want)
		}
	}
}

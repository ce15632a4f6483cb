// SPDX-License-Identifier: Apache-2.0

package netconn

import (
	"errors"
	"io"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/internal/clock"
)

func TestArrears(t *testing.T) {
	for _, c := range []struct {
		name  string
		least int64
		taken []int64 // by one deadline after the other
		over  int     // at which of them; 0: at none
	}{
		{"nothing", 7200, []int64{0}, 1},
		{"nothing, and no least", 0, []int64{5, 0}, 2},
		{"a byte a second", 7200, []int64{30, 30}, 2},
		{"any progress", 0, []int64{1, 1, 1, 1}, 0},
		{"in lumps", 7200, []int64{4096, 8192, 4096, 8192, 8192}, 0},
		{"ever slower", 7200, []int64{7000, 6000, 5000, 4000, 3000}, 5},
		{"once only", 7200, []int64{10, 20000, 10, 20000}, 0},
	} {
		a, over := Arrears{Least: c.least}, 0
		for i, n := range c.taken {
			if a.Passed(n) && over == 0 {
				over = i + 1
			}
		}
		if over != c.over {
			t.Errorf("%s: too slow at %d, want %d", c.name, over, c.over)
		}
	}
}

// TestSpliceTrickled: what a destination has taken when its time is over gives it more
// time where any progress counts, and only once where that is too little.
func TestSpliceTrickled(t *testing.T) {
	for _, least := range []int64{0, 1 << 30} {
		r := newRelay(t, true)
		p := make([]byte, 1<<10)
		for {
			r.out.SetWriteDeadline(clock.Now().Add(5 * time.Millisecond))
			if n, err := r.out.Write(p); n == 0 && errors.Is(err, os.ErrDeadlineExceeded) {
				break
			}
		}
		s := &splicer{pipe: takePipe(), slow: Arrears{Least: least}}
		if s.pipe == nil {
			t.Fatal("no pipe")
		}
		for late := 0; late < 3; {
			if _, err := io.ReadFull(r.server, p); err != nil {
				t.Fatal(err)
			}
			n, _ := unix.Write(s.pipe.w, make([]byte, 120<<10)) // it holds more than there is room for
			s.held += max(n, 0)
			before := s.held
			ok := s.lastTry(r.out)
			if s.held == before {
				continue
			}
			late++
			if want := least == 0 || late == 1; ok != want || s.err != nil || s.held == 0 {
				t.Errorf("least %d: %v the %dth time, %d bytes are left, %v", least, ok, late, s.held, s.err)
				break
			}
		}
		s.drop()
	}
}

// SPDX-License-Identifier: Apache-2.0

package netconn

import (
	"errors"
	"io"
	"os"
	"testing"
	"time"

	"github.com/weirlb/weir/internal/clock"
)

// TestWriteLooksOnceMore: room that a slow reader made, too little for the
// kernel to say so, is found when the time is over.
func TestWriteLooksOnceMore(t *testing.T) {
	for _, spliced := range []bool{false, true} {
		r := newRelay(t, false)
		late := func(d time.Duration) { r.out.SetWriteDeadline(clock.Now().Add(d)) }
		p := make([]byte, 64<<10)
		stored := 0
		for {
			late(10 * time.Millisecond)
			n, err := r.out.Write(p)
			if stored += n; n == 0 && errors.Is(err, os.ErrDeadlineExceeded) {
				break
			}
		}
		go func() {
			// During the write or before it: either way there is room in the end.
			_, _ = io.CopyN(io.Discard, r.server, int64(stored/20))
		}()
		late(time.Second)
		var n int64
		if spliced {
			mustWrite(t, r.client, string(p))
			n, _ = Splice(r.out, r.in, int64(len(p)), nil)
		} else {
			k, _ := r.out.Write(p)
			n = int64(k)
		}
		if n == 0 {
			t.Errorf("spliced %v: no progress although %d of %d bytes were read", spliced, stored/20, stored)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package http2

import "github.com/weirlb/weir/internal/netconn"

// What a peer may send before it is told to go on. A stream's window begins
// small and grows while its content is taken as fast as it comes. The
// connection's is given back as content arrives, whoever will take it: a stream
// that is not read from holds up itself alone.
const (
	firstWindow = 64 << 10
	mostWindow  = 1 << 20
	leastWindow = 16 << 10 // under pressure
	connWindow  = 4 << 20
)

// recvWindow is what a peer may still send on a stream. Worked example: of a
// window of 64 KiB as much has arrived and was taken, and no more than a quarter
// lies here: it is not weir that the peer waits for, perhaps the way there and
// back, and the window doubles. With half of the budget in use it does not grow, with three quarters
// it is given back up to 16 KiB only.
type recvWindow struct {
	open  int // what the peer may send
	held  int // arrived and not yet taken
	size  int // what open and held are filled up to
	taken int // since size changed
}

func newRecvWindow(size int) recvWindow { return recvWindow{open: size, size: size} }

// arrive takes n bytes off. It reports false when there are more than may be.
func (w *recvWindow) arrive(n int) bool {
	if n > w.open {
		return false
	}
	w.open -= n
	w.held += n
	return true
}

// take notes that n bytes have been taken, and returns what is to be given back
// to the peer: 0 while that is too little to be worth a frame.
func (w *recvWindow) take(n int, b *netconn.Budget) int {
	w.held -= n
	w.taken += n
	size, p := w.size, b.Pressure()
	switch {
	case p >= 0.75:
		size = leastWindow
	case p < 0.5 && w.taken >= w.size && w.size < mostWindow && w.held <= w.size/4:
		w.size, w.taken = 2*w.size, 0
		size = w.size
	}
	back := size - w.held - w.open
	if back < size/2 {
		return 0
	}
	w.open += back
	return back
}

// sendWindow is what may be sent; it may be negative after SETTINGS (RFC 9113
// section 6.9.2).
type sendWindow int64

// add changes it and reports that it is within bounds.
func (w *sendWindow) add(n int64) bool {
	*w += sendWindow(n)
	return *w <= maxWindow
}

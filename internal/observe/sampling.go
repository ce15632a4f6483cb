// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/weirlb/weir/internal/message"
)

// kept is what a word of AccessLogOptions.Always stands for.
type kept uint8

const (
	keptErrors kept = 1 << iota
	keptRetried
	keptRefused
	keptAborted
)

var keptWords = []struct {
	word string
	is   kept
}{
	{"errors", keptErrors},   // answered with 500 or above, by a backend or by weir, or cut by something other than the client
	{"retried", keptRetried}, // more than one attempt was needed
	{"refused", keptRefused}, // weir itself refused it with a 4xx
	{"aborted", keptAborted}, // the client went away
}

// Kept returns the words of AccessLogOptions.Always: errors (the answer was 500
// or above, or was cut by something other than the client), retried (more than
// one attempt), refused (weir itself answered with a 4xx) and aborted (the
// client went away).
func Kept() []string {
	var out []string
	for _, k := range keptWords {
		out = append(out, k.word)
	}
	return out
}

// sampling decides which requests are logged. The zero value logs all.
type sampling struct {
	share  float64 // 0: all
	always kept
	slow   time.Duration // 0: slowness does not count
}

func newSampling(opt *AccessLogOptions) (sampling, error) {
	s := sampling{slow: opt.Slow}
	if opt.Sample > 0 && opt.Sample < 1 {
		s.share = opt.Sample
	}
next:
	for _, w := range opt.Always {
		for _, k := range keptWords {
			if k.word == w {
				s.always |= k.is
				continue next
			}
		}
		return s, fmt.Errorf("access log: always: %q is none of %s", w, strings.Join(Kept(), ", "))
	}
	return s, nil
}

// rate is the share at which requests like this one are logged; 0: this one is
// not. Its inverse is how many requests the line stands for.
func (s *sampling) rate(r *Record) float64 {
	switch {
	case s.share == 0 || s.keeps(r):
		return 1
	case rand.Float64() < s.share:
		return s.share
	default:
		return 0
	}
}

func (s *sampling) keeps(r *Record) bool {
	if s.slow > 0 && r.Total >= s.slow && !r.Tunnel {
		return true
	}
	var is kept
	switch code := r.Reason.Status(); {
	case r.code() >= 500 || code >= 500:
		is = keptErrors
	case r.Reason == message.ClientAbort:
		is = keptAborted
	case code >= 400:
		is = keptRefused
	}
	if r.Attempts > 1 || len(r.Tried) > 0 {
		is |= keptRetried
	}
	return is&s.always != 0
}

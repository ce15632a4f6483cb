// SPDX-License-Identifier: Apache-2.0

package l7

import (
	"github.com/weirlb/weir/internal/message"
)

// Marks between weirs (S6). Layers that retry multiply: three of them, each with
// a budget of 20 %, send 1.2 x 1.2 x 1.2 = 1.73 requests for one while half of
// the answers fail. So they agree:
//
//   - X-Weir-Attempt: N goes down with each attempt to a pool of weirs. N counts
//     the attempts along the way: a weir behind a trusted one goes on from its
//     number.
//   - X-Weir-Retry: no comes up with an answer after which no layer above is to
//     retry, because the one that gives it has, or declined to. It is said to
//     those who sent X-Weir-Attempt and to trusted weirs, and passed on by them;
//     others never see it. With it the layer next to the servers retries alone,
//     and the three send 1.2.
//
// Whoever sends X-Weir-Attempt without being a weir learns of a retry and gains
// nothing by it; its number is believed of trusted weirs only.
const (
	attemptName = "X-Weir-Attempt"
	retryName   = "X-Weir-Retry"
	retryNo     = "no"
)

// maxAttempt is the highest number that is passed on. Loops of weirs end by
// their timeouts; a number without bound would only be longer.
const maxAttempt = 99

// digits are the numbers of attempts as they are written.
var digits = func() (out [maxAttempt + 1]string) {
	for i := range out {
		if i >= 10 {
			out[i] = string(rune('0' + i/10))
		}
		out[i] += string(rune('0' + i%10))
	}
	return out
}()

// readMark looks at line i of the request, whose name begins with X-Weir-. It is
// removed, unless a trusted weir says something to those behind this one.
func (e *exchange) readMark(f *message.Fields, i int) {
	weir := e.ci.scratch.weir
	if !message.EqualFold(f.Name(i), attemptName) {
		switch {
		case !weir:
			f.Remove(i)
		case message.EqualFold(f.Name(i), priorityName):
			e.readPriority(f, i)
		}
		return
	}
	e.above = true
	if weir {
		e.before = max(attemptNumber(f.Value(i))-1, 0)
	}
	f.Remove(i) // it counts to here; attemptMark goes on
}

// attemptNumber reads N, 1 when it cannot be read.
func attemptNumber(v []byte) int {
	n := 0
	for _, c := range v {
		if c < '0' || c > '9' {
			return 1
		}
		n = min(n*10+int(c-'0'), maxAttempt)
	}
	return max(n, 1)
}

// attemptMark says to a backend that is a weir which attempt this is.
func (e *exchange) attemptMark() {
	f := &e.req.Fields
	if e.markLine > 0 {
		f.Remove(e.markLine)
	}
	e.markLine = f.Len()
	f.Add(message.WeirAny, attemptName, digits[min(e.before+e.rec.Attempts, maxAttempt)])
}

// noRetry reports whether the answer's fields say that it is not to be retried.
func noRetry(f *message.Fields) bool {
	for i := range f.Len() {
		if f.ID(i) == message.WeirAny && saysNo(f, i) {
			return true
		}
	}
	return false
}

func saysNo(f *message.Fields, i int) bool {
	return !f.Removed(i) && message.EqualFold(f.Name(i), retryName) && message.EqualFold(f.Value(i), retryNo)
}

// marks reports that who asks hears of it when an answer is not to be retried.
func (e *exchange) marks() bool { return e.above || e.ci.scratch.weir }

// answerMark tells a weir in front that it need not retry.
func (e *exchange) answerMark(f *message.Fields) {
	if e.final && e.marks() {
		f.Add(message.WeirAny, retryName, retryNo)
	}
}

// passMark is answerMark for a backend's answer. below says that it carried the
// mark of a weir.
//
// A call's status that comes alone says the same by a negative pushback, which
// clients of gRPC and other proxies heed as well. One that is a server's own stays
// whoever asks; one that a weir has put beside its mark goes no further than that.
func (e *exchange) passMark(f *message.Fields, below bool) {
	c := &e.call
	if !c.on || !c.known {
		e.answerMark(f)
		return
	}
	never := c.pushed && c.pushback < 0
	switch {
	case !e.final || never && !below: // there is nothing to say, or it is said
	case !e.marks():
		if never {
			f.RemoveID(message.GRPCPushback)
		}
	default:
		f.RemoveID(message.GRPCPushback)
		f.Add(message.GRPCPushback, grpcPushbackName, "-1")
		f.Add(message.WeirAny, retryName, retryNo)
	}
}

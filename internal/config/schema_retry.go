// SPDX-License-Identifier: Apache-2.0

package config

import (
	"slices"
	"strconv"
	"strings"
	"time"
)

// retryFields are shared by routes and pools.
var retryFields = []field[Retry]{
	key("attempts", "2", integer(1, 10), func(r *Retry) *int { return &r.Attempts }, "every try, the first included; 1 also forbids redispatches"),
	&whenField{spec{name: "when", kind: "list of reset, status or gRPC status", def: "[reset, 502, 503, 504]", off: "none", rng: "reset, 429, 500 to 599, " + grpcRange, doc: "failures that are retried after the request was sent; redispatches need no permission. A gRPC status is retried where the answer is nothing else, whatever the call does"}},
	key("within", "5s", duration(tick, time.Hour), func(r *Retry) *time.Duration { return &r.Within }, "no retry later than this after the first failure").off("none", 0),
	key("body", "64KiB", size(0, 16<<20, ""), func(r *Retry) *int64 { return &r.Body }, "largest content kept for a replay; 0: only requests without content are retried").zero(),
	key("idempotency_key", "Idempotency-Key", text("field name", fieldName), func(r *Retry) *string { return &r.IdempotencyKey },
		"request field that says that the backend recognises a second copy, so that any method may be sent again; none: GET, HEAD, OPTIONS, PUT and DELETE alone are").off("none", ""),
	keys("hedge", "a second attempt beside one without an answer; the first answer is passed on, the other attempt is cut", func(r *Retry) *Hedge { return &r.Hedge }, []field[Hedge]{
		key("after", "none", hedgeAfter, func(h *Hedge) *HedgeAfter { return &h.After },
			"when: a time, or so many percent of the pool's answers of late would have come").off("none", HedgeAfter{}),
		key("max", "1", integer(1, 1), func(h *Hedge) *int { return &h.Max }, "hedges of a request; each counts as one of attempts and is paid for from the budget"),
	}).offMeans(func(h *Hedge) { h.After = HedgeAfter{} }).checked(func(d *decoder, n *node, h *Hedge) {
		if h.After == (HedgeAfter{}) && n.get("after") == nil {
			d.fault(n, "hedge does not say when", "add after, such as hedge: {after: 95%}")
		}
	}),
}

// hedgeAfter reads a percentage of answers or a time.
var hedgeAfter codec[HedgeAfter] = simple[HedgeAfter]{
	name: "percentage or duration", limits: "50% to 99%, or 1ms to 1h",
	parse: func(text string) (HedgeAfter, string, string) {
		if number, ok := strings.CutSuffix(text, "%"); ok {
			n, err := strconv.Atoi(number)
			switch {
			case err != nil || !digits(number) || number != strconv.Itoa(n):
				return HedgeAfter{}, quote(text) + " is not a whole percentage", "write such as 95%"
			case n < 50 || n > 99:
				return HedgeAfter{}, text + " is out of range", "allowed is 50% to 99%: so many answers come before the hedge, the others are asked for twice"
			}
			return HedgeAfter{Percent: n}, "", ""
		}
		v, what, fix := duration(tick, time.Hour).(simple[time.Duration]).parse(text)
		return HedgeAfter{Time: v}, what, fix
	},
	format: func(h HedgeAfter) string {
		if h.Percent != 0 {
			return strconv.Itoa(h.Percent) + "%"
		}
		return showDuration(h.Time)
	},
}

// poolRetry is what a route's retry starts from.
func poolRetry(plan *Plan, r *Route) Retry {
	if p := plan.Pool(r.Pool); p != nil {
		return p.Retry
	}
	return defaultsOf(retryFields)
}

// whenField reads retry.when into OnReset, OnStatus and OnGRPC.
type whenField struct{ s spec }

func (w *whenField) spec() *spec                  { return &w.s }
func (w *whenField) absent(*decoder, *Retry) bool { return false }
func (w *whenField) settle(*Retry)                {}
func (w *whenField) defaults(r *Retry) {
	r.OnReset, r.OnStatus, r.OnGRPC = true, []int{502, 503, 504}, nil
}

var whenItem codec[string] = simple[string]{
	name: "reset, status or gRPC status",
	parse: func(text string) (string, string, string) {
		n, err := strconv.Atoi(text)
		switch {
		case text == "reset":
			return text, "", ""
		case strings.HasPrefix(text, "grpc_"):
			return grpcWhen(text)
		case !digits(text):
			return "", quote(text) + " is not known here", "use reset and status codes such as 503"
		case err != nil || len(text) != 3 || n != 429 && (n < 500 || n > 599):
			return "", text + " is not retried", "use 429 or a status from 500 to 599"
		}
		return text, "", ""
	},
	format: func(s string) string { return s },
}

func (w *whenField) read(d *decoder, n *node, r *Retry) bool {
	if switchedOff(n) {
		r.OnReset, r.OnStatus, r.OnGRPC = false, nil, nil
		return false
	}
	items, ok := listOf(whenItem, nil).scan(d, n, &w.s)
	if !ok {
		return false
	}
	r.OnReset, r.OnStatus, r.OnGRPC = false, nil, nil
	for _, i := range items {
		if i == "reset" {
			r.OnReset = true
			continue
		}
		if status, ok := grpcStatuses[i]; ok {
			r.OnGRPC = append(r.OnGRPC, status)
			continue
		}
		code, _ := strconv.Atoi(i) // checked by whenItem
		r.OnStatus = append(r.OnStatus, code)
	}
	slices.Sort(r.OnStatus)
	slices.Sort(r.OnGRPC)
	return false
}

func (w *whenField) show(r *Retry) *node {
	n := &node{kind: list}
	if r.OnReset {
		n.items = append(n.items, textNode("reset"))
	}
	for _, c := range r.OnStatus {
		n.items = append(n.items, &node{kind: scalar, text: itoa(c), quoted: true})
	}
	for _, c := range r.OnGRPC {
		for name, status := range grpcStatuses {
			if status == c {
				n.items = append(n.items, textNode(name))
			}
		}
	}
	return n
}

func (w *whenField) write(wr *writer, r, ref *Retry) *node {
	n := w.show(r)
	if !wr.full && same(n, w.show(ref)) {
		return nil
	}
	return n
}

// lifted is a field of a U used in a T.
type lifted[T, U any] struct {
	field[U]
	at func(*T) *U
}

func lift[T, U any](fields []field[U], at func(*T) *U) []field[T] {
	out := make([]field[T], len(fields))
	for i, f := range fields {
		out[i] = lifted[T, U]{f, at}
	}
	return out
}

func (l lifted[T, U]) read(d *decoder, n *node, t *T) bool { return l.field.read(d, n, l.at(t)) }
func (l lifted[T, U]) absent(d *decoder, t *T) bool        { return l.field.absent(d, l.at(t)) }
func (l lifted[T, U]) settle(t *T)                         { l.field.settle(l.at(t)) }
func (l lifted[T, U]) defaults(t *T)                       { l.field.defaults(l.at(t)) }
func (l lifted[T, U]) write(w *writer, t, ref *T) *node {
	return l.field.write(w, l.at(t), l.at(ref))
}

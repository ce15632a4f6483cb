// SPDX-License-Identifier: Apache-2.0

package balance

import "math"

// This file is the one place that says who may be chosen. Policies differ in
// the order in which they consider candidates, never in these rules:
//
//   - excluded for good: weight 0 (not in the roster), draining or disabled, and
//     a share of 0 unless the set is panicked;
//   - the others stand in a line (standing): a worse one is chosen only when
//     nobody with a better standing is left;
//   - among those of the best standing the policy's choice is accepted with
//     probability share / largest share in the set, else the next in the
//     policy's own order is considered, and the last is taken regardless.
//     Share is no weight: as one, an idle newcomer at a tenth would still win
//     most comparisons of load and get 0.65 to 0.98 of a full member's work.

// standing orders candidates, best first. It is a sum of flags, each worth more
// than all below it, so that two numbers compare as one would argue: someone
// who was tried already comes after everyone else, whatever their state.
type standing uint8

const (
	clean       standing = 0
	suspect     standing = 1  // one refused connection, verdict still out
	full        standing = 2  // a reservation would be refused, yet a slot may come free
	unreachable standing = 4  // a connection attempt got nowhere lately: a fact, which panic does not set aside
	tried       standing = 8  // this very request has been there
	excluded    standing = 16 // may not be chosen at all
)

// ready reports that nothing needs to be weighed about b: enabled, share 1,
// unsuspected, with room. It is the common case, and one cache line.
func (b *Backend) ready() bool {
	return b.status.Load() == readyStatus && !b.Full()
}

// standing judges a member for a request.
func (ro *roster) standing(b *Backend, r *Request) standing {
	s := clean
	if status := b.status.Load(); status != readyStatus {
		if status&adminMask != 0 || (!ro.panicked && shareOf(status) <= 0) {
			return excluded
		}
		if status&flagSuspect != 0 {
			s |= suspect
		}
		if status&flagUnreachable != 0 {
			s |= unreachable
		}
	}
	if b.Full() {
		s |= full
	}
	if r.Tried.n != 0 && r.Tried.Has(b.hash) {
		s |= tried
	}
	return s
}

// preferred returns the sticky backend when it may take work without any
// reservation. Its share does not count: what health admits little by little is
// new work, and a session that lives on the backend is not new.
func (ro *roster) preferred(r *Request) *Backend {
	if r.Prefer == 0 {
		return nil
	}
	i := ro.find(r.Prefer)
	if i < 0 || ro.standing(ro.slots[i].backend, r) != clean {
		return nil
	}
	return ro.slots[i].backend
}

// admits throws the coin that a share stands for.
func (ro *roster) admits(b *Backend, d *dice, now Instant) bool {
	s := ro.relativeShare(b, now)
	return s >= 1 || d.unit() < s
}

// relativeShare returns share / largest share in the set, at most 1, and 1 in
// panic: with everyone at a half, everyone is admitted.
func (ro *roster) relativeShare(b *Backend, now Instant) float64 {
	s := b.shareAt(b.status.Load(), now)
	if s >= 1 || ro.panicked {
		return 1
	}
	top := ro.topShare(now)
	if s >= top {
		return 1
	}
	return float64(s) / float64(top)
}

const (
	topExact = 64 // up to here the largest share is looked up at every coin
	topTick  = 23 // above, once in 2^23 ns (8.4 ms)
)

// topShare returns the largest share of an enabled member. It is asked only
// when a member below 1 has been drawn, and ends at the first member at 1, so a
// ramping newcomer among established members costs a look or two. Where nobody
// is at 1 everyone has to be looked at; in large sets the answer is therefore
// kept for the tick of the caller's clock it was found in.
func (ro *roster) topShare(now Instant) float32 {
	keep := len(ro.slots) > topExact
	tick := uint64(uint32(now>>topTick)) << 32
	if keep {
		if v := ro.top.Load(); v != 0 && v&(0xffffffff<<32) == tick {
			return math.Float32frombits(uint32(v))
		}
	}
	top := float32(0)
	for i := range ro.slots {
		b := ro.slots[i].backend
		status := b.status.Load()
		if s := b.shareAt(status, now); s > top && status&adminMask == 0 {
			if top = s; s >= 1 {
				break
			}
		}
	}
	if keep {
		ro.top.Store(tick | uint64(math.Float32bits(top)))
	}
	return top
}

// spin draws until it has found a clean member whose share admits it, which
// makes the chance of each proportional to weight x share. When patience ends
// it takes the exact way to the same distribution.
func (ro *roster) spin(d *dice, r *Request) (*Backend, bool) {
	for range ro.patience {
		b := ro.slots[ro.draw(d.next())].backend
		if b.ready() && r.Tried.n == 0 ||
			ro.standing(b, r) == clean && ro.admits(b, d, r.Now) {
			return b, true
		}
	}
	i, s := ro.survey(d, r, nil, true)
	if s == excluded {
		return nil, false
	}
	return ro.slots[i].backend, true
}

// survey looks at every member: it returns one of the best standing there is,
// with a chance proportional to its weight (times its share, if byShare), and
// that standing; excluded when nobody may be chosen. Members in not are left out.
//
// It costs some nanoseconds for each member and is the way out when draws do
// not find anybody: most members are excluded and the picker has not been
// rebuilt yet, or every slot is taken. That is what makes the promises of
// standing absolute.
func (ro *roster) survey(d *dice, r *Request, not []uint32, byShare bool) (int, standing) {
	best, mass, found := excluded, 0.0, 0
	for i := range ro.slots {
		s, m := ro.weigh(i, r, byShare)
		if s > best || s == excluded || contains(not, i) {
			continue
		}
		if s < best {
			best, mass = s, 0
		}
		mass += m
		found = i
	}
	if best == excluded {
		return 0, excluded
	}
	// States may change between the passes; then whoever is found on the way,
	// or was found in the first pass, is good enough.
	at := d.unit() * mass
	for i := range ro.slots {
		s, m := ro.weigh(i, r, byShare)
		if s > best || s == excluded || contains(not, i) {
			continue
		}
		found = i
		if at -= m; at < 0 {
			break
		}
	}
	return found, best
}

func (ro *roster) weigh(i int, r *Request, byShare bool) (standing, float64) {
	b := ro.slots[i].backend
	s := ro.standing(b, r)
	m := float64(ro.weights[i])
	if byShare && !ro.panicked {
		m *= b.ShareAt(r.Now)
	}
	return s, m
}

func contains(list []uint32, i int) bool {
	for _, v := range list {
		if int(v) == i {
			return true
		}
	}
	return false
}

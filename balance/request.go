// SPDX-License-Identifier: Apache-2.0

package balance

// BackendID is the stable 64-bit hash of a backend's id text (IDOf). It is
// equal on every balancer, so hash policies and sticky sessions agree across a
// fleet. Zero means "none".
type BackendID uint64

// Request is what a policy may know of the work to place. It is passed by
// value; a policy never keeps it.
type Request struct {
	Key      uint64    // hash of the request's key, meaningful when HasKey
	HasKey   bool      // false: hash policies use their fallback
	Rand     uint64    // 64 fresh random bits; the only entropy a policy may use
	Now      Instant   // the time of the pick
	Prefer   BackendID // sticky backend, zero for none; honoured when it may take work
	Tried    Tried     // backends that this request has already tried
	Priority Priority  // decides who is refused first when not all can be served
	Cost     uint32    // work units of this request; zero counts as one
}

// triedMax bounds Tried; attempts beyond it overwrite the oldest entry.
const triedMax = 8

// Tried remembers which backends an exchange has already used, so that a
// redispatch or a retry goes elsewhere. The zero value is empty. It is a plain
// value of fixed size and never allocates.
type Tried struct {
	ids [triedMax]BackendID
	n   uint8
}

// Add records a backend. When full, the oldest entry is overwritten.
func (t *Tried) Add(id BackendID) {
	t.ids[t.n%triedMax] = id
	t.n++
	if t.n == 2*triedMax {
		t.n = triedMax
	}
}

// Has reports whether the backend has been recorded.
func (t *Tried) Has(id BackendID) bool {
	for i := range t.Len() {
		if t.ids[i] == id {
			return true
		}
	}
	return false
}

// Len returns how many backends are remembered, at most 8.
func (t *Tried) Len() int { return min(int(t.n), triedMax) }

// IDOf hashes a backend's id text (FNV-1a, 64 bits, finished with splitmix64 so
// that ids which differ in one digit land far apart). It never returns zero.
func IDOf(id string) BackendID {
	h := uint64(14695981039346656037)
	for i := range len(id) {
		h ^= uint64(id[i])
		h *= 1099511628211
	}
	h = splitmix64(h)
	if h == 0 {
		h = 1
	}
	return BackendID(h)
}

// splitmixGamma is the step of splitmix64's counter, 2^64 over the golden ratio.
const splitmixGamma = 0x9e3779b97f4a7c15

// splitmix64 is the finalizer of Steele, Lea and Flood, "Fast splittable
// pseudorandom number generators" (OOPSLA 2014).
func splitmix64(x uint64) uint64 {
	x += splitmixGamma
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

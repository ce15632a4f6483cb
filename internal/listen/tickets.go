// SPDX-License-Identifier: Apache-2.0

package listen

import (
	"crypto/rand"
	"crypto/tls"
	"errors"
	"slices"
	"sync"
	"time"
)

// How long a session ticket (RFC 8446, section 4.6.1; RFC 5077 for TLS 1.2) can be
// used is how long its key is kept. A key makes tickets for ticketRotation, then
// opens them for ticketOld rotations more: a client that comes back within a day
// resumes, whenever its ticket was made, and one that comes after 32 hours does
// not.
//
// It is a trade. Whoever gets hold of a key can read what was said in TLS 1.2 over
// connections whose tickets it made, and take the place of the client of a session
// that resumes; in TLS 1.3 what was said stays secret, as resumption exchanges keys
// anew. So keys are to be short-lived: 32 hours are the shortest that leave nobody
// out who comes daily. crypto/tls, left to itself, keeps them for eight days.
const (
	ticketRotation = 8 * time.Hour
	ticketOld      = 3
	// ticketLife is the longest that a ticket can be used, a day of it for sure.
	ticketLife = (ticketOld + 1) * ticketRotation
)

// TicketKey is a key of session tickets, for another process that serves the same
// listener. It is a secret: it is handed from process to process and written
// nowhere.
type TicketKey struct {
	Key []byte        `json:"key"` // 32 bytes
	Age time.Duration `json:"age"` // since it was made
}

// String hides the key.
func (TicketKey) String() string { return "***" }

// GoString hides it, too.
func (TicketKey) GoString() string { return "***" }

// tickets makes and keeps the keys of one listener. Each has its own: a session
// says who the client is and what the server showed it, and a ticket that another
// listener opens would carry that past the other's certificates and its client
// authentication. Keys outlive changes of the options, of the certificates too: it
// is still the same party that the client has spoken with, under the same name.
type tickets struct {
	mu     sync.Mutex // guards what follows
	keys   []ticketKey
	shared [][32]byte  // in their place, from a file; nil: there is none
	config *tls.Config // that uses them; nil: nobody does
	timer  *time.Timer // for the next rotation; nil until somebody uses them
	closed bool
}

type ticketKey struct {
	key  [32]byte
	born time.Time
}

func newTickets() *tickets { return &tickets{} }

// use makes a store's tickets those of these keys, in the place of the store that
// used them until now; nil: there is no TLS any more. A store whose keys come from
// a file has them follow the file, made the listener's own by its name.
func (t *tickets) use(s *certStore, listener string) {
	t.mu.Lock()
	t.config, t.shared = nil, nil
	if s != nil {
		t.config = s.config
	}
	t.mu.Unlock()
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.onKeys = func(keys [][32]byte) { t.share(s.config, derive(keys, listener)) }
	s.onKeys(s.now.Load().keys)
}

// share puts keys of a file into force, or none, if the configuration is still
// the one that is used.
func (t *tickets) share(config *tls.Config, keys [][32]byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.config != config {
		return
	}
	t.shared = nil
	if len(keys) > 0 {
		t.shared = keys
	}
	t.turnLocked()
}

// close ends the rotation. The keys stay in use by handshakes under way.
func (t *tickets) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
	if t.timer != nil {
		t.timer.Stop()
	}
}

func (t *tickets) turn() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.turnLocked()
}

// turnLocked makes a new key if the newest is due, forgets those that are too old
// and puts the rest into force.
func (t *tickets) turnLocked() {
	if t.config == nil || t.closed {
		return
	}
	if t.shared != nil {
		t.config.SetSessionTicketKeys(t.shared)
		if t.timer != nil {
			t.timer.Stop()
		}
		return
	}
	now := time.Now()
	if len(t.keys) == 0 || now.Sub(t.keys[0].born) >= ticketRotation {
		k := ticketKey{born: now}
		_, _ = rand.Read(k.key[:]) // it does not fail: crypto/rand ends the process instead
		t.keys = append([]ticketKey{k}, t.keys...)
	}
	t.keys = slices.DeleteFunc(t.keys, func(k ticketKey) bool { return now.Sub(k.born) >= ticketLife })
	raw := make([][32]byte, len(t.keys))
	for i := range t.keys {
		raw[i] = t.keys[i].key
	}
	t.config.SetSessionTicketKeys(raw)
	next := max(t.keys[0].born.Add(ticketRotation).Sub(now), time.Second)
	if t.timer == nil {
		t.timer = time.AfterFunc(next, t.turn)
	} else {
		t.timer.Reset(next)
	}
}

// export returns the keys, the newest first; nil where nobody uses them, and where
// they are in a file.
func (t *tickets) export() []TicketKey {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.config == nil || t.shared != nil {
		return nil
	}
	now := time.Now()
	out := make([]TicketKey, 0, len(t.keys))
	for i := range t.keys {
		out = append(out, TicketKey{slices.Clone(t.keys[i].key[:]), now.Sub(t.keys[i].born)})
	}
	return out
}

// errTicketKeys is said without the keys.
var errTicketKeys = errors.New("what was handed over as keys of session tickets is none")

// restore puts other keys in the place of those that there are. Tickets that were
// made with the latter are worthless from then on. It is all or nothing.
func (t *tickets) restore(list []TicketKey) error {
	now := time.Now()
	keys := make([]ticketKey, 0, len(list))
	for _, k := range list {
		if len(k.Key) != 32 || k.Age < 0 {
			return errTicketKeys
		}
		if k.Age < ticketLife {
			keys = append(keys, ticketKey{[32]byte(k.Key), now.Add(-k.Age)})
		}
	}
	slices.SortStableFunc(keys, func(a, b ticketKey) int { return b.born.Compare(a.born) })
	keys = keys[:min(len(keys), ticketOld+1)]
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(keys) > 0 && t.config != nil && t.shared == nil {
		t.keys = keys
		t.turnLocked()
	}
	return nil
}

// TicketKeys returns the keys of the listener's session tickets, the newest first;
// nil for a plain listener, and for one whose keys are in a file.
func (l *Listener) TicketKeys() []TicketKey { return l.tickets.export() }

// SetTicketKeys takes over those that another process's listener of the same name
// had, so that its clients resume here; tickets made by this one before are
// worthless then. Keys that are too old are left out. On an error nothing has
// changed. A plain listener ignores it.
func (l *Listener) SetTicketKeys(keys []TicketKey) error { return l.tickets.restore(keys) }

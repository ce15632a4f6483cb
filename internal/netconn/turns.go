// SPDX-License-Identifier: Apache-2.0

package netconn

import "github.com/weirlb/weir/balance"

// Turns bounds how many TLS handshakes compute at the same time, so that a
// burst of them does not starve established connections. A handshake that
// waits for its peer holds no turn: silent peers block nobody.
type Turns struct{ sem chan struct{} }

// NewTurns returns n turns, at least one.
func NewTurns(n int) *Turns { return &Turns{sem: make(chan struct{}, max(n, 1))} }

func (t *Turns) take() { t.sem <- struct{}{} }
func (t *Turns) give() { <-t.sem }

// HandshakeTurns is Handshake with the computing parts taken in turns.
func (c *Conn) HandshakeTurns(deadline balance.Instant, t *Turns) error {
	if c.tls == nil || t == nil {
		return c.Handshake(deadline)
	}
	t.take()
	c.turns = t
	defer func() {
		c.turns = nil
		t.give()
	}()
	return c.Handshake(deadline)
}

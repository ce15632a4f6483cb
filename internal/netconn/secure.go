// SPDX-License-Identifier: Apache-2.0

package netconn

import "crypto/tls"

// Secure makes a plain connection the serving half of TLS: what Server does for
// one of which bytes were read before. first are those bytes, which TLS reads
// before anything else; they are not copied, and not to be changed. The caller
// runs Handshake. Nobody else may use the connection meanwhile; what SetOnClose
// was given stays. A connection that has TLS already is left as it is.
func (c *Conn) Secure(cfg *tls.Config, first []byte) {
	if c.TLS() != nil {
		return
	}
	c.first = first
	c.tls = tls.Server((*under)(c), cfg)
}

// AlsoOnClose adds to what SetOnClose was given: fn is called after it. Call it
// before the connection is shared.
func (c *Conn) AlsoOnClose(fn func()) {
	before := c.onClose
	if before == nil {
		c.onClose = fn
		return
	}
	c.onClose = func() {
		before()
		fn()
	}
}

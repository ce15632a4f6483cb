// SPDX-License-Identifier: Apache-2.0

package listen

import (
	"cmp"
	"time"
)

// Certificate says which certificate a listener serves, and until when.
type Certificate struct {
	Name     string // its first DNS name, else its subject
	NotAfter time.Time
}

// Certificates returns those that the next handshakes choose from, in the order
// of the options; none without TLS.
func (l *Listener) Certificates() []Certificate {
	certs := l.set.Load().certs
	if certs == nil {
		return nil
	}
	var out []Certificate
	for _, c := range certs.now.Load().all {
		name := ""
		if len(c.Leaf.DNSNames) > 0 {
			name = c.Leaf.DNSNames[0]
		}
		out = append(out, Certificate{Name: cmp.Or(name, c.Leaf.Subject.String()), NotAfter: c.Leaf.NotAfter})
	}
	return out
}

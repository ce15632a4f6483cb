// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/weirlb/weir/internal/admin"
)

// endsSoon is how long before its end a certificate is mentioned.
const endsSoon = 30 * 24 * time.Hour

// printListener writes a listener in one line, and one for each certificate
// that ends soon.
func printListener(w io.Writer, l *admin.Listener) {
	fmt.Fprintf(w, "listener %s on %s: %d connections", l.Name, cmp.Or(strings.Join(l.Bind, ", "), "no address (routes lead to it)"), l.Connections)
	if l.AcceptQueue > 0 && l.AcceptQueueLimit > 0 {
		fmt.Fprintf(w, ", %d more wait to be accepted, of at most %d", l.AcceptQueue, l.AcceptQueueLimit)
	}
	fmt.Fprintln(w)
	for _, c := range l.Certificates {
		switch left := time.Until(c.NotAfter); {
		case c.NotAfter.IsZero() && c.Error != "":
			fmt.Fprintf(w, "  certificate %s is NOT ISSUED yet: %s\n", c.Name, c.Error)
		case c.NotAfter.IsZero():
			fmt.Fprintf(w, "  certificate %s is being ordered\n", c.Name)
		case c.Error != "" && left >= 0:
			fmt.Fprintf(w, "  certificate %s ends in %s and is NOT RENEWED: %s\n", c.Name, since(left.Seconds()), c.Error)
		case left < 0:
			fmt.Fprintf(w, "  certificate %s ENDED %s ago\n", c.Name, since(-left.Seconds()))
		case left < endsSoon:
			fmt.Fprintf(w, "  certificate %s ends in %s, on %s\n", c.Name, since(left.Seconds()), c.NotAfter.UTC().Format("2006-01-02"))
		}
	}
}

// printMemory writes how much of a limit is needed, if there is one.
func printMemory(w io.Writer, m *admin.Memory) {
	if m.Limit == 0 {
		return
	}
	fmt.Fprintf(w, "memory: %d MiB needed, of %d MiB", m.Needed>>20, m.Limit>>20)
	if m.Short {
		fmt.Fprint(w, ", OUT OF MEMORY: new connections and requests are refused")
	}
	fmt.Fprintln(w)
}

// printHost writes what the kernel says of the host, if it says anything.
func printHost(w io.Writer, h *admin.Host) {
	if h == nil {
		return
	}
	fmt.Fprintf(w, "host: %d connections in TIME_WAIT", h.TimeWait)
	if h.Destination != "" {
		fmt.Fprintf(w, ", %d local ports left towards %s", h.PortsFree, h.Destination)
	}
	if h.AcceptOverflows > 0 {
		fmt.Fprintf(w, ", %d connections lost to full accept queues since the machine started", h.AcceptOverflows)
	}
	fmt.Fprintln(w)
}

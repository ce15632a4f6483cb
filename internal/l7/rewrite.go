// SPDX-License-Identifier: Apache-2.0

package l7

import (
	"strings"

	"github.com/weirlb/weir/internal/message"
)

// rewrite applies the route's rewrites to what is forwarded.
func (e *exchange) rewrite() {
	w, r := &e.rt.Rewrite, e.req
	if w.Host != "" {
		r.Fields.RemoveID(message.Host)
		r.Fields.Add(message.Host, "Host", w.Host)
	} else if len(r.Authority) == 0 {
		// HTTP/1.0 without Host. Toward the backend weir speaks HTTP/1.1, which
		// needs one, and not an empty one (nginx refuses that): the client named
		// the server by the address it connected to.
		if l := e.ci.Local; l.IsValid() {
			r.Fields.AddFunc(message.Host, "Host", l.AppendTo)
		}
	}
	if len(r.Routed) > 0 && r.Routed[0] != '/' {
		return // OPTIONS *
	}
	switch {
	case w.Path != "":
		e.rpath = append(e.rpath[:0], w.Path...)
		r.Routed = e.rpath
	case w.StripPrefix != "":
		r.Routed = stripPrefix(r.Routed, w.StripPrefix)
	}
}

// stripPrefix removes whole segments: /v1 turns /v1/x into /x and /v1 into /,
// and leaves /v10 alone. A slash at the end of the prefix changes nothing.
func stripPrefix(path []byte, prefix string) []byte {
	prefix = strings.TrimSuffix(prefix, "/")
	if len(path) < len(prefix) || string(path[:len(prefix)]) != prefix {
		return path
	}
	rest := path[len(prefix):]
	switch {
	case len(rest) == 0:
		return root
	case rest[0] != '/':
		return path
	default:
		return rest
	}
}

var root = []byte("/")

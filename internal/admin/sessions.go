// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// SessionLister is a Controller that says who has something open that lasts: a
// session, a flow, a tunnel or a stream.
type SessionLister interface {
	// Sessions returns those that the query asks for. Errors: ErrUnknownPool and
	// ErrUnknownListener, of a name that neither the configuration nor anything open
	// has.
	Sessions(q SessionQuery) (Sessions, error)
}

// The bounds of SessionQuery.Limit.
const (
	DefaultSessions = 100
	MostSessions    = 10_000
)

// SessionQuery says which sessions are asked for. An empty field asks for all.
type SessionQuery struct {
	Listener string
	Pool     string
	Backend  string       // its id
	Client   netip.Prefix // of the client's address; not valid: all
	Limit    int          // of those that are returned; 1 to MostSessions, 0: DefaultSessions
}

// Sessions are open sessions, flows, tunnels and streams.
type Sessions struct {
	Total    int       `json:"total"`    // how many are open
	Matched  int       `json:"matched"`  // how many of them the query asks for
	Sessions []Session `json:"sessions"` // of those the oldest, by age
}

// Session is one of them.
type Session struct {
	Kind     string    `json:"kind"`     // session, flow, tunnel (WebSocket) or stream
	Protocol string    `json:"protocol"` // of the listener
	Listener string    `json:"listener"`
	Route    string    `json:"route"`
	Pool     string    `json:"pool"`
	Backend  string    `json:"backend"`
	Client   string    `json:"client"`         // address:port, or an address that a header has named; empty: unknown, as over a unix socket
	Name     string    `json:"name,omitempty"` // the server name or host that was asked for
	Since    time.Time `json:"since"`
	AgeS     float64   `json:"age_s"`
	// Ending says that weir has told it to end.
	Ending bool `json:"ending,omitempty"`
}

func (a api) registerSessions(mux *http.ServeMux) {
	l, ok := a.ctl.(SessionLister)
	if !ok {
		return
	}
	mux.Handle("/api/v1/sessions", only(func(w http.ResponseWriter, r *http.Request) {
		q, err := parseSessionQuery(r.URL.Query())
		if err != nil {
			problem(w, http.StatusBadRequest, CodeBadQuestion, err.Error())
			return
		}
		s, err := l.Sessions(q)
		if err != nil {
			refused(w, err)
			return
		}
		if s.Sessions == nil {
			s.Sessions = []Session{}
		}
		writeJSON(w, s)
	}, http.MethodGet))
}

// ParseClients reads an address or a CIDR block.
func ParseClients(s string) (netip.Prefix, error) {
	if a, err := netip.ParseAddr(s); err == nil {
		a = a.Unmap().WithZone("")
		return netip.PrefixFrom(a, a.BitLen()), nil
	}
	p, err := netip.ParsePrefix(s)
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("client %q is neither an address nor a block such as 192.0.2.0/24", s)
	}
	return p.Masked(), nil
}

func parseSessionQuery(v url.Values) (q SessionQuery, err error) {
	for key, all := range v {
		if len(all) != 1 {
			return q, fmt.Errorf("%s is given more than once", key)
		}
		switch s := all[0]; key {
		case "listener":
			q.Listener = s
		case "pool":
			q.Pool = s
		case "backend":
			q.Backend = s
		case "client":
			if q.Client, err = ParseClients(s); err != nil {
				return q, err
			}
		case "limit":
			if q.Limit, err = strconv.Atoi(s); err != nil || q.Limit < 1 || q.Limit > MostSessions {
				return q, fmt.Errorf("limit is %q: use 1 to %d", s, MostSessions)
			}
		default:
			return q, fmt.Errorf("there is no %q here: use listener, pool, backend, client or limit", key)
		}
	}
	return q, nil
}

// Sessions asks for open sessions, flows, tunnels and streams.
func (c *Client) Sessions(ctx context.Context, q SessionQuery) (s Sessions, err error) {
	v := url.Values{}
	for key, value := range map[string]string{"listener": q.Listener, "pool": q.Pool, "backend": q.Backend} {
		if value != "" {
			v.Set(key, value)
		}
	}
	if q.Client.IsValid() {
		v.Set("client", q.Client.String())
	}
	if q.Limit != 0 {
		v.Set("limit", strconv.Itoa(q.Limit))
	}
	err = c.do(ctx, http.MethodGet, strings.TrimSuffix("/api/v1/sessions?"+v.Encode(), "?"), nil, &s)
	return s, err
}

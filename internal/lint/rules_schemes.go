// SPDX-License-Identifier: Apache-2.0

package lint

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/weirlb/weir/internal/config"
)

var schemeRules = []Rule{
	{
		Name: "mixed_schemes", Severity: Warning,
		Title: "Backends of one pool are spoken to differently",
		Why: "Any request may go to any backend of its pool. With some of them behind TLS and others not, chance decides whether it crosses the network in clear text; with some in HTTP/2 and others in HTTP/1.1, " +
			"gRPC calls and WebSockets work on a part of the pool and fail on the rest, now and then, and a retry hides or shows it.",
		Fix:  "Give all backends of a pool one scheme. Where a fleet changes over, make a pool for each side and move the routes, or take the two lines as long as that lasts and silence this.",
		find: findMixed,
	},
	{
		Name: "h2_unused", Severity: Warning,
		Title: "`upstream.h2` changes nothing",
		Why:   "HTTP/2 is offered to https backends in the TLS handshake, and nowhere else: http:// is HTTP/1.1, and h2c://, grpc:// and grpcs:// are HTTP/2 whatever `h2` says. Whoever wrote it expects streams over few connections and gets a connection for each request.",
		Fix:   "Write h2c:// for backends that speak HTTP/2 without TLS, https:// for those that do with, or remove the key.",
		find: func(v *view) {
			v.pools(func(p *config.Pool, at []string) {
				here := path(at, "upstream", "h2")
				if !p.Upstream.H2 || p.Discover != nil || !v.Outline.Has(here...) || slices.ContainsFunc(p.Backends, func(b config.Backend) bool { return schemeOf(&b) == "https" }) {
					return
				}
				v.found(here, "pool "+p.Name+" has no https backend to which HTTP/2 could be offered", remove(here))
			})
		},
	},
	{
		Name: "grpc_plain", Severity: Warning,
		Title: "gRPC goes to backends that are spoken to in HTTP/1.1",
		Why: "gRPC is HTTP/2 from end to end: its status comes in trailers, and its servers speak nothing else. http:// backends get HTTP/1.1, and so do https:// ones without `upstream.h2`: " +
			"every call fails, while a check with protocol grpc, which speaks HTTP/2 by itself, passes.",
		Fix:  "Write grpc:// instead of http://, and grpcs:// instead of https://.",
		find: findPlainCalls,
	},
}

// schemeOf returns the scheme of a backend's URL.
func schemeOf(b *config.Backend) string {
	scheme, _, _ := strings.Cut(b.URL, "://")
	return scheme
}

// sessions reports whether what a pool serves is not requests: sessions or flows.
func sessions(p *config.Pool) bool { return p.Scheme() == "tcp" || p.Scheme() == "udp" }

// spoken is how backends of a scheme are spoken to: gRPC is a word for HTTP/2.
func spoken(scheme string) string {
	switch scheme {
	case "h2c":
		return "grpc"
	default:
		return scheme
	}
}

// rescheme is the edit that gives a backend of the text another scheme.
func (v *view) rescheme(at []string, i int, b *config.Backend, scheme string) config.Edit {
	_, address, _ := strings.Cut(b.URL, "://")
	here := path(at, "backends", i)
	return write(v.at(path(here, "url"), here), `"`+scheme+"://"+address+`"`)
}

// findMixed holds the backends of a pool against its first one.
func findMixed(v *view) {
	v.pools(func(p *config.Pool, at []string) {
		if len(p.Backends) == 0 {
			return
		}
		first := schemeOf(&p.Backends[0])
		var edits []config.Edit
		var others []string
		for i := range p.Backends {
			b := &p.Backends[i]
			if s := schemeOf(b); spoken(s) != spoken(first) {
				edits = append(edits, v.rescheme(at, i, b, first))
				if !slices.Contains(others, s+"://") {
					others = append(others, s+"://")
				}
			}
		}
		if len(edits) > 0 {
			v.found(edits[0].Path, fmt.Sprintf("pool %s begins with %s:// and goes on with %s: what a backend gets depends on chance", p.Name, first, strings.Join(others, ", ")), edits...)
		}
	})
}

// servicePath matches what begins like the path of a gRPC call: a package, a dot
// and a service, as in /shop.v1.Orders.
var servicePath = regexp.MustCompile(`^/[a-z][a-z0-9_]*(\.[a-z0-9_]+)*\.[A-Z][A-Za-z0-9_]*(/|$)`)

// callsOf says by what words of the configuration a pool gets gRPC calls, and
// where they stand; nil: by none.
func (v *view) callsOf(p *config.Pool, at []string) (why string, here []string) {
	switch {
	case !p.Active.Off && p.Active.Protocol == "grpc":
		return "is checked by gRPC", v.at(path(at, "health", "active", "protocol"), path(at, "health", "active"))
	case len(p.Retry.OnGRPC) > 0:
		return "retries statuses of gRPC", path(at, "retry", "when")
	}
	v.routes(func(r *config.Route, to *config.Pool, at []string) {
		if here != nil || to != p {
			return
		}
		typed := slices.IndexFunc(r.Match.Headers, func(h config.HeaderMatch) bool {
			return strings.EqualFold(h.Name, "content-type") && strings.HasPrefix(h.Value, "application/grpc")
		})
		switch {
		case typed >= 0:
			why, here = "gets what route "+r.Name+" takes for its content-type", path(at, "match", "headers")
		case servicePath.MatchString(r.Match.PathPrefix):
			why, here = "gets what is below "+r.Match.PathPrefix, path(at, "match", "path_prefix")
		case servicePath.MatchString(r.Match.Path):
			why, here = "gets "+r.Match.Path, path(at, "match", "path")
		case len(r.Retry.OnGRPC) > 0 && v.Outline.Has(path(at, "retry", "when")...):
			why, here = "gets what route "+r.Name+" retries for statuses of gRPC", path(at, "retry", "when")
		}
	})
	return why, here
}

func findPlainCalls(v *view) {
	v.pools(func(p *config.Pool, at []string) {
		why, here := v.callsOf(p, at)
		if here == nil {
			return
		}
		var edits []config.Edit
		scheme := ""
		for i := range p.Backends {
			b := &p.Backends[i]
			switch s := schemeOf(b); {
			case s == "http":
				edits = append(edits, v.rescheme(at, i, b, "grpc"))
				scheme = s
			case s == "https" && !p.Upstream.H2:
				edits = append(edits, v.rescheme(at, i, b, "grpcs"))
				scheme = s
			}
		}
		if len(edits) > 0 {
			v.found(here, fmt.Sprintf("pool %s %s, and its %s:// backends are spoken to in HTTP/1.1, in which there is no gRPC", p.Name, why, scheme), edits...)
		}
	})
}

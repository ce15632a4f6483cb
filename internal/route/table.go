// SPDX-License-Identifier: Apache-2.0

package route

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/weirlb/weir/internal/message"
)

// Rule is one route's conditions. All that are set must hold; the zero value
// matches every request.
type Rule struct {
	// Host is compared without port, case and trailing dot. `*.example.com`
	// stands for one or more labels before example.com. Empty: any host, and
	// requests without one.
	Host string
	// Path is the whole path. At most one of Path and PathPrefix is set. Unless
	// Raw is set both must be in normal form.
	Path string
	// PathPrefix matches whole segments: `/v1` matches /v1 and /v1/..., never
	// /v10. With a trailing slash the bare path is not matched. Empty: any path,
	// `*` of OPTIONS included; `/` means the same.
	PathPrefix string
	// SNI lists server names of TLS, exact or `*.example.com` as in Host: the client
	// must have asked for one of them. Empty: any, and none.
	SNI []string
	// Methods lists the methods that match, in upper case as on the wire. Empty:
	// any.
	Methods []string
	// Headers lists field lines that must be there.
	Headers []Header
	// Raw compares and forwards the original bytes of the path.
	Raw bool
	// Index is the caller's number for the rule; Match returns it.
	Index int
}

// Header asks for a field line with this name, in any case, and exactly this
// value.
type Header struct {
	Name, Value string
}

// Table holds rules in the order in which they are tried. It is immutable and
// safe for concurrent use.
type Table struct {
	order  []Rule // sorted; entry.rank indexes it
	normal index  // rules compared with the normal form
	raw    index  // rules compared with the original bytes
	// nameless has the rules without their SNI; nil where no rule has any.
	nameless *Table
}

// index finds the rules of one reading of the path.
type index struct {
	size  int
	exact map[string]*paths // by host
	wild  map[string]*paths // by what follows "*."
	any   *paths            // rules without a host; nil when there are none
}

// entry is a rule as Match looks at it.
type entry struct {
	rank    int // place in the order
	index   int
	sni     []string // clean
	methods []string
	headers []Header
}

// paths are the rules of one host.
type paths struct {
	exact map[string][]*entry
	root  *segment
}

// segment is a node of the tree of prefixes.
type segment struct {
	next  map[string]*segment
	bare  []*entry // prefixes that end here
	slash []*entry // prefixes that end in a slash behind this segment
	up    *segment // the nearest segment towards the root that has rules; nil at the root
}

// New builds a table. It fails on a rule that can match nothing: a malformed
// host, both a path and a prefix, a path that is not absolute or, without Raw,
// not in normal form.
func New(rules []Rule) (*Table, error) {
	t := &Table{order: slices.Clone(rules)}
	for i := range t.order {
		r := &t.order[i]
		r.Host = cleanHost(r.Host)
		if r.PathPrefix == "/" {
			r.PathPrefix = ""
		}
		for _, name := range r.SNI {
			if _, ok := cleanPattern(name); !ok {
				return nil, fmt.Errorf("rule %d: sni %q is no name and no *.name", r.Index, name)
			}
		}
		r.SNI = cleanNames(r.SNI)
		if err := r.check(); err != nil {
			return nil, fmt.Errorf("rule %d: %w", r.Index, err)
		}
	}
	slices.SortStableFunc(t.order, compare)
	for rank := range t.order {
		r := &t.order[rank]
		e := &entry{rank: rank, index: r.Index, sni: r.SNI, methods: r.Methods, headers: r.Headers}
		if r.Raw {
			t.raw.add(r, e)
		} else {
			t.normal.add(r, e)
		}
	}
	t.normal.link()
	t.raw.link()
	return t, t.buildNameless()
}

// buildNameless makes the table that Misdirected asks.
func (t *Table) buildNameless() (err error) {
	if !slices.ContainsFunc(t.order, func(r Rule) bool { return len(r.SNI) > 0 }) {
		return nil
	}
	all := slices.Clone(t.order)
	for i := range all {
		all[i].SNI = nil
	}
	t.nameless, err = New(all)
	return err
}

func cleanHost(host string) string {
	return strings.ToLower(strings.TrimSuffix(host, "."))
}

func (r *Rule) check() error {
	if rest, ok := strings.CutPrefix(r.Host, "*."); ok && rest == "" || strings.Contains(rest, "*") || !ok && strings.Contains(r.Host, "*") {
		return fmt.Errorf("host %q: a wildcard stands for whole labels at the front, as in *.example.com", r.Host)
	}
	if r.Path != "" && r.PathPrefix != "" {
		return fmt.Errorf("path %q and path_prefix %q exclude each other", r.Path, r.PathPrefix)
	}
	for _, p := range []string{r.Path, r.PathPrefix} {
		if p == "" {
			continue
		}
		if p[0] != '/' {
			return fmt.Errorf("path %q does not start with a slash", p)
		}
		if r.Raw {
			continue
		}
		out, changed, err := NormalizePath(nil, []byte(p))
		if err != nil {
			return fmt.Errorf("path %q: %w", p, err)
		}
		if changed {
			return fmt.Errorf("path %q is never seen: its normal form is %q", p, out)
		}
	}
	return nil
}

// compare is the order of rules; ties keep the order they were given in.
func compare(a, b Rule) int {
	return cmp.Or(
		cmp.Compare(hostClass(a.Host), hostClass(b.Host)),
		cmp.Compare(len(b.Host), len(a.Host)),
		cmp.Compare(a.Host, b.Host),
		cmp.Compare(pathClass(a), pathClass(b)),
		cmp.Compare(len(b.PathPrefix), len(a.PathPrefix)),
		cmp.Compare(a.Index, b.Index),
	)
}

func hostClass(host string) int {
	switch {
	case host == "":
		return 2
	case strings.HasPrefix(host, "*."):
		return 1
	default:
		return 0
	}
}

func pathClass(r Rule) int {
	if r.Path != "" {
		return 0
	}
	return 1
}

func (x *index) add(r *Rule, e *entry) {
	x.size++
	p := x.host(r.Host)
	if r.Path != "" {
		p.exact[r.Path] = append(p.exact[r.Path], e)
		return
	}
	s := p.root
	prefix := r.PathPrefix
	if prefix == "" {
		s.bare = append(s.bare, e)
		return
	}
	bare := strings.TrimSuffix(prefix, "/")
	for bare != "" {
		name, rest, more := strings.Cut(bare[1:], "/")
		child := s.next[name]
		if child == nil {
			if s.next == nil {
				s.next = map[string]*segment{}
			}
			child = &segment{}
			s.next[name] = child
		}
		s, bare = child, ""
		if more {
			bare = "/" + rest
		}
	}
	if strings.HasSuffix(prefix, "/") {
		s.slash = append(s.slash, e)
	} else {
		s.bare = append(s.bare, e)
	}
}

func (x *index) host(host string) *paths {
	fresh := func() *paths { return &paths{exact: map[string][]*entry{}, root: &segment{}} }
	if host == "" {
		if x.any == nil {
			x.any = fresh()
		}
		return x.any
	}
	m, key := &x.exact, host
	if rest, ok := strings.CutPrefix(host, "*."); ok {
		m, key = &x.wild, rest
	}
	if *m == nil {
		*m = map[string]*paths{}
	}
	p := (*m)[key]
	if p == nil {
		p = fresh()
		(*m)[key] = p
	}
	return p
}

// link sets the way up in every tree.
func (x *index) link() {
	for _, m := range []map[string]*paths{x.exact, x.wild} {
		for _, p := range m {
			p.root.link(nil)
		}
	}
	if x.any != nil {
		x.any.root.link(nil)
	}
}

func (s *segment) link(up *segment) {
	s.up = up
	if len(s.bare) > 0 || len(s.slash) > 0 || up == nil {
		up = s
	}
	for _, child := range s.next {
		child.link(up)
	}
}

// Order returns the rules in the order in which they are tried. The slice is
// the caller's.
func (t *Table) Order() []Rule { return slices.Clone(t.order) }

// Len returns the number of rules.
func (t *Table) Len() int { return len(t.order) }

// holds reports whether the conditions beyond host and path hold.
func (e *entry) holds(r *message.Request) bool {
	if len(e.sni) > 0 && !nameIn(e.sni, r.ServerName) {
		return false
	}
	if len(e.methods) > 0 {
		found := false
		for _, m := range e.methods {
			if string(r.Method) == m {
				found = true
				break
			}
		}
		if !found {
			return false
		}
	}
	for i := range e.headers {
		if !hasLine(&r.Fields, &e.headers[i]) {
			return false
		}
	}
	return true
}

func hasLine(f *message.Fields, h *Header) bool {
	for i := range f.Len() {
		if !f.Removed(i) && message.EqualFold(f.Name(i), h.Name) && string(f.Value(i)) == h.Value {
			return true
		}
	}
	return false
}

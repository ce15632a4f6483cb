// SPDX-License-Identifier: Apache-2.0

package config

import (
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"
)

// Masked stands for a value that is a secret, wherever a configuration is shown.
const Masked = "***"

// minSecret is the shortest value that is looked for in other texts: what is
// shorter would be found where it means something else.
const minSecret = 4

// secretWords mark the names of header fields and environment variables whose
// values are nobody's business.
var secretWords = []string{
	"authorization", "auth", "cookie", "token", "secret", "password", "passwd", "key", "credential", "session", "jwt", "signature",
}

// secretName reports whether what is called so holds a secret, as far as a name
// tells.
func secretName(name string) bool {
	lower := strings.ToLower(name)
	return slices.ContainsFunc(secretWords, func(w string) bool { return strings.Contains(lower, w) })
}

// secretValue matches field values that are secrets whatever the field is
// called: credentials with their scheme (RFC 9110 section 11.4), JSON Web Tokens
// (RFC 7519), keys in PEM, and URLs with a password.
var secretValue = regexp.MustCompile(`(?i)^(bearer|basic|digest|negotiate|token|apikey|aws4-hmac-sha256) +\S|^eyJ[a-z0-9_-]+\.|-----BEGIN|^[a-z][a-z0-9+.-]*://[^/@ ]*:[^/@ ]*@`)

// MaskField returns the value of a header field as it may be shown: Masked where
// the field's name or the value tell of a secret.
func MaskField(name, value string) string {
	if secretName(name) || secretValue.MatchString(value) {
		return Masked
	}
	return value
}

// MaskField is the function of that name for a field as this plan makes it of a
// request: values of the environment that are secrets are hidden, too.
func (p *Plan) MaskField(name, value string) string {
	if p.mask().holds(value) {
		return Masked
	}
	return MaskField(name, value)
}

// mask hides the secrets of a plan.
type mask struct {
	values []string // secrets wherever they appear
}

func (p *Plan) mask() mask { return mask{p.secrets} }

// holdsFields reports whether the keys of a block are names of header fields.
func holdsFields(path string) bool {
	last := path[strings.LastIndexByte(path, '.')+1:]
	return last == "set" || last == "add" || last == "headers"
}

// node returns the node with secrets replaced. fields says that the node is the
// value of the header field name.
func (m mask) node(n *node, fields bool, name string) *node {
	switch n.kind {
	case scalar:
		if fields && MaskField(name, n.text) == Masked || m.holds(n.text) {
			out := *n
			out.text, out.quoted = Masked, true
			return &out
		}
		return n
	case list:
		out := *n
		out.items = make([]*node, len(n.items))
		for i, item := range n.items {
			out.items[i] = m.node(item, fields, name)
		}
		return &out
	case mapping:
		out := *n
		out.pairs = make([]pair, len(n.pairs))
		for i, p := range n.pairs {
			out.pairs[i] = pair{p.key, m.node(p.value, holdsFields(name), p.key.text)}
		}
		return &out
	default:
		return n
	}
}

func (m mask) holds(text string) bool {
	return slices.ContainsFunc(m.values, func(v string) bool { return strings.Contains(text, v) })
}

// Public returns the plan as YAML returns it in full, with secrets masked: for
// showing, not for running. Secrets are the values of header fields that look
// like one, by name or by form, and whatever comes from an environment variable
// that is called like one. What stands in a file that a key names is not part of
// a plan.
func (p *Plan) Public() []byte {
	var b strings.Builder
	printPairs(&b, p.mask().node(p.tree(), false, ""), "")
	return []byte(b.String())
}

// SecretFiles names the files that hold secrets: tokens and private keys. Each is
// there once, sorted.
func (p *Plan) SecretFiles() []string {
	var out []string
	add := func(name string) {
		if name != "" {
			out = append(out, name)
		}
	}
	add(p.Admin.TokenFile)
	for i := range p.Listeners {
		if t := p.Listeners[i].TLS; t != nil {
			for _, k := range t.Certificates {
				add(k.Key)
			}
			add(t.TicketKeysFile)
		}
	}
	add(p.ACME.EABKeyFile)
	for i := range p.Pools {
		add(p.Pools[i].TLS.Key)
		if s := p.Pools[i].Sticky; s != nil {
			add(s.SecretFile)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// secret remembers a value that no message may show.
func (f *faults) secret(value string) {
	if len(value) >= minSecret && !slices.Contains(f.secrets, value) {
		f.secrets = append(f.secrets, value)
	}
}

// secretOf is secret for a value of the environment, which may be anywhere in a
// plan.
func (f *faults) secretOf(value string) {
	f.secret(value)
	if len(value) >= minSecret && !slices.Contains(f.envSecrets, value) {
		f.envSecrets = append(f.envSecrets, value)
	}
}

// scrub hides the secrets in faults. In the line of the text they leave as many
// characters as they had, so that the mark stays where it belongs.
func (f *faults) scrub() {
	f.scrubKnown()
	var lines lineHider
	for i := range f.list {
		x := &f.list[i]
		var found []string
		x.Line, found = lines.hide(x.Pos, x.Line)
		for _, s := range found {
			x.What, x.Fix = strings.ReplaceAll(x.What, s, Masked), strings.ReplaceAll(x.Fix, s, Masked)
		}
	}
}

// scrubKnown hides the values that are known to be secrets.
func (f *faults) scrubKnown() {
	if len(f.secrets) == 0 {
		return
	}
	var pairs, stars []string
	longest := slices.Clone(f.secrets)
	slices.SortFunc(longest, func(a, b string) int { return len(b) - len(a) })
	for _, s := range longest {
		pairs = append(pairs, s, Masked)
		stars = append(stars, s, strings.Repeat("*", utf8.RuneCountInString(s)))
	}
	text, line := strings.NewReplacer(pairs...), strings.NewReplacer(stars...)
	for i := range f.list {
		x := &f.list[i]
		x.What, x.Fix, x.Line = text.Replace(x.What), text.Replace(x.Fix), line.Replace(x.Line)
	}
}

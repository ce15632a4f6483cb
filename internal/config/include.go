// SPDX-License-Identifier: Apache-2.0

package config

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/weirlb/weir/internal/inputfile"
)

// Bounds on a configuration of several files.
const (
	maxFiles = 1000
	maxChain = 8 // files that include one another in a row
)

// loader reads the files of one configuration into one tree.
type loader struct {
	f     *faults
	env   func(string) (string, bool)
	root  *node // what all files say together
	files []string
	globs []string
	known map[string]bool // files that were read, by identity
	chain []string        // the identities of those being read, the outermost first
	bytes int64
	bad   bool // something could not be read: what the rest lacks says nothing
}

// loadTree reads a file or a folder with all that it includes. The error says
// that there is nothing to read; faults of the text are in the loader.
func loadTree(path string, env func(string) (string, bool)) (*loader, error) {
	l := &loader{f: &faults{}, env: env, known: map[string]bool{}}
	begin := []string{path}
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		if begin, err = l.folder(path); err != nil {
			return nil, err
		}
	}
	for _, name := range begin {
		read := readText // what is named alone may be a pipe, as in -c <(command)
		if name != path {
			read = readFile
		}
		text, err := read(name)
		if err != nil {
			return nil, unread(name, err)
		}
		l.file(name, text, nil)
	}
	if l.root == nil && len(l.f.list) == 0 {
		l.f.src = newSource(path, "")
		l.f.add(Position{File: begin[0], Line: 1, Col: 1}, 1, "the configuration is empty", "begin with "+fiveLines)
	}
	if len(l.f.all) > 0 {
		l.f.src = l.f.all[0]
	}
	return l, nil
}

// folder lists what -c DIR reads: every *.yaml and *.yml, in the order of names.
func (l *loader) folder(dir string) ([]string, error) {
	var names []string
	for _, ext := range []string{"*.yaml", "*.yml"} {
		pattern := filepath.Join(literally(dir), ext)
		l.globs = append(l.globs, pattern)
		names = append(names, visible(pattern)...)
	}
	if len(names) == 0 {
		return nil, errors.New("cannot read the configuration: there is no *.yaml in the folder " + dir)
	}
	slices.Sort(names)
	return names, nil
}

// literally protects a path within a pattern.
func literally(path string) string {
	return strings.NewReplacer(`\`, `\\`, "*", `\*`, "?", `\?`, "[", `\[`).Replace(path)
}

// visible lists the files that a pattern matches, in the order of their names:
// as in a shell, none that begins with a dot unless the pattern does, because
// editors and mounted volumes put their own there.
func visible(pattern string) []string {
	found, _ := filepath.Glob(pattern) // its only error is a bad pattern, which was looked for
	hidden := strings.HasPrefix(filepath.Base(pattern), ".")
	return slices.DeleteFunc(found, func(name string) bool {
		if !hidden && strings.HasPrefix(filepath.Base(name), ".") {
			return true
		}
		info, err := os.Stat(name)
		return err == nil && info.IsDir()
	})
}

// fileID tells files apart, however they are named.
func fileID(name string) string {
	if abs, err := filepath.Abs(name); err == nil {
		name = abs
	}
	if real, err := filepath.EvalSymlinks(name); err == nil {
		name = real
	}
	return name
}

// file reads one text into the tree; at is where it is included, nil at the
// beginning.
func (l *loader) file(name string, text []byte, at *node) {
	id := fileID(name)
	if l.known[id] {
		return // an earlier file includes it
	}
	l.known[id] = true
	l.files = append(l.files, name)
	l.bytes += int64(len(text))
	switch {
	case l.bytes > maxText:
		l.stop(at, name, "the configuration is larger than "+showBytes(maxText), "check that these are configurations")
		return
	case len(l.files) > maxFiles:
		l.stop(at, name, "the configuration has more than "+itoa(maxFiles)+" files", "put several pools into one")
		return
	}
	body := strings.TrimPrefix(string(text), "\ufeff")
	l.f.src = newSource(name, body)
	l.f.all = append(l.f.all, l.f.src)
	if blank(body) {
		return
	}
	n := (&builder{faults: l.f, env: l.env}).parse(body)
	if n == nil {
		l.bad = true
		return
	}
	include := n.take("include")
	l.merge(n, at != nil)
	if include == nil {
		return
	}
	l.chain = append(l.chain, id)
	l.includes(name, include)
	l.chain = l.chain[:len(l.chain)-1]
}

// stop reports what keeps a file from being read.
func (l *loader) stop(at *node, name, what, fix string) {
	l.bad = true
	if at == nil {
		at = &node{pos: Position{File: name, Line: 1, Col: 1}, width: 1}
	}
	if at.kind != faulty {
		l.f.add(at.pos, at.width, what, fix)
	}
}

// includes reads what the key include of a file names.
func (l *loader) includes(name string, p *pair) {
	const fix = "write a list of files and patterns, as in include: [conf.d/*.yaml]"
	items := p.value.items
	switch p.value.kind {
	case scalar:
		items = []*node{p.value}
	case list:
	case faulty:
		l.bad = true
		return
	case nothing:
		l.stop(p.value, name, "include has no value", fix)
		return
	default:
		l.stop(p.value, name, "include is "+p.value.kind.String()+", not a list", fix)
		return
	}
	for _, item := range items {
		switch {
		case item.kind == faulty:
			l.bad = true
		case item.kind != scalar:
			l.stop(item, name, "an item of include is "+item.kind.String(), fix)
		case item.text == "":
			l.stop(item, name, "an item of include is empty", fix)
		default:
			l.include(name, item)
		}
	}
}

// include reads the files that one item names.
func (l *loader) include(from string, item *node) {
	pattern := item.text
	if !filepath.IsAbs(pattern) {
		pattern = filepath.Join(filepath.Dir(from), pattern)
	}
	names := []string{pattern}
	if strings.ContainsAny(item.text, "*?[") {
		_, err := filepath.Match(pattern, "")
		switch {
		case strings.Contains(item.text, "**"):
			l.stop(item, from, quote(item.text)+" has **, which matches no deeper than *", "name each folder, as in [conf.d/*.yaml, conf.d/*/*.yaml]")
			return
		case err != nil:
			l.stop(item, from, quote(item.text)+" is not a pattern", "close the [, or write the name of a file")
			return
		}
		l.globs = append(l.globs, pattern)
		names = visible(pattern)
	}
	for _, name := range names {
		id := fileID(name)
		switch {
		case slices.Contains(l.chain, id):
			l.stop(item, from, name+" includes itself"+l.through(id), "take it out of the list, or keep what is included in a folder of its own")
		case len(l.chain) >= maxChain:
			l.stop(item, from, "files include one another more than "+itoa(maxChain)+" deep", "include them from the first file")
			return
		case l.known[id]: // by another pattern
		default:
			text, err := readFile(name)
			if err != nil {
				what, fix := unreadable(name, err)
				l.stop(item, from, what, fix)
				continue
			}
			l.file(name, text, item)
		}
	}
}

// through names the files between one that includes itself and the place where
// it does.
func (l *loader) through(id string) string {
	i := slices.Index(l.chain, id)
	if i == len(l.chain)-1 {
		return ""
	}
	var by []string
	for _, name := range l.files {
		if slices.Contains(l.chain[i+1:], fileID(name)) {
			by = append(by, name)
		}
	}
	return " by way of " + strings.Join(by, " and ")
}

// unreadable says why a file that is included cannot be read.
func unreadable(name string, err error) (what, fix string) {
	info, serr := os.Stat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "there is no file " + quote(name), "make it, or write a pattern such as conf.d/*.yaml, which may match nothing"
	case errors.Is(err, fs.ErrPermission):
		return quote(name) + " may not be read", "make it readable for the user that runs weir"
	case serr == nil && info.IsDir():
		return quote(name) + " is a folder", "write " + filepath.Join(filepath.Base(name), "*.yaml") + " for the files in it"
	default:
		var p *fs.PathError
		if errors.As(err, &p) {
			err = p.Err
		}
		return quote(name) + " cannot be read (" + err.Error() + ")", "name a file"
	}
}

// take removes and returns a pair.
func (n *node) take(key string) *pair {
	for i := range n.pairs {
		if n.pairs[i].key.text == key {
			p := n.pairs[i]
			n.pairs = slices.Delete(n.pairs, i, i+1)
			return &p
		}
	}
	return nil
}

// shared are the blocks that several files may add to.
var shared = []string{"listeners", "pools"}

// merge adds what one file says. Entries of shared blocks go together by name;
// everything else is said in one place.
func (l *loader) merge(n *node, included bool) {
	if l.root == nil && (!included || n.kind == mapping) {
		l.root = n
		return
	}
	if n.kind != mapping {
		l.f.add(n.pos, n.width, "the file is "+n.kind.String()+", not a mapping", "write blocks of a configuration in it, as in pools: {app: {backends: [...]}}")
		l.bad = true
		return
	}
	if l.root.kind != mapping {
		return // which is a fault of its own
	}
	l.root.size = min(l.root.size+n.size, maxNodes+1)
	if l.root.size > maxNodes {
		l.stop(n, n.pos.File, "the configuration is too large when its aliases are expanded", "use fewer aliases")
		return
	}
	for _, p := range n.pairs {
		was := l.root.get(p.key.text)
		switch {
		case was == nil || !slices.ContainsFunc(schema, func(s *spec) bool { return s.name == p.key.text }):
			l.root.pairs = append(l.root.pairs, p) // unknown ones are all reported
		case slices.Contains(shared, p.key.text):
			l.mergeNamed(was, p)
		default:
			l.f.add(p.key.pos, p.key.width, p.key.text+" is given in two files", "keep one of them; the first is "+place(was.key.pos))
		}
	}
}

// mergeNamed adds the entries of a block of one file to those of others.
func (l *loader) mergeNamed(was *pair, p pair) {
	if p.value.kind != mapping || was.value.kind != mapping {
		for _, v := range []*pair{was, &p} {
			if v.value.kind == mapping || v.value.kind == faulty {
				continue
			}
			at, what := v.value, p.key.text+" is "+v.value.kind.String()+", not a mapping"
			if at.kind == nothing {
				at, what = v.key, p.key.text+" has no value"
			}
			l.f.add(at.pos, at.width, what, "write a name for each and its keys below it, or remove the line")
			v.value.kind = faulty
		}
		if was.value.kind != mapping {
			was.value = p.value
		}
		return
	}
	first := make(map[string]*node, len(was.value.pairs))
	for _, e := range was.value.pairs {
		first[e.key.text] = e.key
	}
	// Not in place: an alias of the file may share the mapping.
	all := *was.value
	all.pairs = slices.Clone(all.pairs)
	for _, e := range p.value.pairs {
		if other := first[e.key.text]; other != nil {
			l.f.add(e.key.pos, e.key.width, strings.TrimSuffix(p.key.text, "s")+" "+quote(e.key.text)+" is defined twice",
				"rename one or remove it; the first is "+place(other.pos))
			continue
		}
		all.pairs = append(all.pairs, e)
	}
	was.value = &all
}

// place names a line of a file within a message.
func place(p Position) string { return "in " + p.File + ", line " + itoa(p.Line) }

// plan decodes what was read. The error is an *Errors.
func (l *loader) plan(path string) (*Plan, *Outline, error) {
	if l.bad || l.root == nil {
		return nil, nil, l.f.err()
	}
	plan, err := decodePlan(l.f, l.root, path)
	if err != nil {
		return nil, nil, err
	}
	plan.Files, plan.Globs = l.files, l.globs
	return plan, &Outline{f: l.f, root: l.root}, nil
}

// includeField documents the key. The loader has read and removed it before the
// rest is decoded; where a text stands alone, nothing can be included.
type includeField struct{ s spec }

func (i *includeField) spec() *spec                       { return &i.s }
func (i *includeField) absent(*decoder, *Plan) bool       { return false }
func (i *includeField) settle(*Plan)                      {}
func (i *includeField) defaults(*Plan)                    {}
func (i *includeField) write(*writer, *Plan, *Plan) *node { return nil }

func (i *includeField) read(d *decoder, n *node, _ *Plan) bool {
	d.fault(n, "include is for files, and this text is none: what it would read depends on where it is read", "write out what it includes, or put it into a file and reload that")
	return false
}

// errSpecial says that something is neither a file nor a folder.
var errSpecial = errors.New("a device, a pipe or a socket")

// readFile is readText for what is included: a pipe or a device would keep a
// reload waiting for ever.
func readFile(name string) ([]byte, error) {
	info, err := os.Stat(name)
	switch {
	case err != nil:
		return nil, err
	case !info.IsDir() && !info.Mode().IsRegular():
		return nil, errSpecial
	}
	return readText(name)
}

// readText reads a file, as far as a configuration may be long.
func readText(path string) ([]byte, error) {
	// One byte more than is accepted: a device given by mistake must not fill memory.
	text, err := inputfile.Head(path, maxText+1)
	if err != nil {
		return nil, &readError{path, err}
	}
	return text, nil
}

// unread is a readError that tells of the file.
func unread(name string, err error) error {
	switch {
	case errors.Is(err, errSpecial):
		return &readError{name, &fs.PathError{Op: "read", Path: name, Err: err}}
	case errors.As(err, new(*readError)):
		return err
	default:
		return &readError{name, err}
	}
}

// readError says that a configuration is not there to be read.
type readError struct {
	path string
	err  error
}

func (e *readError) Error() string { return "cannot read the configuration: " + e.err.Error() }
func (e *readError) Unwrap() error { return e.err }

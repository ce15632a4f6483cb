// SPDX-License-Identifier: Apache-2.0

package weir_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"
)

const module = "github.com/weirlb/weir/"

// A wall says what the non-test files of one folder may import and do.
type wall struct {
	dir    string
	ours   []string // packages of this module that may be imported; nil with anyOurs
	any    bool     // any package of ours except those in never
	never  []string // packages of ours that may not be imported (prefix match)
	stdlib bool     // nothing from outside the standard library and ours
	pure   bool     // no clock, timers, sockets, files, shared dice or goroutines
	except []string // files to which pure does not apply
}

// walls is the import table: every folder with Go code but the root's and the
// black-box tests' has a line, and a line whose folder is gone fails the test,
// so that the table cannot rot.
var walls = []wall{
	{dir: "balance", ours: []string{}, stdlib: true, pure: true},
	{dir: "balance/balancetest", ours: []string{"balance"}, stdlib: true},
	{dir: "health", ours: []string{"balance"}, stdlib: true, pure: true},
	{dir: "pool", ours: []string{"balance", "health"}, stdlib: true, pure: true, except: []string{"run.go"}},
	{dir: "discover", ours: []string{}, pure: true, except: []string{"discover.go", "file.go", "dns.go", "resolve.go", "exchange.go", "hosts.go"}},
	{dir: "internal/message", ours: []string{}, stdlib: true},
	{dir: "internal/orca", ours: []string{}, stdlib: true, pure: true},
	{dir: "internal/route", ours: []string{"internal/message"}},
	{dir: "internal/logline", ours: []string{}, stdlib: true, pure: true},
	{dir: "internal/clienthello", ours: []string{}, stdlib: true, pure: true},
	{dir: "internal/proxyproto", ours: []string{}, stdlib: true, pure: true},
	{dir: "internal/observe", ours: []string{"internal/message", "balance", "internal/clock", "internal/logline"}},
	{dir: "internal/clock", ours: []string{"balance"}, stdlib: true},
	{dir: "internal/netconn", ours: []string{"balance", "internal/clock"}},
	{dir: "internal/acme", ours: []string{"internal/inputfile"}},
	{dir: "internal/inputfile", ours: []string{}, stdlib: true},
	{dir: "internal/listen", ours: []string{"balance", "internal/clock", "internal/inputfile", "internal/netconn", "internal/proxyproto"}},
	{dir: "internal/http1", ours: []string{"balance", "internal/clock", "internal/message", "internal/netconn"}},
	{dir: "internal/http2", ours: []string{"balance", "internal/clock", "internal/http1", "internal/message", "internal/netconn"}},
	{dir: "internal/upstream", ours: []string{"balance", "internal/clock", "internal/http1", "internal/http2", "internal/inputfile", "internal/message", "internal/netconn", "pool"}},
	{dir: "internal/l7", any: true, never: []string{"internal/admin", "internal/config", "internal/demo", "internal/engine", "internal/listen", "internal/probe", "internal/weirtest"}},
	{dir: "internal/l4", ours: []string{"balance", "internal/clienthello", "internal/clock", "internal/message", "internal/netconn", "internal/observe", "internal/proxyproto", "internal/upstream", "pool"}},
	{dir: "internal/probe", ours: []string{"balance", "health", "internal/clock", "internal/http1", "internal/message", "internal/netconn", "internal/orca", "internal/proxyproto", "internal/upstream"}},
	{dir: "internal/config", ours: []string{"internal/inputfile", "internal/logline", "internal/route"}},
	{dir: "internal/lint", ours: []string{"internal/config"}, stdlib: true},
	{dir: "internal/doctor", ours: []string{"internal/config"}},
	{dir: "internal/engine", any: true, never: []string{"internal/demo", "internal/weirtest"}},
	{dir: "internal/admin", ours: []string{}},
	{dir: "internal/top", ours: []string{"internal/admin"}, stdlib: true, pure: true},
	{dir: "internal/sim", ours: []string{"balance", "health", "pool"}, stdlib: true, pure: true},
	{dir: "internal/handover", ours: []string{}, stdlib: true},
	{dir: "internal/systemd", ours: []string{}},
	{dir: "internal/demo", ours: []string{}, stdlib: true},
	{dir: "internal/websocket", ours: []string{}, stdlib: true, pure: true},
	{dir: "internal/weirtest", ours: []string{}, stdlib: true},
	{dir: "cmd/weir", ours: []string{"balance", "internal/admin", "internal/config", "internal/demo", "internal/doctor", "internal/engine", "internal/handover", "internal/inputfile", "internal/lint", "internal/listen", "internal/sim", "internal/systemd", "internal/top", "pool"}},
}

// unwalled are the folders that are no part of the program: they look at it from
// outside.
var unwalled = []string{".", "bench", "bench/faults", "test"}

// onlyHere lists outside modules that a single folder may import.
var onlyHere = map[string][]string{
	"github.com/cilium/ebpf":       {"internal/packet"},
	"google.golang.org/grpc":       {"weirgrpc"}, // and internal/probe's tests
	"github.com/quic-go/quic-go":   {"internal/http3"},
	"github.com/spf13/cobra":       {"cmd/weir"},
	"github.com/goccy/go-yaml":     {"internal/config"},
	"github.com/prometheus/":       {"internal/observe"},
	"github.com/miekg/dns":         {"internal/upstream", "discover"},
	"charm.land/":                  {"cmd/weir"},
	"github.com/coreos/go-systemd": {"internal/systemd"},
	"golang.org/x/net/http2":       {"internal/http2", "internal/probe"},
	"net/http/httputil":            {},
	"github.com/caddyserver/":      {"internal/acme"},
	"github.com/mholt/acmez":       {"internal/acme"},
	"go.uber.org/zap":              {"internal/acme"},
	"github.com/cespare/xxhash/v2": {"internal/l7", "internal/observe"},
}

// TestImportWalls holds the tree to the table.
func TestImportWalls(t *testing.T) {
	for _, v := range violations(t, os.DirFS("."), walls) {
		t.Error(v)
	}
}

// TestImportWallsCatch plants one violation of each kind and expects each to be
// found: a check that cannot fail is not a check.
func TestImportWallsCatch(t *testing.T) {
	plant := func(dir, file, src string) fs.FS {
		return fstest.MapFS{dir + "/" + file: {Data: []byte(src)}}
	}
	for _, c := range []struct {
		name string
		fsys fs.FS
		want string
	}{
		{"clock", plant("balance", "a.go", "package balance\nimport \"time\"\nvar _ = time.Now\n"), "time.Now"},
		{"socket", plant("balance", "a.go", "package balance\nimport _ \"net\"\n"), `imports "net"`},
		{"dice", plant("health", "a.go", "package health\nimport \"math/rand/v2\"\nvar _ = rand.Uint64\n"), "rand.Uint64"},
		{"goroutine", plant("pool", "state.go", "package pool\nfunc f() { go f() }\n"), "starts a goroutine"},
		{"ours", plant("balance", "a.go", "package balance\nimport _ \"github.com/weirlb/weir/pool\"\n"), "may not import pool"},
		{"never", plant("internal/admin", "a.go", "package admin\nimport _ \"github.com/weirlb/weir/internal/engine\"\n"), "may not import internal/engine"},
		{"outside", plant("internal/l7", "a.go", "package l7\nimport _ \"github.com/cilium/ebpf\"\n"), "only by internal/packet"},
		{"httputil", plant("internal/l7", "a.go", "package l7\nimport _ \"net/http/httputil\"\n"), "net/http/httputil"},
		{"stale", fstest.MapFS{}, "is gone"},
		{"unlisted", plant("internal/new", "a.go", "package new\n"), "has no line"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := violations(t, c.fsys, walls)
			if !slices.ContainsFunc(got, func(v string) bool { return strings.Contains(v, c.want) }) {
				t.Errorf("planted violation not found: want %q in %q", c.want, got)
			}
		})
	}
	clean := plant("pool", "run.go", "package pool\nimport \"time\"\nvar _ = time.Now\nfunc f() { go f() }\n")
	for _, v := range violations(t, clean, walls) {
		if !strings.Contains(v, "is gone") {
			t.Errorf("run.go may read the clock, but: %s", v)
		}
	}
}

func violations(t *testing.T, fsys fs.FS, walls []wall) []string {
	t.Helper()
	var found []string
	seen := map[string]bool{}
	err := fs.WalkDir(fsys, ".", func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if n := d.Name(); p != "." && (strings.HasPrefix(n, ".") || n == "testdata") {
				return fs.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(p, ".go") || strings.HasSuffix(p, "_test.go") {
			return nil
		}
		src, err := fs.ReadFile(fsys, p)
		if err != nil {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), p, src, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		dir := path.Dir(p)
		seen[dir] = true
		found = append(found, outside(p, dir, file)...)
		for _, w := range walls {
			if w.dir == dir {
				found = append(found, w.check(p, file)...)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for dir := range seen {
		if slices.Contains(unwalled, dir) || slices.ContainsFunc(walls, func(w wall) bool { return w.dir == dir }) {
			continue
		}
		found = append(found, fmt.Sprintf("%s has no line in the import table: say what it may import", dir))
	}
	for _, w := range walls {
		if !seen[w.dir] {
			found = append(found, fmt.Sprintf("the wall around %s has nothing behind it: the folder is gone; remove the line", w.dir))
		}
	}
	return found
}

func imports(file *ast.File) (paths []string) {
	for _, i := range file.Imports {
		if s, err := strconv.Unquote(i.Path.Value); err == nil {
			paths = append(paths, s)
		}
	}
	return paths
}

func outside(p, dir string, file *ast.File) (found []string) {
	for _, imp := range imports(file) {
		for mod, dirs := range onlyHere {
			allowed := slices.ContainsFunc(dirs, func(d string) bool { return dir == d || strings.HasPrefix(dir, d+"/") })
			if strings.HasPrefix(imp, mod) && !allowed {
				found = append(found, fmt.Sprintf("%s imports %q, which may be imported only by %s", p, imp, strings.Join(dirs, ", ")))
			}
		}
	}
	return found
}

func (w wall) check(p string, file *ast.File) (found []string) {
	for _, imp := range imports(file) {
		ours, isOurs := strings.CutPrefix(imp, module)
		switch {
		case isOurs && w.any:
			if slices.ContainsFunc(w.never, func(n string) bool { return ours == n || strings.HasPrefix(ours, n+"/") }) {
				found = append(found, fmt.Sprintf("%s may not import %s", p, ours))
			}
		case isOurs && !slices.Contains(w.ours, ours):
			found = append(found, fmt.Sprintf("%s may not import %s", p, ours))
		case !isOurs && w.stdlib && strings.Contains(strings.Split(imp, "/")[0], "."):
			found = append(found, fmt.Sprintf("%s imports %q: standard library only", p, imp))
		}
	}
	if w.pure && !slices.Contains(w.except, path.Base(p)) {
		found = append(found, impurities(p, file)...)
	}
	return found
}

// impurities finds what a pure package may not hold: sockets, files, clocks,
// timers, the shared dice and goroutines.
func impurities(p string, file *ast.File) (found []string) {
	names := map[string]string{} // local name of an import -> path
	for _, i := range file.Imports {
		imp, err := strconv.Unquote(i.Path.Value)
		if err != nil {
			continue
		}
		for _, bad := range []string{"net", "os", "syscall", "context", "log", "log/slog"} {
			if imp == bad || strings.HasPrefix(imp, bad+"/") && imp != "net/netip" { // addresses are values
				found = append(found, fmt.Sprintf("%s imports %q: the core has no sockets, files or logs", p, imp))
			}
		}
		local := path.Base(imp)
		if imp == "math/rand/v2" {
			local = "rand"
		}
		if i.Name != nil {
			local = i.Name.Name
		}
		names[local] = imp
	}
	timeBad := []string{"Now", "Since", "Until", "After", "AfterFunc", "NewTimer", "NewTicker", "Tick", "Sleep"}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GoStmt:
			found = append(found, fmt.Sprintf("%s starts a goroutine: the core has none", p))
		case *ast.SelectorExpr:
			x, ok := n.X.(*ast.Ident)
			if !ok {
				return true
			}
			switch names[x.Name] {
			case "time":
				if slices.Contains(timeBad, n.Sel.Name) {
					found = append(found, fmt.Sprintf("%s uses time.%s: time arrives as an argument", p, n.Sel.Name))
				}
			case "math/rand", "math/rand/v2":
				if !strings.HasPrefix(n.Sel.Name, "New") && n.Sel.Name != "Rand" && n.Sel.Name != "Source" && n.Sel.Name != "PCG" {
					found = append(found, fmt.Sprintf("%s uses rand.%s: entropy arrives as an argument", p, n.Sel.Name))
				}
			}
		}
		return true
	})
	return found
}

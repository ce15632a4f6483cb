// SPDX-License-Identifier: Apache-2.0

package config

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

var rewrite = flag.Bool("rewrite", false, "write the golden files anew")

var testEnv = map[string]string{
	"HOST": "127.0.0.1", "PORT": "", "BACKEND": "10.0.0.9", "EMPTY": "", "MAX": "50", "CONNECT": "3s",
}

func lookup(name string) (string, bool) {
	v, ok := testEnv[name]
	return v, ok
}

// TestGolden parses every testdata/*.yaml and compares what comes of it, the
// minimal YAML with warnings or the errors, with the .txt beside it.
func TestGolden(t *testing.T) {
	files, err := filepath.Glob("testdata/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatal(err, "no cases")
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".yaml")
		t.Run(name, func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			plan, err := Parse(name+".yaml", text, lookup)
			got := ""
			if err != nil {
				checkErrors(t, err, string(text))
				got = err.Error() + "\n"
			} else {
				roundTrip(t, plan)
				got = string(plan.YAML(true))
				for _, w := range plan.Warnings {
					got += w.String() + "\n"
				}
			}
			golden := strings.TrimSuffix(file, ".yaml") + ".txt"
			if *rewrite {
				if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err, "(run with -rewrite and review)")
			}
			if got != string(want) {
				t.Errorf("got:\n%s\nwant:\n%s", got, want)
			}
		})
	}
}

// checkErrors holds every fault to the promises of Fault.
func checkErrors(t testFailer, err error, text string) {
	t.Helper()
	var e *Errors
	if !errors.As(err, &e) || len(e.Faults) == 0 {
		t.Fatalf("%T: %v", err, err)
	}
	lines := strings.Count(text, "\n") + 1
	for _, f := range e.Faults {
		if f.Pos.Line < 1 || f.Pos.Line > lines || f.Pos.Col < 1 || f.Pos.File == "" {
			t.Errorf("no position: %+v", f)
		}
		if f.What == "" || f.Fix == "" || strings.ContainsAny(f.What+f.Fix, "\n\r\x00") {
			t.Errorf("half a message: %+v", f)
		}
	}
}

// roundTrip checks that both printed forms parse to the same plan.
func roundTrip(t testFailer, plan *Plan) {
	t.Helper()
	for _, minimal := range []bool{true, false} {
		text := plan.YAML(minimal)
		again, err := Parse("printed", text, func(string) (string, bool) { return "", false })
		if err != nil {
			t.Errorf("minimal %v does not parse: %v\n%s", minimal, err, text)
			return
		}
		if a, b := barePlan(plan), barePlan(again); !reflect.DeepEqual(a, b) {
			t.Errorf("minimal %v is another plan:\n%s\n%s", minimal, text, difference(reflect.ValueOf(a).Elem(), reflect.ValueOf(b).Elem(), ""))
		}
		if second := again.YAML(minimal); string(second) != string(text) {
			t.Fatalf("minimal %v prints differently the second time:\n%s\n%s", minimal, text, second)
		}
	}
}

// barePlan is the plan without what a text's layout decides.
func barePlan(p *Plan) *Plan {
	c := *p
	c.File, c.Files, c.Globs, c.Warnings, c.secrets = "", nil, nil, nil, nil
	c.Listeners = append([]Listener(nil), c.Listeners...)
	for i := range c.Listeners {
		l := &c.Listeners[i]
		l.Pos = Position{}
		l.Routes = append([]Route(nil), l.Routes...)
		for j := range l.Routes {
			l.Routes[j].Pos = Position{}
		}
		if l.TLS != nil {
			tls := *l.TLS
			tls.Certificates = append([]KeyPair(nil), tls.Certificates...)
			for j := range tls.Certificates {
				tls.Certificates[j].Pos = Position{}
			}
			l.TLS = &tls
		}
	}
	c.Pools = append([]Pool(nil), c.Pools...)
	for i := range c.Pools {
		c.Pools[i].Pos = Position{}
		c.Pools[i].Backends = append([]Backend(nil), c.Pools[i].Backends...)
		for j := range c.Pools[i].Backends {
			c.Pools[i].Backends[j].Pos = Position{}
		}
	}
	empty(reflect.ValueOf(&c).Elem())
	return &c
}

// difference names the first field in which two values differ.
func difference(a, b reflect.Value, path string) string {
	if reflect.DeepEqual(a.Interface(), b.Interface()) {
		return ""
	}
	switch a.Kind() {
	case reflect.Struct:
		for i := range a.NumField() {
			if d := difference(a.Field(i), b.Field(i), path+"."+a.Type().Field(i).Name); d != "" {
				return d
			}
		}
	case reflect.Slice:
		if a.Len() == b.Len() {
			for i := range a.Len() {
				if d := difference(a.Index(i), b.Index(i), fmt.Sprintf("%s[%d]", path, i)); d != "" {
					return d
				}
			}
		}
	}
	return fmt.Sprintf("%s: %+v and %+v", path, a.Interface(), b.Interface())
}

// empty turns empty slices into nil ones: they mean the same.
func empty(v reflect.Value) {
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				empty(v.Field(i))
			}
		}
	case reflect.Pointer:
		if !v.IsNil() {
			empty(v.Elem())
		}
	case reflect.Slice:
		if v.Len() == 0 && v.CanSet() {
			v.SetZero()
		}
		for i := range v.Len() {
			empty(v.Index(i))
		}
	}
}

func FuzzParse(f *testing.F) {
	files, err := filepath.Glob("testdata/*.yaml")
	if err != nil {
		f.Fatal(err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		if len(text) > 64<<10 {
			return
		}
		start := time.Now()
		plan, err := Parse("fuzz.yaml", text, lookup)
		if d := time.Since(start); d > 5*time.Second {
			t.Errorf("took %v", d)
		}
		if err != nil {
			checkErrors(t, err, string(text))
			return
		}
		roundTrip(t, plan)
	})
}

// testFailer is what *testing.T and *rapid.T have in common.
type testFailer interface {
	Helper()
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
}

func TestOverlap(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want bool
	}{
		{"127.0.0.1:80", "127.0.0.1:80", true},
		{"localhost:80", "127.0.0.1:80", true},
		{"localhost:80", "[::1]:80", false},
		{":80", "[::1]:80", true},
		{"0.0.0.0:80", "[::1]:80", false},
		{"0.0.0.0:80", "[::]:80", true},
		{"127.0.0.1:80", "127.0.0.2:80", false},
		{":80", ":81", false},
		{":0", ":0", false},
		{"unix:/run/a", "unix:/run//./a", true},
		{"unix:/run/a", "unix:/run/b", false},
		{"unix:/run/a", ":80", false},
	} {
		if overlap(c.a, c.b) != c.want || overlap(c.b, c.a) != c.want {
			t.Errorf("overlap of %s and %s is not %v", c.a, c.b, c.want)
		}
	}
}

func TestNoAbstractSocketForOperators(t *testing.T) {
	for _, block := range []string{"admin", "status"} {
		text := block + `: {bind: "unix:@weir"}
listeners: {web: {bind: ":8080", pool: app}}
pools: {app: {backends: ["http://10.0.0.1:80"]}}`
		_, err := Parse("x", []byte(text), func(string) (string, bool) { return "", false })
		if err == nil || !strings.Contains(err.Error(), "abstract") {
			t.Errorf("%s: %v", block, err)
		}
	}
}

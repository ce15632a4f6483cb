// SPDX-License-Identifier: Apache-2.0

package config

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestFleetGolden reads every testdata/fleet/*.yaml and compares what comes of
// it with the .txt beside it.
func TestFleetGolden(t *testing.T) {
	files, err := filepath.Glob("testdata/fleet/*.yaml")
	if err != nil || len(files) < 4 {
		t.Fatal(err, "no cases")
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".yaml")
		t.Run(name, func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			fleet, err := ParseFleet(name+".yaml", text, lookup)
			var got string
			if err != nil {
				checkErrors(t, err, string(text))
				got = err.Error() + "\n"
			} else {
				shown, err := json.MarshalIndent(fleet, "", " ")
				if err != nil {
					t.Fatal(err)
				}
				got = string(shown) + "\n"
			}
			golden := strings.TrimSuffix(file, ".yaml") + ".txt"
			if *rewrite {
				if err := os.WriteFile(golden, []byte(got), 0o600); err != nil {
					t.Fatal(err)
				}
				return
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if got != string(want) {
				t.Errorf("got:\n%s\nwant:\n%s", got, want)
			}
		})
	}
}

// A server of its own starts from `server`, not from the built-in defaults, and
// whoever is not named is like `server`.
func TestFleetServers(t *testing.T) {
	fleet, err := ParseFleet("f.yaml", []byte("servers: {b: {speed: 30%}}\nserver: {service: 7ms}\n"), lookup)
	if err != nil {
		t.Fatal(err)
	}
	b, c := fleet.ServerOf("b"), fleet.ServerOf("c")
	if b.Speed != 0.3 || b.Service != 7*time.Millisecond || c.Speed != 1 || c.Service != 7*time.Millisecond || c.ID != "c" {
		t.Errorf("b %+v, c %+v", b, c)
	}
}

// What a fleet names must be in the pool, or be added by it.
func TestFleetFit(t *testing.T) {
	plan, err := Parse("w.yaml", []byte(`
listeners: {web: {bind: ":8080", pool: app}}
pools: {app: {backends: [{url: "http://10.0.0.1:80", id: alder, zone: eu-1a}, {url: "http://10.0.0.2:80", id: birch}]}}
`), lookup)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ text, want string }{
		{"events: [{at: 1s, do: kill, backend: alder}]", ""},
		{"events: [{at: 1s, do: add, backend: cedar}, {at: 2s, do: slow, backend: cedar}]\nservers: {cedar: {speed: 50%}}", ""},
		{"events: [{at: 1s, do: kill, backend: aldr}]", `did you mean alder?`},
		{"events: [{at: 1s, do: kill, zone: eu-1b}]", `zone "eu-1b" is not in pool app: did you mean eu-1a?`},
		{"servers: {bich: {speed: 50%}}", `f.yaml:1:11: backend "bich" is not in pool app: did you mean birch?`},
	} {
		fleet, err := ParseFleet("f.yaml", []byte(c.text), lookup)
		if err != nil {
			t.Errorf("%s: %v", c.text, err)
			continue
		}
		err = fleet.Fit(&plan.Pools[0])
		var faults *Errors
		if c.want == "" && err != nil || c.want != "" && (!errors.As(err, &faults) || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v, want %q", c.text, err, c.want)
		}
	}
}

// FuzzFleet: whatever the text, it is refused with places or makes a fleet.
func FuzzFleet(f *testing.F) {
	files, err := filepath.Glob("testdata/fleet/*.yaml")
	if err != nil {
		f.Fatal(err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(text))
	}
	f.Fuzz(func(t *testing.T, text string) {
		fleet, err := ParseFleet("f.yaml", []byte(text), lookup)
		if err != nil {
			checkErrors(t, err, text)
			return
		}
		if fleet.Duration <= 0 || fleet.Balancers < 1 || fleet.Server.Concurrency < 1 {
			t.Errorf("accepted: %+v", fleet)
		}
		for _, e := range fleet.Events {
			if e.Do == "" || e.At < 0 {
				t.Errorf("accepted: %+v", e)
			}
		}
	})
}

// TestFleetReference keeps the table of keys in docs/simulator.md up to date;
// -rewrite writes it.
func TestFleetReference(t *testing.T) {
	const file, begin, end = "../../docs/simulator.md", "<!-- fleet keys -->\n", "<!-- /fleet keys -->\n"
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	head, rest, ok := strings.Cut(string(text), begin)
	table, tail, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("%s has no place for the keys of a fleet", file)
	}
	want := string(FleetReference()) + "\n"
	if *rewrite {
		if err := os.WriteFile(file, []byte(head+begin+want+end+tail), 0o644); err != nil { //nolint:gosec // a document
			t.Fatal(err)
		}
		return
	}
	if table != want {
		t.Errorf("%s is not up to date: run go generate ./internal/config", file)
	}
}

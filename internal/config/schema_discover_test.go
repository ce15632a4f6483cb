// SPDX-License-Identifier: Apache-2.0

package config

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
)

// TestParseBackends reads files of backends; want is "id url weight" of each, or
// what the error says.
func TestParseBackends(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{"a list", "- http://10.0.0.1:80\n- {url: \"http://b:81\", weight: 3, id: b1}\n", "10.0.0.1:80 http://10.0.0.1:80 1, b1 http://b:81 3"},
		{"under its key", "backends: [\"http://a\"]\n", "a:80 http://a:80 1"},
		{"JSON", `[{"url":"http://a:1","weight":2,"zone":"z"},"http://b:2"]`, "a:1 http://a:1 2, b:2 http://b:2 1"},
		{"JSON with tabs", "{\n\t\"backends\": [\n\t\t\"http://a:1\"\n\t]\n}\n", "a:1 http://a:1 1"},
		{"JSON in one line under its key", `{"backends":["http://a:1",{"url":"https://[::1]:2"}]}`, "a:1 http://a:1 1, [::1]:2 https://[::1]:2 1"},
		{"an empty list", "[]", ""},
		{"an empty list under its key", "backends: []", ""},
		{"nothing", "", "is empty"},
		{"half a file", `[{"url":"http://a:1","weight":2},{"url":"ht`, "f.yaml:1:"},
		{"half a URL", "- http://10.0.0.1:80\n- http://10.0", `"10.0" is not an address`},
		{"an unknown key", "- {url: \"http://a\", wieght: 2}\n", `f.yaml:1:21: "wieght" is not a key of a backend: did you mean weight?`},
		{"another key", "servers: [a]\n", `"servers" is not a key of the file`},
		{"no key at all", "{}", "the file has no backends"},
		{"twice", "- http://a:1\n- http://a:1\n", `two backends are called "a:1"`},
		{"nobody takes work", "- {url: \"http://a:1\", weight: 0}\n", "every backend has weight 0"},
		{"the environment stays out", "- http://${HOME}:1\n", "HOME"},
		{"a word", "hello", `backends is the single value "hello", not a list`},
		{"two faults", "- x\n- {weight: 1}\n", "f.yaml:2:3"},
	} {
		t.Run(c.name, func(t *testing.T) {
			list, err := ParseBackends("f.yaml", []byte(c.text))
			if err != nil {
				var e *Errors
				if !errors.As(err, &e) || len(e.Faults) == 0 {
					t.Fatalf("no list of faults: %v", err)
				}
				if c.want == "" || !strings.Contains(err.Error(), c.want) {
					t.Fatalf("%v\nwant %q", err, c.want)
				}
				return
			}
			var got []string
			for _, b := range list {
				got = append(got, b.ID+" "+b.URL+" "+itoa(int(b.Weight)))
			}
			if s := strings.Join(got, ", "); s != c.want {
				t.Errorf("%q, want %q", s, c.want)
			}
		})
	}
}

// FuzzParseBackends: no text panics, what is accepted keeps the rules that the
// pool relies on, and reads the same when it is written as JSON.
func FuzzParseBackends(f *testing.F) {
	for _, s := range []string{
		"- http://10.0.0.1:80\n- {url: \"http://b:81\", weight: 3, id: b1}\n", `[{"url":"http://a:1","weight":2},"http://b:2"]`,
		"backends: [\"http://a\"]", "{\n\t\"backends\": [\n\t\t\"http://a:1\"\n\t]\n}", "- &a http://a\n- *a", "[", "- {url: x, backup: true, priority: 3}", "[]",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if len(text) > 4096 {
			return
		}
		list, err := ParseBackends("f", []byte(text))
		if err != nil {
			var e *Errors
			if !errors.As(err, &e) || len(e.Faults) == 0 || list != nil {
				t.Fatalf("%v with %v", list, err)
			}
			return
		}
		type item struct {
			URL      string `json:"url"`
			Weight   uint32 `json:"weight"`
			ID       string `json:"id"`
			Zone     string `json:"zone,omitempty"`
			Backup   bool   `json:"backup"`
			Priority uint8  `json:"priority"`
		}
		seen, weight := map[string]bool{}, uint64(0)
		items := []item{}
		for _, b := range list {
			if seen[b.ID] || b.ID == "" || b.Address == "" || !strings.HasPrefix(b.URL, "http") {
				t.Fatalf("%+v", b)
			}
			seen[b.ID] = true
			weight += uint64(b.Weight)
			items = append(items, item{b.URL, b.Weight, b.ID, b.Zone, b.Backup, b.Priority})
		}
		if len(list) > 0 && weight == 0 {
			t.Fatal("nobody takes work")
		}
		doc, err := json.MarshalIndent(items, "", "\t")
		if err != nil {
			t.Fatal(err)
		}
		again, err := ParseBackends("f", doc)
		if err != nil {
			t.Fatalf("%s\n%v", doc, err)
		}
		same := slices.EqualFunc(list, again, func(a, b Backend) bool {
			a.Pos, b.Pos = Position{}, Position{}
			return a == b
		})
		if !same {
			t.Fatalf("%+v\n%+v", list, again)
		}
	})
}

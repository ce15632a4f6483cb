// SPDX-License-Identifier: Apache-2.0

package config

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
)

// TestParseBackend: what the API takes is what a configuration takes, with the
// same words for mistakes.
func TestParseBackend(t *testing.T) {
	for _, c := range []struct {
		text string
		want Backend
	}{
		{`{"url":"http://10.0.1.21:8080"}`, Backend{ID: "10.0.1.21:8080", URL: "http://10.0.1.21:8080", Address: "10.0.1.21:8080", Weight: 1}},
		{
			"\n{\t\"url\": \"https://B.example.com\", \"weight\":3,\"zone\":\"eu-1a\",\"id\":\"big-1\",\n\t\"backup\":true,\"priority\":0}\n",
			Backend{ID: "big-1", URL: "https://b.example.com:443", Address: "b.example.com:443", Weight: 3, Zone: "eu-1a", Backup: true, TLS: true},
		},
		{`{"url":"http://[FD00::1]:80","weight":0,"priority":2,"zone":null}`, Backend{}},
		{`{"url":"http://[FD00::1]:80","weight":0,"priority":2,"zone":"none"}`, Backend{ID: "[fd00::1]:80", URL: "http://[fd00::1]:80", Address: "[fd00::1]:80", Priority: 2}},
	} {
		got, err := ParseBackend([]byte(c.text))
		if c.want.URL == "" {
			if err == nil {
				t.Errorf("%s: taken as %+v", c.text, got)
			}
			continue
		}
		if err != nil || got != c.want {
			t.Errorf("%s: %+v, %v", c.text, got, err)
		}
	}
	for text, want := range map[string]string{
		``:                                    "no JSON object",
		`[]`:                                  "no JSON object",
		`{"url":"http://a:1"} {}`:             "no JSON object",
		`url: http://a:1`:                     "no JSON object",
		`{}`:                                  "has no url",
		`{"url":"10.0.1.21:8080"}`:            "has no scheme",
		`{"url":"http://a:80/x"}`:             "has a path",
		`{"url":"http://a:0"}`:                "port",
		`{"url":"http://a","wieght":2}`:       "weight",
		`{"url":"http://a","weight":-1}`:      "weight",
		`{"url":"http://a","weight":"2 "}`:    "weight",
		`{"url":"http://a","weight":1001}`:    "1000",
		`{"url":"http://a","id":"a b"}`:       "is not an id",
		`{"url":"http://a","priority":10}`:    "9",
		`{"url":"http://${HOME}"}`:            "HOME",
		`{"url":"http://a","url":"http://b"}`: "twice",
		`{"url":{"x":1}}`:                     "url",
		`{"url":"http://a","id":"` + strings.Repeat("x", 300) + `"}`: "is not an id",
	} {
		b, err := ParseBackend([]byte(text))
		var all *Errors
		if !errors.As(err, &all) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %+v, %v; want %q", text, b, err, want)
			continue
		}
		for _, f := range all.Faults {
			if f.Pos != (Position{}) || f.Line != "" {
				t.Errorf("%s: a place is said: %v", text, f)
			}
		}
	}
	// Both mistakes at once.
	_, err := ParseBackend([]byte(`{"url":"x","weight":2000}`))
	var all *Errors
	if !errors.As(err, &all) || len(all.Faults) != 2 {
		t.Errorf("%v", err)
	}
}

// FuzzParseBackend: no text makes it panic, and what it takes is what JSON says.
func FuzzParseBackend(f *testing.F) {
	f.Add([]byte(`{"url":"http://10.0.1.21:8080","weight":2,"id":"a:b","zone":"x"}`))
	f.Add([]byte(`{"url":"http://a","id":"\u0061"}`))
	f.Add([]byte(`{"id":"a\\\"b","url":"http://a"}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		b, err := ParseBackend(text)
		if err != nil {
			return
		}
		var in struct {
			URL    string  `json:"url"`
			ID     *string `json:"id"`
			Zone   *string `json:"zone"`
			Backup bool    `json:"backup"`
		}
		if json.Unmarshal(text, &in) != nil {
			return // "backup": "on" is a configuration's word, too
		}
		if in.ID != nil && *in.ID != "auto" && b.ID != *in.ID {
			t.Errorf("%q: id %q", text, b.ID)
		}
		if again, err := ParseBackend(mustJSON(t, b)); err != nil || again != b {
			t.Errorf("%q: %+v became %+v, %v", text, b, again, err)
		}
	})
}

func mustJSON(t *testing.T, b Backend) []byte {
	t.Helper()
	out := map[string]any{"url": b.URL, "weight": b.Weight, "id": b.ID, "backup": b.Backup, "priority": b.Priority}
	if b.Zone != "" {
		out["zone"] = b.Zone
	}
	text, err := json.Marshal(out)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// SPDX-License-Identifier: Apache-2.0

package config

import (
	"os"
	"strings"
	"testing"
)

// secretEnv is an environment that holds secrets, and one value that is none.
func secretEnv(name string) (string, bool) {
	v, ok := map[string]string{
		"API_TOKEN": "env-hunter-1", "DB_PASSWORD": "env-hunter-2", "REGION": "eu-west-7", "SHORT_KEY": "abc",
	}[name]
	return v, ok
}

const manySecrets = `listeners:
  web:
    bind: "127.0.0.1:8080"
    routes:
      - match: {headers: {X-Api-Key: hunter-key, X-Canary: seen-canary}}
        pool: app
      - match: {path_prefix: /a}
        pool: app
        request_headers:
          set: {Authorization: "Bearer hunter-auth", Cookie: hunter-cookie, X-Session-Id: hunter-session, X-Plain: seen-plain, X-Region: "${REGION}"}
          add: {X-Upstream: "basic aHVudGVyOmh1bnRlcg==", X-Jwt-Less: "eyJhbGciOiJub25lIn0.hunter-jwt"}
        response_headers: {set: {X-From: "${DB_PASSWORD}", X-Secret-Hint: hunter-hint}}
      - {match: {path: /say}, respond: {code: 200, body: "hello ${API_TOKEN}", content_type: text/plain}}
      - {pool: app}
pools:
  app: {backends: ["http://10.0.0.1:80"]}
`

// hidden are the secrets of manySecrets.
var hidden = []string{"hunter", "aHVudGVy", "eyJ"}

func TestPublicHidesSecrets(t *testing.T) {
	plan, err := Parse("t.yaml", []byte(manySecrets), secretEnv)
	if err != nil {
		t.Fatal(err)
	}
	got := string(plan.Public())
	for _, s := range hidden {
		if strings.Contains(got, s) {
			t.Errorf("%s is shown:\n%s", s, got)
		}
	}
	for _, s := range []string{"seen-canary", "seen-plain", "eu-west-7", "/say"} {
		if !strings.Contains(got, s) {
			t.Errorf("%s is not shown:\n%s", s, got)
		}
	}
	// What was shown is not taken back: the stars would become the secret.
	_, err = Parse("posted", []byte(got), os.LookupEnv)
	if err == nil {
		t.Fatal("a text with hidden secrets was accepted")
	}
	if n, want := strings.Count(err.Error(), "*** stands for a secret"), strings.Count(got, `"***"`); n != want || n < 8 {
		t.Errorf("%d of %d stars are named:\n%v", n, want, err)
	}
}

// Differences name what changed without the secrets, in paths too.
func TestDiffHidesSecrets(t *testing.T) {
	parse := func(text string) *Plan {
		t.Helper()
		p, err := Parse("t.yaml", []byte(text), secretEnv)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	before := parse(manySecrets)
	for _, change := range []string{"hunter-key", "hunter-auth", "hunter-hint", "${API_TOKEN}", "X-Plain", "say", "10.0.0.1"} {
		changes := Diff(before, parse(strings.ReplaceAll(manySecrets, change, "hunter-other")))
		if len(changes) == 0 {
			t.Errorf("no difference by %s", change)
		}
		for _, c := range changes {
			for _, s := range hidden {
				if strings.Contains(strings.ReplaceAll(c.String(), "hunter-other", ""), s) {
					t.Errorf("%s: %s", change, c)
				}
			}
		}
	}
	for _, c := range Diff(nil, before) {
		for _, s := range hidden {
			if strings.Contains(c.String(), s) {
				t.Errorf("from nothing: %s", c)
			}
		}
	}
}

// Faults show neither secrets of the environment nor those of header fields, in
// the excerpt neither, and mark the right place all the same.
func TestFaultsHideSecrets(t *testing.T) {
	for text, want := range map[string]string{
		`pools: {app: {backends: ["http://${API_TOKEN}"], balance: "${DB_PASSWORD}"}}`:                                                   `***`,
		`listeners: {web: {bind: ":80", routes: [{request_headers: {set: {Authorization: " hunter-auth"}}, pool: app}]}}`:                `"***" begins or ends with space`,
		`listeners: {web: {bind: ":80", routes: [{request_headers: {set: {Authorization: "Bearer hunter"}}, raw: perhaps, pool: app}]}}`: "perhaps",
	} {
		_, err := Parse("t.yaml", []byte(text), secretEnv)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hunter") {
			t.Errorf("%v", err)
			continue
		}
		for _, f := range err.(*Errors).Faults { //nolint:errorlint // by contract
			if mark := []rune(text)[f.Pos.Col-1]; []rune(f.Line)[f.Pos.Col-1] != mark && f.Line[f.Pos.Col-1] != '*' {
				t.Errorf("the mark has moved: %s", f)
			}
		}
	}
}

// TestLinesHideSecrets: a line that is shown for one fault keeps the secrets to
// itself that stand beside it, where the text is no YAML, too.
func TestLinesHideSecrets(t *testing.T) {
	for _, text := range []string{
		`pools: {app: {backends: ["http://user:hunter-url@10.0.0.1:80"]}}`,
		`listeners: {web: {bind: ":80", routes: [{request_headers: {set: {"Bad Name": a, X-Api-Key: "hunter\n"}}, pool: app}]}}`,
		`listeners: {web: {bind: ":80", routes: [{request_headers: {set: {Authorization: {x: "Basic hunter"}, Cookie: [hunter1, hunter2]}}, pool: app}]}}`,
		`listeners: {web: {bind: ":80", routes: [{request_headers: {set: {Authorization: Bearer hunter, X-Any: token hunter}}, pool: app}]}`,
		`listeners: {web: {bind: ":80", x: "eyJhbGciOiJub25lIn0.hunter", routes: [{request_headers: {set: {'X-Secret': 'hunter, hunter'}}, pool: app}]}}`,
		`admin: {password: hunter2 hunter3, token: "hunter`,
		`listeners: {web: {bind: ":80", routes: [{request_headers: {set: {cookie: sid=hunter}}, poool: app}]}}`,
		`log: {level: loud, passwort: x} # password: hunter`,
	} {
		_, err := Parse("t.yaml", []byte(text), secretEnv)
		if err == nil || strings.Contains(err.Error(), "hunter") {
			t.Errorf("%s: %v", text, err)
			continue
		}
		for _, f := range err.(*Errors).Faults { //nolint:errorlint // by contract
			if len(f.Line) != len(text) {
				t.Errorf("the mark has moved: %s", f)
			}
		}
	}
	// What only names a file or a part of a request is shown.
	for _, line := range []string{
		`  tls: {certificates: [{cert: a.crt, key: /etc/weir/a.key}], ticket_keys_file: /etc/t}`, `admin: {token_file: /etc/token}`, `hash: {key: "cookie:sid"}`, `sticky: {cookie: weir, ttl: 1h}`,
		`pools: {tokens: {backends: ["http://[::1]:80"]}}`, `- match: {headers: {X-Canary: yes}}`,
	} {
		if got, _ := hideLine(line); got != line {
			t.Errorf("%s became %s", line, got)
		}
	}
}

func TestMaskField(t *testing.T) {
	for _, c := range []struct {
		name, value string
		hidden      bool
	}{
		{"Authorization", "x", true},
		{"Proxy-Authorization", "x", true},
		{"Cookie", "a=b", true},
		{"X-Api-Key", "1", true},
		{"X-AUTH-Token", "1", true},
		{"X-Client-Secret", "1", true},
		{"X-Password", "1", true},
		{"X-Plain", "Bearer abc", true},
		{"X-Plain", "bearer", false},
		{"X-Plain", "eyJhbGciOiJub25lIn0.e30.", true},
		{"Location", "https://user:pass@example.com/", true},
		{"Location", "https://example.com/?a=b:c@d", false},
		{"X-Canary", "1", false},
		{"Cache-Control", "no-store", false},
	} {
		if got := MaskField(c.name, c.value); (got == Masked) != c.hidden || !c.hidden && got != c.value {
			t.Errorf("%s: %s is shown as %s", c.name, c.value, got)
		}
	}
}

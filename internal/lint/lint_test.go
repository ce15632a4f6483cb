// SPDX-License-Identifier: Apache-2.0

package lint_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weirlb/weir/internal/config"
	"github.com/weirlb/weir/internal/lint"
)

var rewrite = flag.Bool("rewrite", false, "write golden files and docs/lints anew")

var now = time.Date(2030, 5, 1, 12, 0, 0, 0, time.UTC)

// outside are the rules whose fix lies outside the configuration: their
// NAME.good.yaml is written by hand.
var outside = []string{"certificate_chain", "certificate_expiring", "certificate_weak", "discover_file", "sni_ech", "sni_overlap"}

// input parses a text for the rules; every certificate is made by its name.
func input(t testing.TB, name, text string) (lint.Input, error) {
	t.Helper()
	plan, outline, err := config.ParseOutlined(name, []byte(text), func(string) (string, bool) { return "", false })
	return lint.Input{
		Plan: plan, Outline: outline, Now: now,
		ReadFile:  func(name string) ([]byte, error) { return certificate(filepath.Base(name)) },
		Detection: detection,
	}, err
}

// detection is what docs/operations.md says of it: interval x (1 + jitter) +
// (fall - 1) x max(fast_interval, timeout) + timeout.
func detection(p *config.Pool) time.Duration {
	a := &p.Active
	return time.Duration(float64(a.Interval)*(1+a.Jitter)) + time.Duration(a.Fall-1)*max(a.FastInterval, a.Timeout) + a.Timeout
}

// about returns the findings of one rule.
func about(name string, all []lint.Finding) (out []lint.Finding) {
	for _, f := range all {
		if f.Rule.Name == name {
			out = append(out, f)
		}
	}
	return out
}

// TestRules holds each rule to its files in testdata: the bad one triggers it
// and is described by the golden, every fix parses, and the fixed file, which
// is the good one, no longer triggers it, whether the fix is made by weir or by
// merging the fragment by hand.
func TestRules(t *testing.T) {
	for _, r := range lint.Rules() {
		t.Run(r.Name, func(t *testing.T) {
			bad := read(t, r.Name+".bad.yaml")
			in, err := input(t, "weir.yaml", bad)
			if r.Name == "fall_1" {
				refused(t, err, bad)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			found := about(r.Name, lint.Run(in))
			if len(found) == 0 {
				t.Fatal("the bad file does not trigger the rule")
			}
			golden(t, r.Name+".txt", describe(found))
			if slices.Contains(outside, r.Name) {
				quiet(t, r.Name, read(t, r.Name+".good.yaml"))
				return
			}
			golden(t, r.Name+".good.yaml", fixed(t, r.Name, bad, found))
		})
	}
}

// fixed makes the fixes one after the other, looking anew after each, and
// returns the good text.
func fixed(t *testing.T, name, text string, found []lint.Finding) string {
	t.Helper()
	for range 10 {
		f := found[0]
		if len(f.Edits) == 0 {
			t.Fatalf("%s: no fix for %q", name, f.What)
		}
		in, err := input(t, "weir.yaml", text)
		if err != nil {
			t.Fatal(err)
		}
		if text, err = in.Outline.Apply(f.Edits...); err != nil {
			t.Fatal(err)
		}
		if f.Fragment == "" {
			// It only removes.
		} else if merged, err := config.Overlay(text, f.Fragment); err != nil || merged != text {
			t.Errorf("%s: merging the fragment changes the fixed text (%v):\n%s\n%s", name, err, f.Fragment, merged)
		}
		if in, err = input(t, "weir.yaml", text); err != nil {
			t.Fatalf("%s: the fixed file does not parse: %v\n%s", name, err, text)
		}
		if found = about(name, lint.Run(in)); len(found) == 0 {
			return text
		}
	}
	t.Fatalf("%s: ten fixes did not settle it: %s\n%s", name, found[0].What, text)
	return ""
}

// TestFragments merges each fragment into the bad file, as an operator does, and
// expects that finding to be gone.
func TestFragments(t *testing.T) {
	for _, r := range lint.Rules() {
		if r.Name == "fall_1" {
			continue
		}
		bad := read(t, r.Name+".bad.yaml")
		in, err := input(t, "weir.yaml", bad)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range about(r.Name, lint.Run(in)) {
			if len(f.Remove) > 0 || f.Fragment == "" {
				continue
			}
			text, err := config.Overlay(bad, f.Fragment)
			if err != nil {
				t.Fatalf("%s: %v\n%s", r.Name, err, f.Fragment)
			}
			after, err := input(t, "weir.yaml", text)
			if err != nil {
				t.Errorf("%s: %v\n%s", r.Name, err, text)
				continue
			}
			for _, g := range about(r.Name, lint.Run(after)) {
				if g.What == f.What {
					t.Errorf("%s: still there after its fix: %s\n%s", r.Name, g.What, text)
				}
			}
		}
	}
}

// refused checks the one rule that is a fault of the text unless silenced.
func refused(t *testing.T, err error, bad string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), "fall: 1") {
		t.Fatalf("fall: 1 is accepted: %v", err)
	}
	golden(t, "fall_1.txt", err.Error()+"\n")
	quiet(t, "fall_1", read(t, "fall_1.good.yaml"))
	if _, err := input(t, "weir.yaml", "check: {silence: [fall_1]}\n"+bad); err != nil {
		t.Errorf("fall: 1 is refused although it is silenced: %v", err)
	}
}

func quiet(t *testing.T, name, text string) {
	t.Helper()
	in, err := input(t, "weir.yaml", text)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range about(name, lint.Run(in)) {
		t.Errorf("the good file triggers the rule: %s", f.What)
	}
}

// describe is a finding in a golden.
func describe(found []lint.Finding) string {
	var b strings.Builder
	for i, f := range found {
		if i > 0 {
			b.WriteByte('\n')
		}
		fmt.Fprintf(&b, "%s%s: %s%s\n", f.Place.Pos, f.Severity, f.What, f.Place.Excerpt())
		for _, r := range f.Remove {
			fmt.Fprintf(&b, "fix: remove %s\n", r)
		}
		if f.Fragment != "" {
			fmt.Fprintf(&b, "fix:\n%s", f.Fragment)
		}
	}
	return b.String()
}

// A tcp check that sends or reads sees more than the port, and of a UDP service the
// port beside it is all there is.
func TestCheckThatTalks(t *testing.T) {
	for _, pool := range []string{
		`backends: ["tcp://a:1", "tcp://b:1"], health: {active: {send: 'PING\r\n', body: PONG}}`,
		`backends: ["tcp://a:1", "tcp://b:1"], health: {active: {send: 'PING\r\n'}}`,
		`backends: ["tcp://a:1", "tcp://b:1"], health: {active: {body: ready}}`,
	} {
		quiet(t, "check_tcp", "listeners: {db: {bind: \":1\", protocol: tcp, pool: p}}\npools: {p: {"+pool+"}}\n")
	}
	quiet(t, "check_tcp", "listeners: {dns: {bind: \":53\", protocol: udp, pool: p}}\npools: {p: {backends: [\"udp://a:53\"], health: {active: {protocol: tcp}}}}\n")
}

// A handshake of TLS is answered by the process, not by the kernel.
func TestCheckByHandshake(t *testing.T) {
	for _, c := range []struct{ backends, pool, want string }{
		{`"tls://a:1", "tls://b:1"`, "", "ends with the handshake of TLS"},
		{`"tls://a:1", "tls://b:1"`, ", health: {active: {tls: off}}", "is tcp: a process that hangs"},
		{`"tcp://a:1", "tcp://b:1"`, ", health: {active: {tls: on}}", "ends with the handshake of TLS"},
		{`"tcp://a:1", "tcp://b:1"`, "", "is tcp: a process that hangs"},
	} {
		in, err := input(t, "weir.yaml", "listeners: {db: {bind: \":1\", protocol: tcp, pool: p}}\npools: {p: {backends: ["+c.backends+"]"+c.pool+"}}\n")
		if err != nil {
			t.Fatal(err)
		}
		if found := about("check_tcp", lint.Run(in)); len(found) != 1 || !strings.Contains(found[0].What, c.want) {
			t.Errorf("of %s%s: %+v", c.backends, c.pool, found)
		}
	}
}

// TestRuleTable holds the rules to what pages and configurations rely on.
func TestRuleTable(t *testing.T) {
	var names []string
	for _, r := range lint.Rules() {
		names = append(names, r.Name)
		if r.Title == "" || r.Why == "" || r.Fix == "" || r.Severity == 0 {
			t.Errorf("%s is half a rule", r.Name)
		}
		if strings.HasSuffix(r.Title, ".") || !strings.HasSuffix(r.Why, ".") || !strings.HasSuffix(r.Fix, ".") {
			t.Errorf("%s: a title has no stop, why and fix have one", r.Name)
		}
		if lint.Find(r.Name).Page() != "docs/lints/"+r.Name+".md" {
			t.Errorf("%s has another page", r.Name)
		}
	}
	if known := config.FindingNames(); !slices.Equal(names, known) {
		t.Errorf("rules %q\nand what check.silence may name %q", names, known)
	}
}

// TestSilence finds nothing that is silenced.
func TestSilence(t *testing.T) {
	for _, r := range lint.Rules() {
		text := read(t, r.Name+".bad.yaml")
		silence := "check: {silence: [" + r.Name + "]"
		if rest, ok := strings.CutPrefix(text, "check: {"); ok {
			text = silence + ", " + rest
		} else {
			text = silence + "}\n" + text
		}
		quiet(t, r.Name, text)
	}
}

func read(t testing.TB, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	if *rewrite {
		if err := os.WriteFile(filepath.Join("testdata", name), []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if want := read(t, name); got != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
}

// certificate makes the certificate that a file name stands for.
func certificate(name string) ([]byte, error) {
	made.Do(func() {
		strong, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			panic(err)
		}
		feeble, err := rsa.GenerateKey(rand.Reader, 1024)
		if err != nil {
			panic(err)
		}
		issue := func(file, host string, from, to time.Time, public, private any) {
			c := &x509.Certificate{
				SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: host}, DNSNames: []string{host},
				NotBefore: from, NotAfter: to,
			}
			der, err := x509.CreateCertificate(rand.Reader, c, c, public, private)
			if err != nil {
				panic(err)
			}
			certificates[file] = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
		}
		const day = 24 * time.Hour
		begin := now.Add(-60 * day)
		issue("good.crt", "shop.example.com", begin, now.Add(300*day), &strong.PublicKey, strong)
		issue("api.example.com.crt", "api.example.com", begin, now.Add(300*day), &strong.PublicKey, strong)
		issue("wild.crt", "*.example.com", begin, now.Add(300*day), &strong.PublicKey, strong)
		issue("expiring.crt", "shop.example.com", begin, now.Add(10*day), &strong.PublicKey, strong)
		issue("expired.crt", "shop.example.com", begin, now.Add(-day), &strong.PublicKey, strong)
		issue("future.crt", "shop.example.com", now.Add(day), now.Add(300*day), &strong.PublicKey, strong)
		issue("short.crt", "shop.example.com", now.Add(-2*day), now.Add(4*day), &strong.PublicKey, strong)
		issue("weak.crt", "shop.example.com", begin, now.Add(300*day), &feeble.PublicKey, feeble)
		root := &x509.Certificate{SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "Example R1"}, NotBefore: begin, NotAfter: now.Add(300 * day), IsCA: true, BasicConstraintsValid: true}
		leaf := &x509.Certificate{SerialNumber: big.NewInt(3), Subject: pkix.Name{CommonName: "shop.example.com"}, DNSNames: []string{"shop.example.com"}, NotBefore: begin, NotAfter: now.Add(300 * day)}
		der, err := x509.CreateCertificate(rand.Reader, leaf, root, &strong.PublicKey, strong)
		if err != nil {
			panic(err)
		}
		certificates["alone.crt"] = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
		certificates["fullchain.pem"] = slices.Concat(certificates["alone.crt"], certificates["good.crt"])
		certificates["backends.yaml"] = []byte("- http://10.0.1.21:8080\n- http://10.0.1.22:8080\n")
		certificates["half-written.yaml"] = []byte("- http://10.0.1.21:8080\n- {url: http://10.0.1.22:80")
		certificates["nobody.yaml"] = []byte("[]\n")
		certificates["broken.crt"] = []byte("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
	})
	if c, ok := certificates[name]; ok {
		return c, nil
	}
	if strings.HasSuffix(name, ".yaml") {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
	}
	return nil, &fs.PathError{Op: "open", Path: name, Err: errors.ErrUnsupported}
}

var (
	made         sync.Once
	certificates = map[string][]byte{}
)

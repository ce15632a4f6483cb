// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/weirlb/weir/internal/logline"
	"github.com/weirlb/weir/internal/message"
)

func formOf(t testing.TB, opt AccessLogOptions) *form {
	t.Helper()
	f, err := newForm(&opt)
	if err != nil {
		t.Fatal(err)
	}
	return &f
}

func fieldsOf(pairs ...string) *message.Fields {
	f := new(message.Fields)
	for i := 0; i < len(pairs); i += 2 {
		id := message.Other
		if pairs[i] == "Referer" {
			id = message.Referer
		}
		f.Add(id, pairs[i], pairs[i+1])
	}
	return f
}

func TestFormGolden(t *testing.T) {
	full := whole
	full.Request = fieldsOf("Referer", "https://shop.example.com/cart?session=abc", "X-Tenant", `a "b"`, "Accept", "*/*")
	hostile := Record{
		Start: whole.Start, Method: []byte("GET"), Host: []byte("a b\nc"), Path: []byte("/x\" 200 5\r\n1.2.3.4 - - [] \"GET /forged\x1b[31m\x7f\xe2\x80\xa8"),
		UserAgent: []byte("\\\" - \"\n"), ClientIP: netip.MustParseAddr("fe80::1%eth0"), Major: 2, Status: 400, Reason: message.BadRequest, Detail: "a\tb",
	}
	all := make([]string, 0, 64)
	for _, n := range logline.Names() {
		all = append(all, n+"=${"+n+"}")
	}
	var b []byte
	for _, c := range []struct {
		name string
		opt  AccessLogOptions
	}{
		{"common", AccessLogOptions{Format: "common"}},
		{"combined", AccessLogOptions{Format: "combined"}},
		{"combined, with queries", AccessLogOptions{Format: "combined", Query: true}},
		{"every name", AccessLogOptions{Format: strings.Join(all, " "), Query: true, Sample: 0.01}},
		{"json, sampled, with fields", AccessLogOptions{Sample: 0.01, Fields: []string{"X-None", "X-Tenant", "Accept"}}},
		{"template with a field", AccessLogOptions{Format: `$http_x_tenant|"$http_x_none"|$host`}},
	} {
		f := formOf(t, c.opt)
		b = append(b, "# "+c.name+"\n"...)
		for _, r := range []*Record{&full, &hostile, {Start: whole.Start}} {
			b = f.append(b, r, 0.01)
		}
	}
	golden(t, "testdata/form.golden", b)
}

// TestTemplateHasAllOfJSON: every key that a line of JSON can have is a name.
func TestTemplateHasAllOfJSON(t *testing.T) {
	r := whole
	r.Tunnel, r.Query = true, bytes.Repeat([]byte("q"), maxLogPath+1)
	f := formOf(t, AccessLogOptions{Sample: 0.5, Query: true})
	var keys map[string]any
	if err := json.Unmarshal(f.append(nil, &r, 0.5), &keys); err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{}
	for _, n := range logline.Names() {
		known[n] = true
	}
	for k, v := range keys {
		if !known[k] {
			t.Errorf("key %s has no name", k)
			continue
		}
		line := string(formOf(t, AccessLogOptions{Format: `$query "$` + k + `"`, Query: true}).append(nil, &r, 0.5))
		_, got, _ := strings.Cut(line, ` "`)
		got, err := unescape(strings.TrimSuffix(got, "\"\n"))
		if err != nil {
			t.Fatal(err)
		}
		switch v := v.(type) {
		case float64:
			if n, err := strconv.ParseFloat(got, 64); err != nil || n != v {
				t.Errorf("$%s is %q, in JSON %v", k, got, v)
			}
		case []any: // tried
			if got != "10.0.1.22:8080=connect_refused,10.0.1.23:8080=503" {
				t.Errorf("$%s is %q", k, got)
			}
		default:
			if got != fmt.Sprint(v) {
				t.Errorf("$%s is %q, in JSON %v", k, got, v)
			}
		}
	}
	if len(keys) < 30 {
		t.Errorf("only %d keys: does the record have everything?", len(keys))
	}
}

func TestFormRefuses(t *testing.T) {
	for _, opt := range []AccessLogOptions{
		{Format: "$nothing"}, {Format: "xml"}, {Fields: []string{"Authorization"}}, {Fields: []string{"x-api-KEY"}},
		{Format: "$http_cookie"}, {Always: []string{"everything"}},
	} {
		opt.Path = filepath.Join(t.TempDir(), "log")
		if l, err := NewAccessLog(opt); err == nil {
			t.Errorf("%+v is taken", opt)
			_ = l.Close(time.Second)
		}
		if _, err := os.Stat(opt.Path); err == nil {
			t.Errorf("%+v: a file was made", opt)
		}
	}
}

// formats are templates whose lines can be taken apart again.
var formats = []string{
	logline.Common, logline.Combined,
	`$method|$host|$path|$user_agent`,
	"$host $path $user_agent $detail",
	"host:$host\tpath:$path\tua:$user_agent",
	`[$host] "$user_agent" {$path} '$detail'`,
	`"$method $path;$user_agent" "$detail" $host`,
	`$request; $uri; $tried; $request_id`,
	`pool=$pool backend=$backend "$http_x_a/$http_x_b"`,
}

// takeApart splits a line as a reader would who knows the format and nothing
// else: a value between quotes of its own ends at the next quote, any other at
// the first byte of what follows.
func takeApart(tpl *logline.Template, line string) (values []string, err error) {
	for i, p := range tpl.Pieces {
		if !strings.HasPrefix(line, p.Text) {
			return nil, fmt.Errorf("piece %d: %q does not begin with %q", i, line, p.Text)
		}
		line = line[len(p.Text):]
		if p.Field == logline.None {
			continue
		}
		end := len(line)
		if i+1 < len(tpl.Pieces) {
			next := tpl.Pieces[i+1].Text[:1]
			// Of values that can hold a space of their own, nobody expects more.
			switch {
			case p.Field == logline.TimeLocal:
				next = "]"
			case p.Field == logline.Request && next != `"`:
				next = ";"
			}
			if end = strings.Index(line, next); end < 0 {
				return nil, fmt.Errorf("piece %d: no %q in %q", i, next, line)
			}
		}
		values = append(values, line[:end])
		line = line[end:]
	}
	if line != "" {
		return nil, fmt.Errorf("%q is left", line)
	}
	return values, nil
}

// unescape reads \xXX.
func unescape(s string) (string, error) {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] != '\\' {
			b.WriteByte(s[i])
			continue
		}
		if i+3 >= len(s) || s[i+1] != 'x' {
			return "", fmt.Errorf("a backslash alone in %q", s)
		}
		n, err := strconv.ParseUint(s[i+2:i+4], 16, 8)
		if err != nil {
			return "", err
		}
		b.WriteByte(byte(n))
		i += 3
	}
	return b.String(), nil
}

// FuzzTemplate: whatever a client sends, a line is one line of printable ASCII
// that comes apart into the values it was made of.
func FuzzTemplate(f *testing.F) {
	for i := range formats {
		f.Add(uint8(i), []byte("GET"), []byte("h"), []byte("/a b|c\"d\\x41\n"), []byte("ua \" [x] ;"), []byte("-"), []byte("\xff\x00"))
	}
	f.Fuzz(func(t *testing.T, which uint8, method, host, path, agent, detail, other []byte) {
		fm := formOf(t, AccessLogOptions{Format: formats[int(which)%len(formats)], Query: true})
		fields := fieldsOf("Referer", string(other), "X-A", string(other), "X-B", string(agent))
		r := &Record{
			Method: method, Host: host, Path: path, Query: other, UserAgent: agent, RequestID: other, Request: fields,
			Detail: string(detail), Pool: string(other), Backend: string(agent), Major: 1,
			Tried: []Try{{Backend: string(other), Reason: message.ConnectRefused}, {Backend: string(host), Status: 503}},
		}
		line := string(fm.append(nil, r, 1))
		body, ended := strings.CutSuffix(line, "\n")
		for _, c := range []byte(body) {
			if (c < ' ' || c > '~') && c != '\t' {
				t.Fatalf("byte %q in %q", c, line)
			}
		}
		if !ended {
			t.Fatalf("no end: %q", line)
		}
		values, err := takeApart(fm.template, body)
		if err != nil {
			t.Fatalf("%s: %q: %v", formats[int(which)%len(formats)], body, err)
		}
		n := 0
		for _, p := range fm.template.Pieces {
			if p.Field == logline.None {
				continue
			}
			got, err := unescape(values[n])
			if err != nil {
				t.Fatal(err)
			}
			if want, known := truth(p.Field, p.Header, r); known && got != want {
				t.Fatalf("value %d is %q, want %q: %q", n, got, want, body)
			}
			n++
		}
	})
}

// truth is the value of a field, escaped by nobody.
func truth(f logline.Field, header string, r *Record) (string, bool) {
	var v string
	most := maxLogText
	switch f {
	case logline.Method:
		v = string(r.Method)
	case logline.Host:
		v = string(r.Host)
	case logline.Path:
		v, most = string(r.Path), maxLogPath
	case logline.UserAgent:
		v = string(r.UserAgent)
	case logline.Detail:
		v = r.Detail
	case logline.RequestID:
		v = string(r.RequestID)
	case logline.Pool:
		v = r.Pool
	case logline.Backend:
		v = r.Backend
	case logline.Referer:
		b, _ := r.Request.Get(message.Referer)
		v = string(b)
	case logline.Header:
		b, _ := r.Request.Lookup(header)
		v = string(b)
	case logline.Status:
		return strconv.Itoa(r.code()), true
	case logline.URI:
		v = string(r.Path[:min(len(r.Path), maxLogPath)])
		if len(r.Query) > 0 {
			v += "?" + string(r.Query[:min(len(r.Query), maxLogPath)])
		}
		most = len(v)
	default:
		return "", false
	}
	if v == "" {
		return "-", true
	}
	return v[:min(len(v), most)], true
}

func TestTemplateAllocatesNothing(t *testing.T) {
	r := whole
	r.Request = fieldsOf("Referer", "https://shop.example.com/cart?session=abc", "X-Tenant", "a")
	for _, opt := range []AccessLogOptions{
		{Format: "combined", Query: true},
		{Format: strings.Join(formats[2:], " | "), Query: true},
		{Sample: 0.5, Always: Kept(), Fields: []string{"X-Tenant"}},
	} {
		opt.Path, opt.Buffer = os.DevNull, logShards*1024
		l := openTestLog(t, opt)
		for range 1000 {
			l.Write(&r)
		}
		if n := testing.AllocsPerRun(1000, func() { l.Write(&r) }); n >= 1 && !raceEnabled {
			t.Errorf("%s: %v allocations per line", opt.Format, n)
		}
		if err := l.Close(time.Second); err != nil {
			t.Fatal(err)
		}
	}
}

func BenchmarkForm(b *testing.B) {
	r := whole
	r.Request = fieldsOf("Referer", "https://shop.example.com/cart?session=abc", "X-Tenant", "a")
	for _, format := range []string{"json", "common", "combined", formats[2]} {
		b.Run(format, func(b *testing.B) {
			f := formOf(b, AccessLogOptions{Format: format})
			buf := make([]byte, 0, 4096)
			b.ReportAllocs()
			for b.Loop() {
				buf = f.append(buf[:0], &r, 1)
			}
		})
	}
}

// SPDX-License-Identifier: Apache-2.0

package logline

import (
	"errors"
	"strings"
	"testing"
)

// show writes a template as text again, a field by its first name.
func show(t *Template) string {
	var b strings.Builder
	for _, p := range t.Pieces {
		b.WriteString(strings.ReplaceAll(p.Text, "$", "$$"))
		switch p.Field {
		case None:
		case Header:
			b.WriteString("${http_" + strings.ReplaceAll(p.Header, "-", "_") + "}")
		default:
			for _, n := range names {
				if n.field == p.Field {
					b.WriteString("${" + n.name + "}")
					break
				}
			}
		}
	}
	return b.String()
}

func TestParse(t *testing.T) {
	for in, want := range map[string]string{
		"$status":                       "${status}",
		"a$status":                      "a${status}",
		"${status}ms":                   "${status}ms",
		"$$$status$$":                   "$$${status}$$",
		"$status $method|$path":         "${status} ${method}|${path}",
		"$http_x_forwarded_for":         "${http_x-forwarded-for}",
		"$http_referer":                 "${referer}",
		"$request_time $msec":           "${duration} ${time_unix}",
		"$host\t$path":                  "${host}\t${path}",
		Common:                          `${client} - - [${time_local}] "${request}" ${status} ${bytes_out}`,
		`$remote_addr - $remote_user x`: `${client} - ${remote_user} x`,
	} {
		want = strings.ReplaceAll(want, "x-forwarded-for", "x_forwarded_for")
		got, err := Parse(in)
		if err != nil {
			t.Errorf("%s: %v", in, err)
		} else if show(got) != want {
			t.Errorf("%s: %s, want %s", in, show(got), want)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	for in, want := range map[string]string{
		"":                                  "no value",
		"status":                            "no value",
		"$":                                 "followed by no name",
		"$ status":                          "followed by no name",
		"${status":                          "followed by no name",
		"${}":                               "followed by no name",
		"$Status":                           "followed by no name",
		"$statu":                            "no value of a request",
		"$http_":                            "no value of a request",
		"$status\n$path":                    "control character",
		"$status\x1b[2J":                    "control character",
		`"$status`:                          "not closed",
		"$http_authorization":               "credentials",
		"$http_cookie":                      "credentials",
		"$http_proxy_authorization":         "credentials",
		strings.Repeat("$status ", 81):      "more than 80",
		strings.Repeat("x", 4096) + "$path": "bytes",
	} {
		_, err := Parse(in)
		var e *Error
		if !errors.As(err, &e) || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40q: %v, want something about %q", in, err, want)
		}
		if e != nil && e.Name == "" == (e.Fix == "") {
			t.Errorf("%.40q: neither an unknown name nor a way to mend it, or both: %+v", in, e)
		}
	}
}

// TestEveryFieldHasAName also holds Names to be without repetitions.
func TestEveryFieldHasAName(t *testing.T) {
	named := map[Field]bool{Header: true}
	seen := map[string]bool{}
	for _, n := range names {
		if seen[n.name] {
			t.Errorf("%s is there twice", n.name)
		}
		seen[n.name], named[n.field] = true, true
	}
	for f := None + 1; f < fields; f++ {
		if !named[f] {
			t.Errorf("field %d has no name", f)
		}
	}
}

func TestPlain(t *testing.T) {
	for _, c := range []struct {
		format string
		piece  int
		plain  string // of these bytes none is escaped
		not    string // and of these all are
	}{
		{"$path", 0, "/a?:|[]=;,'", " \"\\\n\x00\x7f\xff"},
		{"$path|$user_agent", 0, "/a?:[]=;,", " |\"\\"},
		{"$path|$user_agent", 1, "/a?:[]=;,", " |\"\\"}, // who splits at bars splits everywhere
		{`"$user_agent"`, 0, " |[]=;,'/", "\"\\\n"},
		{`"$method $path" $host`, 1, "/[];,", " \"\\"},
		{`"$user_agent" "$path|$query"`, 0, " |", "\""},
		{`"$user_agent" "$path|$query"`, 1, " ", "|\""},
		{`"$user_agent" $path`, 1, "/|", " \""},
		{"[$time] $path", 1, "/[", " ]\""},
		{"time:$time\tpath:$path", 1, ":/", " \t"},
		{"${path}x$host", 0, "xX5/", " "}, // an escape is made of letters and digits
	} {
		tpl, err := Parse(c.format)
		if err != nil {
			t.Fatal(err)
		}
		p := tpl.Pieces[c.piece].Plain
		for _, b := range []byte(c.plain) {
			if !p[b] {
				t.Errorf("%s, value %d: %q is escaped", c.format, c.piece, b)
			}
		}
		for _, b := range []byte(c.not) {
			if p[b] {
				t.Errorf("%s, value %d: %q is not escaped", c.format, c.piece, b)
			}
		}
	}
}

// FuzzParse: what is accepted comes back as it was, and no value of it can hold
// a line's end, a quote or the backslash that escapes are made of.
func FuzzParse(f *testing.F) {
	for _, s := range []string{Common, Combined, "$$", "${status}$path", `"$method $path" ${http_x_y}|`, "$status $", `"$a`} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		tpl, err := Parse(s)
		if err != nil {
			var e *Error
			if !errors.As(err, &e) || e.What == "" {
				t.Fatalf("%q: %v", s, err)
			}
			return
		}
		again, err := Parse(show(tpl))
		if err != nil || show(again) != show(tpl) {
			t.Fatalf("%q: %q: %v", s, show(tpl), err)
		}
		for i, p := range tpl.Pieces {
			if p.Field == None {
				if i != len(tpl.Pieces)-1 {
					t.Fatalf("%q: piece %d is text alone", s, i)
				}
				continue
			}
			if p.Plain == nil {
				t.Fatalf("%q: piece %d has no bytes", s, i)
			}
			for c := range 256 {
				if p.Plain[c] && (c < 0x20 || c > 0x7e || c == '"' || c == '\\') {
					t.Fatalf("%q: piece %d lets %q through", s, i, rune(c))
				}
			}
			for _, c := range []byte(`\x0123456789ABCDEF`[1:]) {
				if !p.Plain[c] {
					t.Fatalf("%q: piece %d escapes %q, of which escapes are made", s, i, c)
				}
			}
		}
	})
}

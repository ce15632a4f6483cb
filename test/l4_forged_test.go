// SPDX-License-Identifier: Apache-2.0

package test

import (
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/weirlb/weir/internal/weirtest"
)

// TestForgedSessions: whoever is not listed and begins with a PROXY header is let go,
// on every way that a session comes in; the address that it claims reaches no backend
// and no log, and chooses none. The same headers from a listed peer do choose.
func TestForgedSessions(t *testing.T) {
	var got []*output
	var urls []string
	for range 5 {
		addr, all := sayer(t)
		got, urls = append(got, all), append(urls, fmt.Sprintf("%q", "tcp://"+addr))
	}
	ca, dir := weirtest.NewAuthority(t), t.TempDir()
	cert, key := ca.Write(dir, "ended", ca.Issue("ended.test"))
	log, sock := filepath.Join(dir, "access.log"), filepath.Join(dir, "sock")
	listed, web, named, ended := freeAddr(t), freeAddr(t), freeAddr(t), freeAddr(t)
	all := strings.Join(urls, ", ")
	w := startRun(t, fmt.Sprintf(`admin: {bind: "${ADMIN}"}
log: {access: {path: %q}}
listeners:
  open:   {bind: "${LISTEN}", protocol: tcp, pool: spread}
  listed: {bind: %q, protocol: tcp, proxy_protocol: {mode: required, from: [127.0.0.9]}, pool: spread}
  web:    {bind: %q, proxy_protocol: {mode: optional, from: [127.0.0.9]}, pool: web}
  named:  {bind: %q, protocol: sni, pool: spread}
  ended:  {bind: %q, protocol: tcp, tls: {certificates: [{cert: %q, key: %q}]}, pool: spread}
  local:  {bind: "unix:%s", protocol: tcp, pool: spread}
pools:
  spread: {balance: maglev, hash: {key: client_ip, bounded_load: off}, backends: [%s], health: {active: off}}
  web:    {balance: maglev, hash: {key: client_ip, bounded_load: off}, backends: [%s], health: {active: off}}
`, log, listed, web, named, ended, cert, key, sock, all, strings.ReplaceAll(all, "tcp://", "http://")))
	tcp := func(addr, from string) func() (net.Conn, error) {
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}, Timeout: 5 * time.Second}
		return func() (net.Conn, error) { return d.Dial("tcp", addr) }
	}
	// talk says a header and a word, and returns what it is told.
	talk := func(dial func() (net.Conn, error), header string, bytewise bool) string {
		c, err := dial()
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close() //nolint:errcheck // a test's
		_ = c.SetDeadline(time.Now().Add(20 * time.Second))
		text := header + "GET / HTTP/1.1\r\nHost: said.test\r\n\r\n"
		size := len(text)
		if bytewise {
			size = 1
		}
		for i := 0; i < len(text); i += size {
			if _, err := io.WriteString(c, text[i:i+size]); err != nil {
				break
			}
		}
		_ = c.(interface{ CloseWrite() error }).CloseWrite()
		b, _ := io.ReadAll(c) // a reset is an end
		return string(b)
	}
	header := func(i int, v2 bool) string {
		if v2 {
			return v2Header(0x21, 0x11, string([]byte{203, 0, 113, byte(i)})+"\xc6\x33\x64\x07\x00\x05\x11\x51")
		}
		return fmt.Sprintf("PROXY TCP4 203.0.113.%d 198.51.100.7 5 4433\r\n", i)
	}
	over := func(dial func() (net.Conn, error)) func() (net.Conn, error) {
		return func() (net.Conn, error) {
			c, err := dial()
			if err != nil {
				return nil, err
			}
			return tls.Client(c, &tls.Config{RootCAs: ca.Pool(), ServerName: "ended.test"}), nil
		}
	}
	const tries = 12
	for name, dial := range map[string]func() (net.Conn, error){
		"open": tcp(w.addr, "127.0.0.1"), "listed": tcp(listed, "127.0.0.1"), "web": tcp(web, "127.0.0.1"), "named": tcp(named, "127.0.0.1"),
		"ended": over(tcp(ended, "127.0.0.1")), "local": func() (net.Conn, error) { return net.Dial("unix", sock) },
	} {
		for i := range tries {
			// An end that comes before the header can be told from something else is not counted.
			bytewise := i >= tries-4 && name != "named" && (name != "web" || i%2 == 0)
			if told := talk(dial, header(1+i, i%2 == 1), bytewise); strings.Contains(told, "said") || strings.Contains(told, "203.0") || strings.HasPrefix(told, "HTTP/1.1 2") {
				t.Errorf("%s: a forged header is answered %q", name, told)
			}
		}
		eventually(t, 10*time.Second, name+" counts them", func() bool {
			n := 0.0
			for line := range strings.Lines(w.metrics(t)) {
				if strings.HasPrefix(line, "weir_proxy_headers_total{") && strings.Contains(line, fmt.Sprintf("listener=%q", name)) && strings.Contains(line, `outcome="not_allowed"`) {
					f := strings.Fields(line)
					n = parse(t, f[len(f)-1])
				}
			}
			return n == tries
		})
		eventually(t, 10*time.Second, name+" logs them", func() bool {
			return name == "web" || strings.Count(grep(string(read(t, log)), fmt.Sprintf(`"listener":%q`, name)), "\n") >= tries
		})
	}
	for i, all := range got {
		if s := all.String(); strings.Contains(s, "said") || strings.Contains(s, "203.0") || strings.Contains(s, "\xcb\x00\x71") {
			t.Errorf("backend %d got %q", i, s)
		}
	}
	text := string(read(t, log))
	if strings.Contains(text, "203.0.113") || strings.Contains(w.out.String(), "203.0.113") {
		t.Errorf("an address that was made up is in a log: %s%s", grep(text, "203.0"), grep(w.out.String(), "203.0"))
	}
	backends := func(listener string) map[string]bool {
		out := map[string]bool{}
		for _, m := range regexp.MustCompile(`"listener":"`+listener+`".*"backend":"([^"]+)"`).FindAllStringSubmatch(string(read(t, log)), -1) {
			out[m[1]] = true
		}
		return out
	}
	for _, name := range []string{"open", "listed", "ended"} {
		if n := len(backends(name)); n != 1 {
			t.Errorf("%s: what was made up led to %d backends", name, n)
		}
	}
	if n := len(backends("web")); n != 0 {
		t.Errorf("web: what was made up led to %d backends", n)
	}
	for i := range tries {
		if told := talk(tcp(listed, "127.0.0.9"), header(1+i, i%2 == 1), false); !strings.Contains(told, "said") {
			t.Errorf("a header of a listed peer: %q", told)
		}
	}
	eventually(t, 10*time.Second, "headers of a listed peer choose several backends", func() bool { return len(backends("listed")) >= 3 })
}

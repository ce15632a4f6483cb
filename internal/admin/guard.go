// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"strings"
	"syscall"
	"time"
)

// maxBody bounds what a request may carry.
const maxBody = 64 << 10

// minToken is the shortest token accepted: what can be guessed is no token.
const minToken = 16

// guard decides who may do what (S13). It is constant after newGuard.
type guard struct {
	unix   bool     // a socket file of mode 0600: the file system decides
	hosts  []string // lower case, without port
	token  [sha256.Size]byte
	hasTok bool
}

func newGuard(bind string, hosts []string, token string) *guard {
	g := &guard{unix: strings.HasPrefix(bind, "unix:"), hasTok: token != "", token: sha256.Sum256([]byte(token))}
	if host, _, err := net.SplitHostPort(bind); err == nil && host != "" {
		g.hosts = append(g.hosts, canonicalHost(host))
	}
	for _, h := range hosts {
		g.hosts = append(g.hosts, canonicalHost(hostOnly(h)))
	}
	return g
}

// readToken reads a token file: its first line, without surrounding space.
func readToken(path string) (string, error) {
	text, err := readFew(path)
	if err != nil {
		return "", fmt.Errorf("token file: %w", err)
	}
	line, _, _ := strings.Cut(string(text), "\n")
	line = strings.TrimSpace(line)
	if len(line) < minToken {
		return "", fmt.Errorf("token file: %s: the token has %d characters, at least %d are needed", path, len(line), minToken)
	}
	if strings.ContainsFunc(line, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		return "", fmt.Errorf("token file: %s: the token has control characters, which no header can carry", path)
	}
	return line, nil
}

// readFew reads a small file. A pipe without a writer is empty, one whose writer
// is silent is an error, and a device that never ends is cut: a balancer reads its
// token again at each reload, and must come back from that.
func readFew(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()                   // only read from
	_ = f.SetReadDeadline(time.Now().Add(bodyTimeout)) // regular files have none, and need none
	return io.ReadAll(io.LimitReader(f, maxBody))
}

// CheckTokenFile says why a file cannot serve as token_file; nil if it can.
func CheckTokenFile(path string) error {
	_, err := readToken(path)
	return err
}

// hostAllowed defends against DNS rebinding: a page of another site can make
// the browser connect here under its own name, but cannot choose a Host that
// is ours. An address that the connection itself came in on is no name and
// cannot be rebound.
func (g *guard) hostAllowed(r *http.Request) bool {
	if g.unix {
		return true
	}
	h := canonicalHost(hostOnly(r.Host))
	if h == "localhost" {
		return true
	}
	for _, ok := range g.hosts {
		if h == ok {
			return true
		}
	}
	ip, err := netip.ParseAddr(h)
	if err != nil {
		return false
	}
	if ip.IsLoopback() {
		return true
	}
	local, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	if !ok {
		return false
	}
	at, err := netip.ParseAddrPort(local.String())
	return err == nil && at.Addr().Unmap() == ip.Unmap()
}

// hostOnly strips a port and brackets.
func hostOnly(hostport string) string {
	if h, _, err := net.SplitHostPort(hostport); err == nil {
		return h
	}
	return strings.TrimSuffix(strings.TrimPrefix(hostport, "["), "]")
}

func canonicalHost(h string) string { return strings.TrimSuffix(strings.ToLower(h), ".") }

// safe reports a method that changes nothing.
func safe(method string) bool { return method == http.MethodGet || method == http.MethodHead }

// sameOrigin reports that no other site made the browser send the request. What
// carries neither Origin nor Sec-Fetch-Site does not come from a browser.
func sameOrigin(r *http.Request) bool {
	switch site := r.Header.Get("Sec-Fetch-Site"); site {
	case "", "same-origin", "none":
	default:
		return false
	}
	origins := r.Header.Values("Origin")
	if len(origins) == 0 {
		return true
	}
	if len(origins) > 1 {
		return false
	}
	u, err := url.Parse(origins[0])
	return err == nil && u.Host != "" && strings.EqualFold(u.Host, r.Host)
}

func isJSON(r *http.Request) bool {
	t, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	return err == nil && t == "application/json"
}

// authorized compares the token in constant time; hashing first hides its
// length too.
func (g *guard) authorized(r *http.Request) bool {
	if !g.hasTok {
		return true
	}
	scheme, given, ok := strings.Cut(r.Header.Get("Authorization"), " ")
	if !ok || !strings.EqualFold(scheme, "Bearer") {
		return false
	}
	sum := sha256.Sum256([]byte(strings.TrimSpace(given)))
	return subtle.ConstantTimeCompare(sum[:], g.token[:]) == 1
}

// openPaths need no token: they hold nothing but code and a yes or no.
func openPath(path string) bool {
	return path == "/livez" || path == "/readyz" || path == "/" || strings.HasPrefix(path, "/ui/")
}

// wrap puts the guard in front of h.
func (g *guard) wrap(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		secure(w.Header())
		switch {
		case !g.hostAllowed(r):
			problem(w, http.StatusMisdirectedRequest, CodeBadHost,
				fmt.Sprintf("the Host %q is not one of this address: use the address itself, or list the name in admin.hosts", r.Host))
		case !openPath(r.URL.Path) && !g.authorized(r):
			w.Header().Set("WWW-Authenticate", `Bearer realm="weir"`)
			problem(w, http.StatusUnauthorized, CodeUnauthorized, "this address wants the token of admin.token_file as Authorization: Bearer")
		case !safe(r.Method) && !sameOrigin(r):
			problem(w, http.StatusForbidden, CodeCrossOrigin, "changes are accepted from weir's own page and from programs, not from other sites")
		case !safe(r.Method) && !isJSON(r):
			problem(w, http.StatusUnsupportedMediaType, CodeNotJSON, "send Content-Type: application/json")
		default:
			most := int64(maxBody)
			if r.URL.Path == "/api/v1/config" {
				most = maxConfig
			}
			r.Body = http.MaxBytesReader(w, r.Body, most)
			h.ServeHTTP(w, r)
		}
	})
}

// profiling reports whether pprof may be served: its output holds memory.
func (g *guard) profiling() bool { return g.unix || g.hasTok }

// secure sets the headers that every answer has. The policy allows nothing but
// files of our own: no inline script or style, no other host, no frame.
func secure(h http.Header) {
	h.Set("Content-Security-Policy", "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Frame-Options", "DENY")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cache-Control", "no-store")
}

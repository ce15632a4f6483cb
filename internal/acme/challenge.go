// SPDX-License-Identifier: Apache-2.0

package acme

import (
	"net/http"
	"net/url"
	"strings"
)

// maxToken bounds what is taken for the token of a challenge.
const maxToken = 256

// Challenge returns what a validator of http-01 is to be told under a path of a
// host, which may have a port; nil where no challenge is open for it, so that the
// request is anybody's. Whoever asks costs a look into memory, and for one of the
// names, as another process may have ordered it, one at a file.
func (m *Manager) Challenge(host, path string) []byte {
	token, ok := strings.CutPrefix(path, Path)
	if !ok || !m.opt.HTTP || token == "" || len(token) > maxToken || strings.Trim(token, tokenChars) != "" {
		return nil
	}
	name, _, _ := strings.Cut(host, ":")
	name = strings.ToLower(strings.TrimSuffix(name, "."))
	if !(*m.names.Load())[name] {
		return nil
	}
	var w answer
	r := (&http.Request{Method: http.MethodGet, Host: name, URL: &url.URL{Path: path}}).WithContext(m.ctx)
	if !m.issuer.HandleHTTPChallenge(&w, r) {
		return nil
	}
	return w.text
}

// tokenChars are those of base64url (RFC 8555, section 8.3).
const tokenChars = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"

// answer collects what certmagic writes.
type answer struct{ text []byte }

func (a *answer) Header() http.Header { return http.Header{} }
func (a *answer) WriteHeader(int)     {}
func (a *answer) Write(p []byte) (int, error) {
	a.text = append(a.text, p...)
	return len(p), nil
}

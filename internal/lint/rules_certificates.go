// SPDX-License-Identifier: Apache-2.0

package lint

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/weirlb/weir/internal/config"
)

const day = 24 * time.Hour

var certificateRules = []Rule{
	{
		Name: "certificate_expiring", Severity: Warning,
		Title: "A certificate expires soon, or is not valid",
		Why:   "Certificates are renewed by something that fails in silence: a renewal that has not happened 30 days before the end (of a short-lived one: when a third of its life is left) will not happen by itself. An expired one, or one that is not valid yet, is refused by every client, which is an error.",
		Fix:   "Renew it, and see why the renewal did not run. The fix lies outside the configuration.",
		find:  findExpiring,
	},
	{
		Name: "certificate_names", Severity: Warning,
		Title: "A route's host, or server name, has no certificate",
		Why:   "Clients refuse a connection whose certificate does not name the host they asked for, so the route is never reached over TLS.",
		Fix:   "Add a certificate for the host to the listener.",
		find: func(v *view) {
			v.certificates(func(l *config.Listener, at []string, leaves []*x509.Certificate) {
				if slices.Contains(leaves, nil) {
					return // unreadable: reported by whoever loads it
				}
				seen := map[string]bool{}
				for i := range l.Routes {
					host, key := l.Routes[i].Match.Host, "host"
					if sni := l.Routes[i].Match.SNI; host == "" && len(sni) > 0 {
						host, key = uncovered(l, leaves, sni), "sni"
					}
					if host == "" || seen[host] || slices.Contains(l.TLS.ACME, host) || slices.ContainsFunc(leaves, func(c *x509.Certificate) bool { return names(c, host) }) {
						continue
					}
					seen[host] = true
					file := "/etc/weir/" + strings.TrimPrefix(host, "*.")
					v.found(path(at, "routes", i, "match", key), "no certificate of listener "+l.Name+" names "+host+", so clients refuse the connection",
						config.Edit{Path: path(at, "tls", "certificates", len(leaves)), Insert: true, Value: fmt.Sprintf("{cert: %q, key: %q}", file+".crt", file+".key")})
				}
			})
		},
	},
	{
		Name: "certificate_chain", Severity: Note,
		Title: "A certificate comes without the one that issued it",
		Why:   "Clients know roots, not what stands between a root and a certificate. Browsers often fetch or remember the missing one, which is why nobody notices; curl, Java, Go and other balancers refuse the connection. Where a root of your own has signed the certificate itself, nothing is missing.",
		Fix:   "Append the intermediate certificates to the file of the certificate, each after the one that it issued (Let's Encrypt calls that fullchain.pem). The fix lies outside the configuration.",
		find: func(v *view) {
			v.certificates(func(l *config.Listener, at []string, leaves []*x509.Certificate) {
				for i, c := range leaves {
					if file := l.TLS.Certificates[i].Cert; c != nil && !bytes.Equal(c.RawIssuer, c.RawSubject) && v.count(file) == 1 {
						v.found(path(at, "tls", "certificates", i, "cert"), fmt.Sprintf("%s holds one certificate, and not that of its issuer (%s)", file, c.Issuer))
					}
				}
			})
		},
	},
	{
		Name: "certificate_weak", Severity: Warning,
		Title: "A certificate is weak",
		Why:   "RSA keys below 2048 bits and signatures with MD5 or SHA-1 are refused by current clients, because they can be forged.",
		Fix:   "Issue a new certificate: ECDSA P-256, or RSA with 2048 bits or more, signed with SHA-256. The fix lies outside the configuration.",
		find: func(v *view) {
			v.certificates(func(l *config.Listener, at []string, leaves []*x509.Certificate) {
				for i, c := range leaves {
					if weak := weakness(c); weak != "" {
						v.found(path(at, "tls", "certificates", i, "cert"), "certificate "+l.TLS.Certificates[i].Cert+" "+weak)
					}
				}
			})
		},
	},
}

// uncovered returns the first of a route's server names that no certificate has;
// empty when there is none.
func uncovered(l *config.Listener, leaves []*x509.Certificate, sni []string) string {
	for _, name := range sni {
		if !slices.Contains(l.TLS.ACME, name) && !slices.ContainsFunc(leaves, func(c *x509.Certificate) bool { return names(c, name) }) {
			return name
		}
	}
	return ""
}

// certificates calls f for each listener with TLS and the first certificate of
// each of its chains; nil is one that cannot be read.
func (v *view) certificates(f func(l *config.Listener, at []string, leaves []*x509.Certificate)) {
	if v.ReadFile == nil {
		return
	}
	v.listeners(func(l *config.Listener, at []string) {
		if l.TLS == nil {
			return
		}
		leaves := make([]*x509.Certificate, len(l.TLS.Certificates))
		for i, k := range l.TLS.Certificates {
			leaves[i] = v.leaf(k.Cert)
		}
		f(l, at, leaves)
	})
}

func (v *view) leaf(file string) *x509.Certificate {
	if c, ok := v.leaves[file]; ok {
		return c
	}
	if v.leaves == nil {
		v.leaves = map[string]*x509.Certificate{}
	}
	v.leaves[file] = nil
	text, err := v.ReadFile(file)
	for err == nil {
		var block *pem.Block
		if block, text = pem.Decode(text); block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			continue
		}
		if c, err := x509.ParseCertificate(block.Bytes); err == nil {
			v.leaves[file] = c
		}
		break
	}
	return v.leaves[file]
}

// count returns how many certificates a file holds.
func (v *view) count(file string) (n int) {
	text, err := v.ReadFile(file)
	for err == nil {
		var block *pem.Block
		if block, text = pem.Decode(text); block == nil {
			break
		}
		if block.Type == "CERTIFICATE" {
			n++
		}
	}
	return n
}

func findExpiring(v *view) {
	v.certificates(func(l *config.Listener, at []string, leaves []*x509.Certificate) {
		for i, c := range leaves {
			if c == nil {
				continue
			}
			here, what := path(at, "tls", "certificates", i, "cert"), "certificate "+l.TLS.Certificates[i].Cert
			left := c.NotAfter.Sub(v.Now)
			switch {
			case v.Now.Before(c.NotBefore):
				v.foundAs(Error, here, what+" is not valid before "+c.NotBefore.UTC().Format("2006-01-02 15:04 UTC"))
			case left <= 0:
				v.foundAs(Error, here, what+" expired on "+c.NotAfter.UTC().Format("2006-01-02")+": clients refuse it")
			case left < min(30*day, c.NotAfter.Sub(c.NotBefore)/3):
				v.found(here, fmt.Sprintf("%s expires in %d days, on %s", what, left/day, c.NotAfter.UTC().Format("2006-01-02")))
			}
		}
	})
}

// names reports whether clients that ask for a route's host accept the
// certificate; for a wildcard host, whether some of them do.
func names(c *x509.Certificate, host string) bool {
	suffix, wild := strings.CutPrefix(host, "*")
	if !wild {
		return c.VerifyHostname(host) == nil
	}
	return slices.ContainsFunc(c.DNSNames, func(n string) bool { return strings.HasSuffix(strings.ToLower(n), suffix) })
}

func weakness(c *x509.Certificate) string {
	if c == nil {
		return ""
	}
	switch key := c.PublicKey.(type) {
	case *rsa.PublicKey:
		if n := key.N.BitLen(); n < 2048 {
			return fmt.Sprintf("has an RSA key of %d bits", n)
		}
	case *ecdsa.PublicKey:
		if n := key.Curve.Params().BitSize; n < 256 {
			return fmt.Sprintf("has an ECDSA key of %d bits", n)
		}
	}
	switch c.SignatureAlgorithm {
	case x509.MD2WithRSA, x509.MD5WithRSA, x509.SHA1WithRSA, x509.DSAWithSHA1, x509.ECDSAWithSHA1:
		return "is signed with " + c.SignatureAlgorithm.String()
	}
	return ""
}

// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"

	"github.com/weirlb/weir/internal/inputfile"
)

// TLSOptions describe TLS to the backends of a pool. The zero value verifies
// against the system's authorities and the backend's own name.
type TLSOptions struct {
	CAFile             string // PEM; empty: the system's authorities
	ServerName         string // sent and verified; empty: the host of each backend's address
	CertFile, KeyFile  string // client certificate, PEM; both or neither
	InsecureSkipVerify bool   // takes any certificate
	MinVersion         uint16 // tls.VersionTLS12 when 0
}

// Config reads the files and returns what Options.TLS wants.
func (o TLSOptions) Config() (*tls.Config, error) {
	c := &tls.Config{
		ServerName: o.ServerName, MinVersion: o.MinVersion,
		InsecureSkipVerify: o.InsecureSkipVerify, //nolint:gosec // said by the operator
	}
	if c.MinVersion == 0 {
		c.MinVersion = tls.VersionTLS12
	}
	if o.CAFile != "" {
		pem, err := inputfile.Read(o.CAFile, inputfile.Most)
		if err != nil {
			return nil, fmt.Errorf("tls: authorities: %w", err)
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("tls: authorities: %s holds no certificate", o.CAFile)
		}
	}
	if (o.CertFile == "") != (o.KeyFile == "") {
		return nil, fmt.Errorf("tls: client certificate: both the certificate and the key are needed, got %q and %q", o.CertFile, o.KeyFile)
	}
	if o.CertFile != "" {
		cert, err := inputfile.KeyPair(o.CertFile, o.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("tls: client certificate %s with key %s: %w", o.CertFile, o.KeyFile, err)
		}
		c.Certificates = []tls.Certificate{cert}
	}
	return c, nil
}

// SPDX-License-Identifier: Apache-2.0

package proxyproto

import (
	"crypto/tls"
	"encoding/binary"
)

// Types of TLVs inside that of TypeSSL (section 2.2.6).
const (
	SubtypeVersion = 0x21
	SubtypeCN      = 0x22
	SubtypeCipher  = 0x23
)

// Bits of the first byte of TypeSSL.
const (
	clientSSL      = 1 << iota // the client spoke TLS
	clientCertConn             // it showed a certificate on this connection
	clientCertSess             // it showed one in the session that goes on
)

// Secured is what version 2 can say of TLS that ended at the sender. The zero
// value says that there was TLS, of which nothing is known.
type Secured struct {
	Version uint16 // tls.VersionTLS13; 0: not said
	Suite   uint16 // of package crypto/tls; 0: not said
	// Certificate says that the client showed a certificate, which was verified; CN
	// is the common name of its subject, empty: it has none. Resumed says that it was
	// shown in the session that goes on.
	Certificate, Resumed bool
	CN                   string
}

// Append appends the TLV of TypeSSL and returns the extended slice.
func (s *Secured) Append(dst []byte) []byte {
	bits, failed := byte(clientSSL), uint32(1)
	if s.Certificate {
		bits, failed = bits|clientCertSess, 0
		if !s.Resumed {
			bits |= clientCertConn
		}
	}
	begin := len(dst)
	dst = append(dst, TypeSSL, 0, 0, bits)
	dst = binary.BigEndian.AppendUint32(dst, failed)
	if s.Version >= tls.VersionTLS10 && s.Version <= tls.VersionTLS13 {
		dst = AppendTLV(dst, SubtypeVersion, "TLSv1."+string(rune('0'+s.Version-tls.VersionTLS10)))
	}
	if s.CN != "" {
		dst = AppendTLV(dst, SubtypeCN, s.CN)
	}
	if name := cipherNames[s.Suite]; name != "" {
		dst = AppendTLV(dst, SubtypeCipher, name)
	}
	binary.BigEndian.PutUint16(dst[begin+1:], uint16(len(dst)-begin-tlvHead))
	return dst
}

// mostValue is the longest value that AppendTLV writes: nothing that it is for is
// longer, and a few of them fit a header.
const mostValue = 1 << 10

// AppendTLV appends a TLV and returns the extended slice; a value that is longer
// than 1 KiB is left out.
func AppendTLV(dst []byte, kind byte, value string) []byte {
	if len(value) > mostValue {
		return dst
	}
	dst = append(dst, kind, byte(len(value)>>8), byte(len(value)))
	return append(dst, value...)
}

// cipherNames are OpenSSL's, as the specification has them.
var cipherNames = map[uint16]string{
	tls.TLS_AES_128_GCM_SHA256:                        "TLS_AES_128_GCM_SHA256",
	tls.TLS_AES_256_GCM_SHA384:                        "TLS_AES_256_GCM_SHA384",
	tls.TLS_CHACHA20_POLY1305_SHA256:                  "TLS_CHACHA20_POLY1305_SHA256",
	tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256:       "ECDHE-ECDSA-AES128-GCM-SHA256",
	tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256:         "ECDHE-RSA-AES128-GCM-SHA256",
	tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384:       "ECDHE-ECDSA-AES256-GCM-SHA384",
	tls.TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384:         "ECDHE-RSA-AES256-GCM-SHA384",
	tls.TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256: "ECDHE-ECDSA-CHACHA20-POLY1305",
	tls.TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256:   "ECDHE-RSA-CHACHA20-POLY1305",
	tls.TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA:          "ECDHE-ECDSA-AES128-SHA",
	tls.TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA:            "ECDHE-RSA-AES128-SHA",
	tls.TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA:          "ECDHE-ECDSA-AES256-SHA",
	tls.TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA:            "ECDHE-RSA-AES256-SHA",
}

// SPDX-License-Identifier: Apache-2.0

package clienthello

import "encoding/binary"

// Ask is what a PostgreSQL client begins with before TLS
// (https://www.postgresql.org/docs/current/protocol-message-formats.html).
type Ask uint8

// What the first bytes ask for.
const (
	AskMore    Ask = iota // too few bytes to say, and they may become one of the others
	AskNothing            // something else, a ClientHello perhaps
	AskTLS                // SSLRequest: TLS may follow the answer 'S'
	AskGSS                // GSSENCRequest: Kerberos; after the answer 'N' the client asks again
	AskCancel             // CancelRequest: it names a key of a session, no database and no host
	AskPlain              // StartupMessage: it goes on in clear
)

// AskSize is the size of SSLRequest and GSSENCRequest in bytes.
const AskSize = 8

// The codes in the second four bytes.
const (
	codeCancel = 1234<<16 | 5678
	codeTLS    = 1234<<16 | 5679
	codeGSS    = 1234<<16 | 5680
)

// SSLRequest is what a client sends that wants TLS: its length, 8, and a code.
func SSLRequest() [AskSize]byte { return [AskSize]byte{0, 0, 0, 8, 0x04, 0xd2, 0x16, 0x2f} }

// Postgres says what the first bytes of a connection ask for. Messages begin with
// their length, which is below 10,000, as the server itself holds it; the first
// byte of TLS is 22, so the two are told apart by one byte.
func Postgres(b []byte) Ask {
	if len(b) == 0 {
		return AskMore
	}
	if b[0] != 0 {
		return AskNothing
	}
	if len(b) < AskSize {
		return AskMore
	}
	length, code := binary.BigEndian.Uint32(b), binary.BigEndian.Uint32(b[4:])
	switch {
	case length == AskSize && code == codeTLS:
		return AskTLS
	case length == AskSize && code == codeGSS:
		return AskGSS
	case length >= 16 && length < 10000 && code == codeCancel:
		return AskCancel
	case length >= AskSize && length < 10000 && code>>16 == 3:
		return AskPlain
	}
	return AskNothing
}

// PostgresError returns the answer to a client that is not let in, as the server
// would say it: psql and every driver show it to their users.
func PostgresError(code, text string) []byte {
	b := []byte{'E', 0, 0, 0, 0}
	for _, f := range [...]string{"SFATAL", "VFATAL", "C" + code, "M" + text} {
		b = append(b, f...)
		b = append(b, 0)
	}
	b = append(b, 0)
	binary.BigEndian.PutUint32(b[1:], uint32(len(b)-1))
	return b
}

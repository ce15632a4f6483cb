// SPDX-License-Identifier: Apache-2.0

package listen

import (
	"crypto/x509"
	"log/slog"
	"net/netip"
	"time"

	"github.com/weirlb/weir/internal/netconn"
)

// Defaults of Options.
const (
	DefaultHandshakeTimeout = 10 * time.Second
	DefaultReloadEvery      = 5 * time.Second
	DefaultKeepAlive        = 60 * time.Second
	DefaultRetryAfter       = time.Second
)

// Refusal says why a connection was not served.
type Refusal uint8

// The refusals.
const (
	ProcessLimit  Refusal = iota // Gate's ceiling
	ListenerLimit                // MaxConnections
	ClientLimit                  // MaxPerClient
	NoFiles                      // the descriptors left are reserved, or none is left
	NoMemory                     // Options.Short
	AcceptFailed                 // accept failed for another reason; nothing to close
	HandshakeFailed
	HandshakeTimeout // not complete within Options.HandshakeTimeout
	refusals
)

// String returns a word for logs and metrics.
func (r Refusal) String() string {
	switch r {
	case ProcessLimit:
		return "process_limit"
	case ListenerLimit:
		return "listener_limit"
	case ClientLimit:
		return "client_limit"
	case NoFiles:
		return "local_files"
	case NoMemory:
		return "local_memory"
	case AcceptFailed:
		return "accept_failed"
	case HandshakeTimeout:
		return "handshake_timeout"
	default:
		return "handshake_failed"
	}
}

// Options describe one listener. A zero field means its default.
type Options struct {
	Name    string   // for logs and Info
	Bind    []string // host:port, :port, [v6]:port, unix:/path or systemd:name; none: connections come by Pass alone
	Sockets *Sockets // where the sockets come from; nil: a set of its own. Change leaves it

	Files *netconn.Files // which descriptors are reserved, shared; nil: its own. Change leaves it

	TLS              *TLSOptions   // nil: plain
	HandshakeTimeout time.Duration // accept to PROXY header and handshake complete; 10s, negative: no bound
	MaxHandshakes    int           // handshakes computing at once; GOMAXPROCS. Change leaves it

	Proxy *ProxyOptions // who may send PROXY headers; nil: nobody

	Gate           *Gate // the process's ceiling, shared by its listeners; nil: none
	MaxConnections int   // of this listener; 0: no limit
	MaxPerClient   int   // per client address, IPv6 by /64; 0: no limit

	KeepAlive  time.Duration // silence before the kernel probes a client; 60s, negative: off
	RetryAfter time.Duration // said in the 503 of a ceiling, rounded up to seconds; 1s

	// Relieve is asked when a connection got a reserved descriptor, or none: it
	// gives descriptors back that others can do without, and reports whether there
	// was one for the caller. It must not wait. Nil: there is none.
	Relieve func() bool

	// Short reports that there is no memory for another connection. Nil: there
	// always is.
	Short func() bool

	// Packets says that the clients send datagrams: the listener is served by
	// ServePackets, and has no TLS and no PROXY headers. Change leaves it.
	Packets bool

	// Mute says that the clients speak no HTTP: whoever is refused is reset, without
	// an answer.
	Mute bool

	Logger *slog.Logger // nil: discard
	// OnShaken hears how long handshakes took that came about. It must not block; nil:
	// nobody.
	OnShaken  func(resumed bool, took time.Duration)
	OnRefused func(Refusal)             // counts; must not block; may be nil
	OnPanic   func(v any, stack []byte) // a handler panicked; may be nil
}

// Info is what the listener knows about a connection.
type Info struct {
	Listener      string
	Local, Remote netip.AddrPort // zero for unix sockets
	TLS           bool
	SNI           string // server name the client asked for
	ALPN          string
	TLSVersion    uint16
	Suite         uint16
	Resumed       bool
	// ClientCerts is what the client showed, verified, its own certificate first;
	// nil: none. It is not to be changed.
	ClientCerts []*x509.Certificate
	// Proxied is what a PROXY header said, beside Remote and Local, which are its
	// source and destination then; nil: there was none, or it names nobody.
	Proxied *Proxied
}

// Proxied is what is known of a connection that came with a PROXY header. It is
// immutable.
type Proxied struct {
	Peer     netip.AddrPort // who sent it; zero for unix sockets
	Version  uint8          // 1 or 2
	Checksum bool           // it had a CRC32C
	TLVs     []byte         // of version 2, as they came; nil: none
}

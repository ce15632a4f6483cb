// SPDX-License-Identifier: Apache-2.0

package l4

import (
	"time"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/internal/clienthello"
	"github.com/weirlb/weir/internal/message"
	"github.com/weirlb/weir/internal/netconn"
	"github.com/weirlb/weir/pool"
)

// askTime bounds a backend's answer to SSLRequest where connecting is not bounded.
const askTime = 5 * time.Second

// askTLS asks a backend of PostgreSQL for TLS, as its client has asked, and reads
// its answer: what follows is the client's. It is a part of an attempt, so another
// backend is asked where one says no.
func (o *opening) askTLS(nc *netconn.Conn, by balance.Instant) failure {
	if by == 0 {
		by = o.now.Add(askTime)
	}
	nc.SetReadDeadline(by)
	nc.SetWriteDeadline(by)
	defer nc.SetReadDeadline(0)
	defer nc.SetWriteDeadline(0)
	request := clienthello.SSLRequest()
	text := request[:]
	if h := o.rt.ProxyHeader; h != nil && !o.introduced {
		text = append(h(nil, &o.s.cl), text...)
	}
	var answer [1]byte // and not a byte more: what follows is not for us
	_, err := nc.Write(text)
	if err == nil {
		_, err = nc.Read(answer[:])
	}
	f := failure{reason: message.TLSFailed, kind: pool.TLSFailed}
	switch {
	case err != nil:
		f.detail = "no answer to SSLRequest: " + err.Error()
	case answer[0] == 'S':
		return failure{}
	case answer[0] == 'N':
		f.detail = "the backend takes no TLS (it answers SSLRequest with N)"
	default:
		f.detail = "the backend does not answer SSLRequest as PostgreSQL does"
	}
	_ = nc.Close()
	return f
}

// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"bytes"
	"crypto/tls"
	"math"
	"net/netip"
	"strconv"
	"time"

	"github.com/weirlb/weir/internal/clock"
	"github.com/weirlb/weir/internal/logline"
	"github.com/weirlb/weir/internal/message"
)

// fill appends the template with the values of the record. A value that there
// is none of is a dash, as in every log of this kind.
func (f *form) fill(b []byte, r *Record, rate float64) []byte {
	for i := range f.template.Pieces {
		p := &f.template.Pieces[i]
		b = append(b, p.Text...)
		if p.Field == logline.None {
			continue
		}
		start := len(b)
		b = f.value(b, p, r, rate)
		if len(b) == start {
			b = append(b, '-')
		}
	}
	return append(b, '\n')
}

// value appends one value; nothing when there is none.
func (f *form) value(b []byte, p *logline.Piece, r *Record, rate float64) []byte {
	switch p.Field {
	case logline.Time:
		return appendTime(b, clock.Time(r.Start))
	case logline.TimeLocal:
		return appendLocal(b, clock.Time(r.Start))
	case logline.TimeUnix:
		return appendSeconds(b, time.Duration(clock.Time(r.Start).UnixNano()))
	case logline.Client:
		if !r.ClientIP.IsValid() {
			return b
		}
		return appendIP(b, r.ClientIP)
	case logline.ProxiedBy:
		if !r.ProxiedBy.IsValid() {
			return b
		}
		return appendIP(b, r.ProxiedBy)
	case logline.Request:
		return f.request(b, p.Plain, r)
	case logline.URI:
		return f.target(b, p.Plain, r)
	case logline.Tried:
		return triedList(b, p.Plain, r.Tried)
	case logline.Proto:
		return appendProto(b, r)
	case logline.GRPCStatus:
		return append(b, r.GRPC.String()...)
	case logline.Reason:
		return append(b, r.Reason.String()...)
	case logline.Sample:
		return appendRate(b, rate)
	case logline.Truncated:
		if f.cuts(r) {
			b = append(b, "true"...)
		}
		return b
	case logline.Scheme:
		if r.Protocol != "" {
			return append(b, r.Protocol...)
		}
		if r.TLS {
			return append(b, "https"...)
		}
		return append(b, "http"...)
	case logline.Sent:
		return strconv.AppendBool(b, r.Sent)
	case logline.TLS:
		return strconv.AppendBool(b, r.TLS)
	case logline.Reused:
		return strconv.AppendBool(b, r.Reused)
	case logline.Tunnel:
		return strconv.AppendBool(b, r.Tunnel)
	case logline.Sticky:
		return append(b, r.Sticky.String()...)
	default:
		if n, ok := count(p.Field, r); ok {
			return strconv.AppendInt(b, n, 10)
		}
		if d, ok := phase(p.Field, r); ok {
			return millis(b, "", d)
		}
		if p.Field == logline.Duration {
			return appendSeconds(b, max(r.Total, 0))
		}
		return f.text(b, p, r)
	}
}

// count returns the values that are whole numbers.
func count(f logline.Field, r *Record) (int64, bool) {
	switch f {
	case logline.Status:
		return int64(r.code()), true
	case logline.Attempts:
		return int64(r.Attempts), true
	case logline.Retries:
		return int64(r.Retries), true
	case logline.Redispatches:
		return int64(r.Redispatches), true
	case logline.BytesIn:
		return r.BytesIn, true
	case logline.BytesOut:
		return r.BytesOut, true
	default:
		return 0, false
	}
}

// phase returns the values that are milliseconds. Where nothing was attempted
// there are none.
func phase(f logline.Field, r *Record) (time.Duration, bool) {
	tried := r.Attempts > 0 || r.Queue > 0
	switch f {
	case logline.DurationMS:
		return r.Total, true
	case logline.QueueMS:
		return r.Queue, tried
	case logline.ConnectMS:
		return r.Connect, tried
	case logline.FirstByteMS:
		return r.FirstByte, tried
	default:
		return 0, false
	}
}

// text appends the values that are text.
func (f *form) text(b []byte, p *logline.Piece, r *Record) []byte {
	switch p.Field {
	case logline.Listener:
		return escape(b, p.Plain, r.Listener, maxLogText)
	case logline.Route:
		return escape(b, p.Plain, r.Route, maxLogText)
	case logline.Pool:
		return escape(b, p.Plain, r.Pool, maxLogText)
	case logline.Backend:
		return escape(b, p.Plain, r.Backend, maxLogText)
	case logline.Detail:
		return escape(b, p.Plain, r.Detail, maxLogText)
	case logline.Method:
		return escape(b, p.Plain, r.Method, maxLogText)
	case logline.Host:
		return escape(b, p.Plain, r.Host, maxLogText)
	case logline.Path:
		return escape(b, p.Plain, r.Path, maxLogPath)
	case logline.Query:
		if !f.query {
			return b
		}
		return escape(b, p.Plain, r.Query, maxLogPath)
	case logline.RequestID:
		return escape(b, p.Plain, r.RequestID, maxLogText)
	case logline.UserAgent:
		return escape(b, p.Plain, r.UserAgent, maxLogText)
	case logline.Referer:
		return escape(b, p.Plain, f.referer(r), maxLogText)
	case logline.Header:
		return escape(b, p.Plain, requestField(r, p.Header), maxLogText)
	default:
		return session(b, p, r.Session)
	}
}

// session appends the values of a client's TLS.
func session(b []byte, p *logline.Piece, s *Session) []byte {
	if s == nil {
		return b
	}
	switch p.Field {
	case logline.TLSVersion:
		return append(b, versionName(s.Version)...)
	case logline.TLSCipher:
		if s.Suite == 0 {
			return b
		}
		return append(b, tls.CipherSuiteName(s.Suite)...)
	case logline.TLSResumed:
		return strconv.AppendBool(b, s.Resumed)
	case logline.SNI:
		return escape(b, p.Plain, s.Name, maxLogText)
	case logline.ClientCert:
		return escape(b, p.Plain, s.ClientCert, maxLogText)
	case logline.ClientCertHash:
		return append(b, s.ClientCertHash...)
	default:
		return b
	}
}

// versionName is what OpenSSL, and nginx after it, call a version.
func versionName(v uint16) string {
	switch v {
	case tls.VersionTLS12:
		return "TLSv1.2"
	case tls.VersionTLS13:
		return "TLSv1.3"
	default:
		return ""
	}
}

// request appends what the common format has between its quotes. A space
// within the target would look like its end.
func (f *form) request(b []byte, plain *logline.Bytes, r *Record) []byte {
	if len(r.Method) == 0 {
		return b
	}
	spaceless := *plain
	spaceless[' '] = false
	b = escape(b, &spaceless, r.Method, maxLogText)
	b = append(b, ' ')
	b = f.target(b, &spaceless, r)
	if r.Major != 0 {
		b = append(b, ' ')
		b = appendProto(b, r)
	}
	return b
}

func (f *form) target(b []byte, plain *logline.Bytes, r *Record) []byte {
	b = escape(b, plain, r.Path, maxLogPath)
	if f.query && len(r.Query) > 0 {
		b = append(b, '?')
		b = escape(b, plain, r.Query, maxLogPath)
	}
	return b
}

// referer is where the client says it comes from. The query of that page is as
// likely to hold a secret as this one's.
func (f *form) referer(r *Record) []byte {
	if r.Request == nil {
		return nil
	}
	v, _ := r.Request.Get(message.Referer)
	if !f.query {
		v, _, _ = bytes.Cut(v, []byte("?"))
	}
	return v
}

func requestField(r *Record, name string) []byte {
	if r.Request == nil {
		return nil
	}
	v, _ := r.Request.Lookup(name)
	return v
}

// cuts reports whether a value that the template shows is longer than a line
// takes from a request.
func (f *form) cuts(r *Record) bool {
	for i := range f.template.Pieces {
		p := &f.template.Pieces[i]
		n, most := 0, maxLogText
		switch p.Field {
		case logline.Method:
			n = len(r.Method)
		case logline.Host:
			n = len(r.Host)
		case logline.Path:
			n, most = len(r.Path), maxLogPath
		case logline.Request, logline.URI:
			n, most = max(len(r.Path), f.logged(r.Query)), maxLogPath
		case logline.Query:
			n, most = f.logged(r.Query), maxLogPath
		case logline.RequestID:
			n = len(r.RequestID)
		case logline.UserAgent:
			n = len(r.UserAgent)
		case logline.Detail:
			n = len(r.Detail)
		case logline.Referer:
			n = len(f.referer(r))
		case logline.Header:
			n = len(requestField(r, p.Header))
		case logline.ClientCert:
			if r.Session != nil {
				n = len(r.Session.ClientCert)
			}
		}
		if n > most {
			return true
		}
	}
	return false
}

func (f *form) logged(query []byte) int {
	if !f.query {
		return 0
	}
	return len(query)
}

// triedList appends the attempts before the last one: backend=reason, or the
// status that was retried for, with commas between them.
func triedList(b []byte, plain *logline.Bytes, tries []Try) []byte {
	if len(tries) == 0 {
		return b
	}
	bare := *plain
	bare[','], bare['='] = false, false
	for i, t := range tries {
		if i > 0 {
			b = append(b, ',')
		}
		b = escape(b, &bare, t.Backend, maxLogText)
		b = append(b, '=')
		if t.Status != 0 {
			b = strconv.AppendInt(b, int64(t.Status), 10)
		} else {
			b = append(b, t.Reason.String()...)
		}
	}
	return b
}

// escape appends v; what is not plain becomes \xXX, as in nginx's logs.
func escape[T string | []byte](b []byte, plain *logline.Bytes, v T, most int) []byte {
	const digits = "0123456789ABCDEF"
	v = v[:min(len(v), most)]
	start := 0
	for i := range len(v) {
		c := v[i]
		if plain[c] {
			continue
		}
		b = append(b, v[start:i]...)
		b = append(b, '\\', 'x', digits[c>>4], digits[c&15])
		start = i + 1
	}
	return append(b, v[start:]...)
}

func appendIP(b []byte, a netip.Addr) []byte {
	// The zone of a scoped IPv6 address is the kernel's text, not the client's,
	// but nothing is lost by leaving it out.
	return a.Unmap().WithZone("").AppendTo(b)
}

func appendProto(b []byte, r *Record) []byte {
	if r.Major == 0 {
		return append(b, r.Protocol...)
	}
	b = append(b, "HTTP/"...)
	b = strconv.AppendUint(b, uint64(r.Major), 10)
	if r.Major < 2 {
		b = append(b, '.')
		b = strconv.AppendUint(b, uint64(r.Minor), 10)
	}
	return b
}

// appendRate appends a share between 0 and 1 with as many digits as it has.
func appendRate(b []byte, rate float64) []byte {
	return strconv.AppendFloat(b, math.Abs(rate), 'g', -1, 64)
}

// appendSeconds appends seconds with three decimals.
func appendSeconds(b []byte, d time.Duration) []byte {
	ms := d.Milliseconds()
	b = strconv.AppendInt(b, ms/1000, 10)
	ms %= 1000
	return append(b, '.', byte('0'+ms/100), byte('0'+ms/10%10), byte('0'+ms%10))
}

// appendLocal appends the time of the common format; the zone is always UTC.
func appendLocal(b []byte, t time.Time) []byte {
	return t.UTC().AppendFormat(b, "02/Jan/2006:15:04:05 -0700")
}

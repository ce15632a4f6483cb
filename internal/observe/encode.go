// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/weirlb/weir/internal/clock"
)

// Longest text that a line takes from a request; what is longer is cut and the
// line says truncated. With them a line stays below 80 KiB, even where every
// byte needs six for its escape.
const (
	maxLogPath = 4096
	maxLogText = 512
)

// appendRecord appends one line: a JSON object (RFC 8259) and a line feed. Keys
// without a value are left out, except for those that every line has.
func appendRecord(b []byte, r *Record, query bool) []byte {
	b, cut := appendKeys(b, r, query)
	return endRecord(b, cut)
}

func endRecord(b []byte, cut bool) []byte {
	if cut {
		b = append(b, `,"truncated":true`...)
	}
	return append(b, '}', '\n')
}

// appendKeys appends an object that is not closed.
func appendKeys(b []byte, r *Record, query bool) ([]byte, bool) {
	cut := false
	b = append(b, `{"time":"`...)
	b = appendTime(b, clock.Time(r.Start))
	b = append(b, '"')
	b = text(b, `,"listener":"`, r.Listener, maxLogText, &cut)
	b = text(b, `,"route":"`, r.Route, maxLogText, &cut)
	b = text(b, `,"pool":"`, r.Pool, maxLogText, &cut)
	b = text(b, `,"backend":"`, r.Backend, maxLogText, &cut)
	b = text(b, `,"method":"`, r.Method, maxLogText, &cut)
	b = text(b, `,"host":"`, r.Host, maxLogText, &cut)
	b = text(b, `,"path":"`, r.Path, maxLogPath, &cut)
	if query {
		b = text(b, `,"query":"`, r.Query, maxLogPath, &cut)
	}
	if r.Major != 0 {
		b = append(b, `,"proto":"HTTP/`...)
		b = strconv.AppendUint(b, uint64(r.Major), 10)
		if r.Major < 2 {
			b = append(b, '.')
			b = strconv.AppendUint(b, uint64(r.Minor), 10)
		}
		b = append(b, '"')
	}
	if r.TLS {
		b = append(b, `,"tls":true`...)
	}
	if r.Session != nil {
		b = text(b, `,"client_cert":"`, r.Session.ClientCert, maxLogText, &cut)
		if r.Protocol != "" {
			b = text(b, `,"sni":"`, r.Session.Name, maxLogText, &cut)
		}
		if r.Session.ECH {
			b = append(b, `,"ech":true`...)
		}
	}
	if r.Protocol == "" {
		b = append(b, `,"status":`...)
		b = strconv.AppendInt(b, int64(r.code()), 10)
	} else {
		b = text(b, `,"proto":"`, r.Protocol, maxLogText, &cut)
	}
	b = append(b, `,"reason":"`...)
	b = append(b, r.Reason.String()...)
	if r.GRPC != 0 {
		b = append(b, `","grpc_status":"`...)
		b = append(b, r.GRPC.String()...)
	}
	b = append(b, `","sent":`...)
	b = strconv.AppendBool(b, r.Sent)
	if r.ClientIP.IsValid() {
		b = append(b, `,"client":"`...)
		// The zone of a scoped IPv6 address is the kernel's text, not the
		// client's, but nothing is lost by leaving it out.
		b = r.ClientIP.Unmap().WithZone("").AppendTo(b)
		b = append(b, '"')
	}
	if r.ProxiedBy.IsValid() {
		b = append(b, `,"proxied_by":"`...)
		b = append(r.ProxiedBy.WithZone("").AppendTo(b), '"')
	}
	b = text(b, `,"request_id":"`, r.RequestID, maxLogText, &cut)
	b = number(b, `,"attempts":`, int64(r.Attempts))
	if r.Retries != 0 {
		b = number(b, `,"retries":`, int64(r.Retries))
	}
	if r.Redispatches != 0 {
		b = number(b, `,"redispatches":`, int64(r.Redispatches))
	}
	b = tried(b, r.Tried, &cut)
	b = millis(b, `,"duration_ms":`, r.Total)
	if r.Attempts > 0 || r.Queue > 0 {
		b = millis(b, `,"queue_ms":`, r.Queue)
		b = millis(b, `,"connect_ms":`, r.Connect)
		b = millis(b, `,"first_byte_ms":`, r.FirstByte)
	}
	b = number(b, `,"bytes_in":`, r.BytesIn)
	b = number(b, `,"bytes_out":`, r.BytesOut)
	if r.DatagramsIn > 0 || r.DatagramsOut > 0 {
		b = number(b, `,"datagrams_in":`, r.DatagramsIn)
		b = number(b, `,"datagrams_out":`, r.DatagramsOut)
	}
	if r.Protocol == "" {
		b = append(b, `,"reused":`...)
		b = strconv.AppendBool(b, r.Reused)
	}
	if r.Tunnel {
		b = append(b, `,"tunnel":true`...)
	}
	if r.Sticky != StickyNone {
		b = append(append(append(b, `,"sticky":"`...), r.Sticky.String()...), '"')
	}
	b = text(b, `,"user_agent":"`, r.UserAgent, maxLogText, &cut)
	b = text(b, `,"detail":"`, r.Detail, maxLogText, &cut)
	return b, cut
}

// text appends key, which ends with the opening quote, and the value; nothing
// when the value is empty.
func text[T string | []byte](b []byte, key string, v T, most int, cut *bool) []byte {
	if len(v) == 0 {
		return b
	}
	if len(v) > most {
		v = v[:most]
		*cut = true
	}
	b = append(b, key...)
	b = appendEscaped(b, v)
	return append(b, '"')
}

// tried appends the attempts before the last one, if there were any.
func tried(b []byte, tries []Try, cut *bool) []byte {
	if len(tries) == 0 {
		return b
	}
	b = append(b, `,"tried":[`...)
	for i, t := range tries {
		if i > 0 {
			b = append(b, ',')
		}
		b = text(b, `{"backend":"`, t.Backend, maxLogText, cut)
		b = append(b, `,"reason":"`...)
		b = append(b, t.Reason.String()...)
		b = append(b, '"')
		if t.Status != 0 {
			b = number(b, `,"status":`, int64(t.Status))
		}
		if t.GRPC != 0 {
			b = append(append(append(b, `,"grpc_status":"`...), t.GRPC.String()...), '"')
		}
		b = append(b, '}')
	}
	return append(b, ']')
}

func number(b []byte, key string, n int64) []byte {
	b = append(b, key...)
	return strconv.AppendInt(b, n, 10)
}

// millis appends a duration in milliseconds with three decimals.
func millis(b []byte, key string, d time.Duration) []byte {
	b = append(b, key...)
	us := max(d, 0).Microseconds()
	b = strconv.AppendInt(b, us/1000, 10)
	frac := us % 1000
	if frac == 0 {
		return b
	}
	b = append(b, '.', byte('0'+frac/100), byte('0'+frac/10%10), byte('0'+frac%10))
	return b
}

// appendTime appends RFC 3339 in UTC with six decimals; like AppendFormat, in
// a fraction of its time.
func appendTime(b []byte, t time.Time) []byte {
	t = t.UTC()
	year, month, day := t.Date()
	hour, minute, second := t.Clock()
	if year < 0 || year > 9999 {
		year = 0
	}
	b = append(b,
		byte('0'+year/1000), byte('0'+year/100%10), byte('0'+year/10%10), byte('0'+year%10), '-',
		byte('0'+month/10), byte('0'+month%10), '-', byte('0'+day/10), byte('0'+day%10), 'T',
		byte('0'+hour/10), byte('0'+hour%10), ':', byte('0'+minute/10), byte('0'+minute%10), ':',
		byte('0'+second/10), byte('0'+second%10), '.')
	us := t.Nanosecond() / 1000
	for div := 100000; div > 0; div /= 10 {
		b = append(b, byte('0'+us/div%10))
	}
	return append(b, 'Z')
}

const hexDigits = "0123456789abcdef"

// plain[c] says that byte c stands for itself in a JSON string. DEL is legal
// there but does things to terminals.
var plain = func() (t [256]bool) {
	for c := 0x20; c < 0x7f; c++ {
		t[c] = c != '"' && c != '\\'
	}
	return t
}()

// appendEscaped appends v as the inside of a JSON string. Bytes that are not
// UTF-8 become U+FFFD, as encoding/json does; control characters, C1 and the
// line separators of Unicode included, are escaped, so that a line is one line
// for every reader and harmless to a terminal.
func appendEscaped[T string | []byte](b []byte, v T) []byte {
	start := 0
	for i := 0; i < len(v); {
		c := v[i]
		if plain[c] {
			i++
			continue
		}
		if c < utf8.RuneSelf {
			b = append(b, v[start:i]...)
			b = escapeByte(b, c)
			i++
			start = i
			continue
		}
		r, size := decodeRune(v[i:])
		switch {
		case r == utf8.RuneError && size == 1:
			b = append(b, v[start:i]...)
			b = append(b, `\ufffd`...)
		case r < 0xa0 || r == 0x2028 || r == 0x2029:
			b = append(b, v[start:i]...)
			b = append(b, '\\', 'u', hexDigits[r>>12&15], hexDigits[r>>8&15], hexDigits[r>>4&15], hexDigits[r&15])
		default:
			i += size
			continue
		}
		i += size
		start = i
	}
	return append(b, v[start:]...)
}

func escapeByte(b []byte, c byte) []byte {
	switch c {
	case '"', '\\':
		return append(b, '\\', c)
	case '\n':
		return append(b, '\\', 'n')
	case '\r':
		return append(b, '\\', 'r')
	case '\t':
		return append(b, '\\', 't')
	default:
		return append(b, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
	}
}

func decodeRune[T string | []byte](v T) (rune, int) {
	var one [utf8.UTFMax]byte
	n := copy(one[:], v)
	return utf8.DecodeRune(one[:n])
}

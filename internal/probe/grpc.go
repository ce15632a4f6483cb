// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strconv"
	"strings"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/weirlb/weir/health"
	"github.com/weirlb/weir/internal/orca"
)

// GRPC is the question of a gRPC check: grpc.health.v1.Health/Check
// (https://github.com/grpc/grpc/blob/master/doc/health-checking.md). SERVING
// passes; NOT_SERVING, and a server that does not know the service or the
// question, is not_ready. With TLS the Target's NextProtos must be h2.
type GRPC struct {
	Service     string // empty: the server as a whole; at most 1000 bytes
	Host        string // value of :authority
	LoadReports bool   // as in HTTP
}

// The call is made by hand on HTTP/2 frames, because it is one message each way
// and the gRPC library would have everybody pay for it who checks nothing by
// gRPC: 6.2 MB of binary, 2.6 MB of memory and 42 package initialisers.
const (
	checkMethod = "/grpc.health.v1.Health/Check"
	maxFrame    = 16 << 10 // the least that HTTP/2 allows (RFC 9113 section 4.2)
	maxFrames   = 1000     // that are looked at for one answer
	maxMessage  = 4 << 10  // an answer is 7 bytes long
)

// call asks, reads the answer and judges it.
func (p *Prober) call(c *conn, j *job) verdict {
	g := j.target.GRPC
	if t, ok := c.Conn.(*tls.Conn); ok && t.ConnectionState().NegotiatedProtocol != "h2" {
		return failed(health.CauseTLS, "the server does not offer h2 (ALPN), which gRPC needs")
	}
	x := &exchange{framer: http2.NewFramer(c, c), most: maxMessage, code: -1}
	x.framer.SetMaxReadFrameSize(maxFrame)
	x.framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	x.framer.MaxHeaderListSize = maxHead
	var ask bytes.Buffer
	if err := p.request(&ask, j); err != nil {
		return verdict{outcome: health.NoAnswer, text: oneLine(err.Error()), retry: true} // cannot happen: memory
	}
	// In one piece: a server that speaks something else then says so before it
	// closes, rather than reset a connection that is still being written to.
	if _, err := c.Write(ask.Bytes()); err != nil {
		return p.lost(err, j, "could not be asked")
	}
	switch err := x.read(func() bool { return len(x.message) > maxMessage }); {
	case err == nil && !x.ended:
		return failed(health.CauseMalformed, "the answer is too long")
	case err != nil:
		var broken brokenCall
		switch {
		case errors.As(err, &broken):
			return failed(broken.cause, broken.what)
		case isFraming(err):
			return failed(health.CauseMalformed, "this is no HTTP/2: "+rootText(err))
		}
		return p.lost(err, j, "no answer")
	}
	_ = x.framer.WriteGoAway(0, http2.ErrCodeNo, nil) // a courtesy: the verdict is out
	v := x.judge(g)
	if g.LoadReports {
		v.load, v.hasLoad = x.load, x.hasLoad
	}
	return v
}

// request writes the preface and the whole of the call.
func (p *Prober) request(to io.Writer, j *job) error {
	g, f := j.target.GRPC, http2.NewFramer(to, nil)
	scheme := "http"
	if j.target.TLS != nil {
		scheme = "https"
	}
	var fields strings.Builder
	enc := hpack.NewEncoder(&fields)
	for _, h := range [][2]string{
		{":method", "POST"}, {":scheme", scheme}, {":path", checkMethod}, {":authority", g.Host},
		{"te", "trailers"}, {"content-type", "application/grpc"}, {"user-agent", p.userAgent},
		{"grpc-timeout", strconv.FormatInt(max(j.timeout.Milliseconds(), 1), 10) + "m"},
	} {
		if err := enc.WriteField(hpack.HeaderField{Name: h[0], Value: h[1]}); err != nil {
			return err
		}
	}
	message := []byte{0, 0, 0, 0, 0} // not compressed, and its length
	if g.Service != "" {
		message = append(message, 1<<3|2) // field 1: the service
		message = binary.AppendUvarint(message, uint64(len(g.Service)))
		message = append(message, g.Service...)
	}
	binary.BigEndian.PutUint32(message[1:5], uint32(len(message)-5))

	if _, err := io.WriteString(to, http2.ClientPreface); err != nil {
		return err
	}
	if err := f.WriteSettings(http2.Setting{ID: http2.SettingEnablePush, Val: 0}, http2.Setting{ID: http2.SettingMaxHeaderListSize, Val: maxHead}); err != nil {
		return err
	}
	if err := f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: []byte(fields.String()), EndHeaders: true}); err != nil {
		return err
	}
	return f.WriteData(1, true, message)
}

// exchange is the answer to a call, or to a request, as it comes in.
type exchange struct {
	framer  *http2.Framer
	most    int // content that is kept
	frames  int // taken so far
	headed  bool
	ended   bool
	regular []hpack.HeaderField // of the head
	status  int                 // of HTTP
	kind    string              // Content-Type
	message []byte
	code    int // grpc-status; -1: none yet
	text    string
	load    float64
	hasLoad bool
}

// brokenCall is an answer that is none.
type brokenCall struct {
	cause health.Cause
	what  string
}

func (b brokenCall) Error() string { return b.what }

func isFraming(err error) bool {
	var conn http2.ConnectionError
	var stream http2.StreamError
	return errors.As(err, &conn) || errors.As(err, &stream) || errors.Is(err, http2.ErrFrameTooLarge)
}

// read takes frames until the answer is whole, enough of it has come, or there is more
// content than is kept.
func (x *exchange) read(enough func() bool) error {
	for ; x.frames < maxFrames; x.frames++ {
		if x.ended || enough() || len(x.message) > x.most {
			return nil
		}
		f, err := x.framer.ReadFrame()
		if err != nil {
			return err
		}
		switch f := f.(type) {
		case *http2.SettingsFrame:
			if !f.IsAck() {
				err = x.framer.WriteSettingsAck()
			}
		case *http2.PingFrame:
			if !f.IsAck() {
				err = x.framer.WritePing(true, f.Data)
			}
		case *http2.GoAwayFrame:
			if f.LastStreamID < 1 {
				return brokenCall{health.CauseReset, "the server refuses calls (GOAWAY " + f.ErrCode.String() + ")"}
			}
		case *http2.RSTStreamFrame:
			return brokenCall{health.CauseReset, "the call was reset: " + f.ErrCode.String()}
		case *http2.MetaHeadersFrame:
			x.fields(f)
			x.ended = f.StreamEnded()
		case *http2.DataFrame:
			x.message = append(x.message, f.Data()...)
			x.ended = f.StreamEnded()
		}
		if err != nil {
			return err
		}
	}
	return brokenCall{health.CauseMalformed, "too many frames, and no end of the answer"}
}

// fields takes the answer's head, an interim one, or its trailers.
func (x *exchange) fields(f *http2.MetaHeadersFrame) {
	if status, err := strconv.Atoi(f.PseudoValue("status")); err == nil && !x.headed {
		if x.status, x.headed = status, status >= 200; x.headed {
			x.regular = f.RegularFields()
		}
	}
	for _, h := range f.RegularFields() {
		switch h.Name {
		case "content-type":
			x.kind = h.Value
		case "grpc-status":
			if n, err := strconv.Atoi(h.Value); err == nil && n >= 0 {
				x.code = n
			}
		case "grpc-message":
			x.text = h.Value
			if s, err := url.PathUnescape(h.Value); err == nil {
				x.text = s
			}
		case "endpoint-load-metrics-bin":
			if r, ok := orca.ParseBinary([]byte(h.Value)); ok {
				x.load, x.hasLoad = r.Utilization()
			}
		}
	}
}

// judge says what the answer means.
func (x *exchange) judge(g *GRPC) verdict {
	refused := func(status int, text string) verdict {
		return verdict{outcome: health.NotReady, cause: health.CauseStatus, status: status, text: oneLine("status: " + text)}
	}
	switch {
	case x.status != 200:
		return refused(x.status, fmt.Sprintf("%d, and no gRPC answer", x.status))
	case !strings.HasPrefix(x.kind, "application/grpc"):
		return failed(health.CauseMalformed, fmt.Sprintf("the answer is no gRPC: its type is %q", x.kind))
	case x.code < 0:
		return failed(health.CauseMalformed, "the answer has no grpc-status")
	case x.code == codeDeadline:
		return failed(health.CauseTimeout, "the server did not answer in time: DEADLINE_EXCEEDED")
	case x.code != 0:
		said := codeName(x.code)
		switch {
		case x.code == codeNotFound && g.Service != "":
			said += ": the server does not know the service " + strconv.Quote(g.Service) + "; look at active.service"
		case x.code == codeUnimplemented:
			said += ": the server has no grpc.health.v1.Health; register it there, or check by tcp"
		case x.text != "":
			said += ": " + x.text
		}
		return refused(httpStatus(x.code), said)
	}
	serving, ok := servingStatus(x.message)
	switch {
	case !ok:
		return failed(health.CauseMalformed, "the answer is no HealthCheckResponse")
	case serving == 1:
		return verdict{status: 200}
	}
	names := [...]string{"UNKNOWN", "SERVING", "NOT_SERVING", "SERVICE_UNKNOWN"}
	if serving < uint64(len(names)) {
		return refused(503, names[serving])
	}
	return refused(503, "serving status "+strconv.FormatUint(serving, 10))
}

// servingStatus reads a HealthCheckResponse in its length prefix: field 1, a
// number, which is 0 where it is left out. Other fields are skipped.
func servingStatus(b []byte) (status uint64, ok bool) {
	if len(b) < 5 || b[0] != 0 || uint64(binary.BigEndian.Uint32(b[1:5])) != uint64(len(b)-5) {
		return 0, false
	}
	for b = b[5:]; len(b) > 0; {
		key, n := binary.Uvarint(b)
		if n <= 0 || key>>3 == 0 {
			return 0, false
		}
		b = b[n:]
		size := uint64(0)
		switch key & 7 {
		case 0:
			v, n := binary.Uvarint(b)
			if n <= 0 {
				return 0, false
			}
			if key>>3 == 1 {
				status = v
			}
			size = uint64(n)
		case 1:
			size = 8
		case 2:
			v, n := binary.Uvarint(b)
			if n <= 0 || v > uint64(len(b)) {
				return 0, false
			}
			size = v + uint64(n)
		case 5:
			size = 4
		default:
			return 0, false
		}
		if size > uint64(len(b)) {
			return 0, false
		}
		b = b[size:]
	}
	return status, true
}

// Codes of gRPC that a check makes a difference of.
const (
	codeDeadline      = 4
	codeNotFound      = 5
	codeUnimplemented = 12
)

var statusCodes = [...]struct {
	name string
	http int // as google.rpc.Code maps it
}{
	{"OK", 200}, {"CANCELLED", 499}, {"UNKNOWN", 500}, {"INVALID_ARGUMENT", 400}, {"DEADLINE_EXCEEDED", 504},
	{"NOT_FOUND", 404}, {"ALREADY_EXISTS", 409}, {"PERMISSION_DENIED", 403}, {"RESOURCE_EXHAUSTED", 429},
	{"FAILED_PRECONDITION", 400}, {"ABORTED", 409}, {"OUT_OF_RANGE", 400}, {"UNIMPLEMENTED", 501}, {"INTERNAL", 500},
	{"UNAVAILABLE", 503}, {"DATA_LOSS", 500}, {"UNAUTHENTICATED", 401},
}

func codeName(code int) string {
	if code < len(statusCodes) {
		return statusCodes[code].name
	}
	return "code " + strconv.Itoa(code)
}

func httpStatus(code int) int {
	if code < len(statusCodes) {
		return statusCodes[code].http
	}
	return 500
}

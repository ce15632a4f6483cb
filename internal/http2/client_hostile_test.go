// SPDX-License-Identifier: Apache-2.0

package http2

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/synctest"

	"golang.org/x/net/http2"

	"github.com/weirlb/weir/internal/message"
)

// TestIllegal: what a backend may not send is a bad answer of the one exchange, or
// the end of the connection; never an answer, and never without a reason.
func TestIllegal(t *testing.T) {
	ok := []string{":status", "200"}
	for name, c := range map[string]struct {
		send   func(o *origin)
		reason string // of the exchange
		told   string // what the backend hears
	}{
		"content before the head": {func(o *origin) { _ = o.fr.WriteData(1, false, []byte("x")) }, "bad_response: content before", "RST 1 PROTOCOL"},
		"capitals":                {func(o *origin) { o.head(1, true, ":status", "200", "X-Up", "1") }, "bad_response: field name", "RST 1 PROTOCOL"},
		"transfer-encoding":       {func(o *origin) { o.head(1, true, ":status", "200", "transfer-encoding", "chunked") }, "bad_response: field that concerns", "RST 1"},
		"connection":              {func(o *origin) { o.head(1, true, ":status", "200", "connection", "close") }, "bad_response: field that concerns", "RST 1"},
		"upgrade":                 {func(o *origin) { o.head(1, true, ":status", "200", "upgrade", "h2c") }, "bad_response: field that concerns", "RST 1"},
		"line feed":               {func(o *origin) { o.head(1, true, ":status", "200", "a", "b\r\nset-cookie: x") }, "bad_response: control", "RST 1"},
		"NUL":                     {func(o *origin) { o.head(1, true, ":status", "200", "a", "b\x00") }, "bad_response: control", "RST 1"},
		"space in a name":         {func(o *origin) { o.head(1, true, ":status", "200", "a b", "c") }, "bad_response: field name", "RST 1"},
		"no status":               {func(o *origin) { o.head(1, true, "a", "b") }, "bad_response: no :status", "RST 1"},
		"status of two digits":    {func(o *origin) { o.head(1, true, ":status", "20") }, "bad_response: no :status", "RST 1"},
		"status with a sign":      {func(o *origin) { o.head(1, true, ":status", "+20") }, "bad_response: no :status", "RST 1"},
		"101":                     {func(o *origin) { o.head(1, false, ":status", "101") }, "bad_response: no :status", "RST 1"},
		"status twice":            {func(o *origin) { o.head(1, true, ":status", "200", ":status", "200") }, "bad_response: repeated :status", "RST 1"},
		"status behind a field":   {func(o *origin) { o.head(1, true, "a", "b", ":status", "200") }, "bad_response: repeated :status", "RST 1"},
		"path in an answer":       {func(o *origin) { o.head(1, true, ":status", "200", ":path", "/") }, "bad_response: pseudo-field", "RST 1"},
		"interim as the last":     {func(o *origin) { o.head(1, true, ":status", "103") }, "bad_response: an interim", "RST 1"},
		"lengths that differ":     {func(o *origin) { o.head(1, false, ":status", "200", "content-length", "1", "content-length", "2") }, "bad_response: repeated Content-Length", "RST 1"},
		"length of letters":       {func(o *origin) { o.head(1, false, ":status", "200", "content-length", "0x1") }, "bad_response: ", "RST 1"},
		"length without content":  {func(o *origin) { o.head(1, true, ":status", "200", "content-length", "1") }, "bad_response: less content", "RST 1"},
		"more than the length": {func(o *origin) {
			o.head(1, false, ":status", "200", "content-length", "1")
			_ = o.fr.WriteData(1, true, []byte("xy"))
		}, "bad_response: more content", "RST 1"},
		"less than the length": {func(o *origin) {
			o.head(1, false, ":status", "200", "content-length", "9")
			_ = o.fr.WriteData(1, true, []byte("xy"))
		}, "bad_response: less content", "RST 1"},
		"content of a 204":         {func(o *origin) { o.head(1, false, ":status", "204"); _ = o.fr.WriteData(1, true, []byte("xy")) }, "", "RST 1"},
		"second head":              {func(o *origin) { o.head(1, false, ok...); o.head(1, false, ok...) }, "bad_response: a second head", "RST 1"},
		"pseudo-field in trailers": {func(o *origin) { o.head(1, false, ok...); o.head(1, true, ok...) }, "bad_response: pseudo-field in", "RST 1"},
		"too many interims": {func(o *origin) {
			for range 70 {
				o.head(1, false, ":status", "103")
			}
		}, "bad_response: too many interim", "RST 1"},
		"reset":             {func(o *origin) { _ = o.fr.WriteRSTStream(1, http2.ErrCodeInternal) }, "reset_before_response: RST_STREAM INTERNAL_ERROR", ""},
		"reset within":      {func(o *origin) { o.head(1, false, ok...); _ = o.fr.WriteRSTStream(1, http2.ErrCodeCancel) }, "reset_mid_response: RST_STREAM CANCEL", ""},
		"window beyond all": {func(o *origin) { _ = o.fr.WriteWindowUpdate(1, 1<<31-1) }, "bad_response", "RST 1 FLOW"},
		"push": {func(o *origin) {
			_ = o.fr.WritePushPromise(http2.PushPromiseParam{StreamID: 1, PromiseID: 2, EndHeaders: true, BlockFragment: o.block(":method", "GET")})
		}, "bad_response: PUSH_PROMISE", "GOAWAY PROTOCOL"},
		"stream of its own":      {func(o *origin) { o.head(2, true, ok...) }, "bad_response: HEADERS on an idle", "GOAWAY PROTOCOL"},
		"stream that is to come": {func(o *origin) { o.head(7, true, ok...) }, "bad_response: HEADERS on an idle", "GOAWAY PROTOCOL"},
		"DATA on stream 0":       {func(o *origin) { _ = o.fr.WriteRawFrame(http2.FrameData, 0, 0, []byte("x")) }, "bad_response", "GOAWAY PROTOCOL"},
		"block that is none": {func(o *origin) {
			_ = o.fr.WriteRawFrame(http2.FrameHeaders, 5, 1, []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff})
		}, "bad_response: header block", "GOAWAY COMPRESSION"},
		"frame that is too large": {func(o *origin) { _ = o.fr.WriteRawFrame(http2.FrameHeaders, 4, 1, make([]byte, maxFrame+1)) }, "bad_response: frame too large", "GOAWAY FRAME_SIZE"},
		"CONTINUATION of nothing": {func(o *origin) { _ = o.fr.WriteContinuation(1, true, nil) }, "bad_response", "GOAWAY PROTOCOL"},
		"interleaved block": {func(o *origin) {
			_ = o.fr.WriteRawFrame(http2.FrameHeaders, 0, 1, o.block(ok...))
			_ = o.fr.WritePing(false, [8]byte{})
		}, "bad_response", "GOAWAY PROTOCOL"},
		"push enabled": {func(o *origin) { _ = o.fr.WriteSettings(http2.Setting{ID: http2.SettingEnablePush, Val: 1}) }, "bad_response: SETTINGS_ENABLE_PUSH", "GOAWAY PROTOCOL"},
		"huge initial window": {func(o *origin) {
			_ = o.fr.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 31})
		}, "bad_response", "GOAWAY FLOW"},
		"flood of pings": {func(o *origin) {
			for range calmBurst + 200 {
				if o.fr.WritePing(false, [8]byte{}) != nil {
					break
				}
			}
		}, "bad_response: too much: ping", "GOAWAY ENHANCE"},
		"flood of settings": {func(o *origin) {
			for range calmBurst {
				if o.fr.WriteSettings() != nil {
					break
				}
			}
		}, "bad_response: too much: settings", "GOAWAY ENHANCE"},
		"flood of empty content": {func(o *origin) {
			o.head(1, false, ok...)
			for range calmBurst {
				if o.fr.WriteData(1, false, nil) != nil {
					break
				}
			}
		}, "bad_response: too much: empty", "GOAWAY ENHANCE"},
		"flood of CONTINUATION": {func(o *origin) {
			_ = o.fr.WriteRawFrame(http2.FrameHeaders, 0, 1, nil)
			for range calmBurst {
				if o.fr.WriteContinuation(1, false, nil) != nil {
					break
				}
			}
		}, "bad_response: too much: empty", "GOAWAY ENHANCE"},
		"endless header block": {func(o *origin) {
			_ = o.fr.WriteRawFrame(http2.FrameHeaders, 0, 1, nil)
			for range 64 {
				if o.fr.WriteContinuation(1, false, make([]byte, maxFrame)) != nil {
					break
				}
			}
		}, "bad_response: too much: headers", "GOAWAY ENHANCE"},
		"more than the window": {func(o *origin) {
			o.head(1, false, ok...)
			for range 5 {
				_ = o.fr.WriteData(1, false, make([]byte, maxFrame))
			}
		}, "bad_response: more content than the window", "RST 1 FLOW"},
		"later stream in GOAWAY": {func(o *origin) { _ = o.fr.WriteGoAway(1, 0, nil); _ = o.fr.WriteGoAway(9, 0, nil) }, "bad_response: GOAWAY with a later", "GOAWAY PROTOCOL"},
		"end":                    {func(o *origin) { o.c.Close() }, "unexpected EOF", ""},
		"end after a word":       {func(o *origin) { _ = o.fr.WriteGoAway(1, http2.ErrCodeInternal, []byte("out of\nluck")); o.c.Close() }, "unexpected EOF: http2: the backend ends the connection: INTERNAL_ERROR (out of.luck)", ""},
	} {
		t.Run(name, func(t *testing.T) {
			originate(t, patient, func(o *origin) {
				s := o.ask("GET")
				synctest.Wait()
				go c.send(o)
				synctest.Wait()
				_, _, _, err := take(s)
				if got := reasonOf(err); c.reason != "" && !strings.HasPrefix(got, c.reason) {
					t.Errorf("got %q, want %q", got, c.reason)
				}
				s.Close()
				if c.told != "" && !o.has(c.told) {
					t.Errorf("the backend heard %q, not %q", o.heard, c.told)
				}
				if strings.HasPrefix(c.told, "RST") { // the connection goes on
					again := o.ask("GET")
					o.head(again.id, true, ok...)
					if status, _, _, err := take(again); status != 200 || err != nil {
						t.Error("the next exchange:", status, err)
					}
					again.Done()
				}
			})
		})
	}
}

// FuzzAnswers: whatever a backend sends, each exchange ends with an answer that is
// well-formed or with an error, and the connection with it.
func FuzzAnswers(f *testing.F) {
	var b bytes.Buffer
	fr := http2.NewFramer(&b, nil)
	_ = fr.WriteRawFrame(http2.FrameHeaders, 4, 1, []byte{0x88})
	_ = fr.WriteData(1, true, []byte("hello"))
	f.Add(b.Bytes())
	_ = fr.WriteGoAway(1, 0, []byte("x"))
	_ = fr.WriteRawFrame(http2.FrameHeaders, 5, 3, []byte{0x88, 0x40, 1, 'a', 1, 'b'})
	_ = fr.WriteRSTStream(5, http2.ErrCodeRefusedStream)
	_ = fr.WriteSettings(http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: 1})
	f.Add(b.Bytes())
	var torn bytes.Buffer
	fr = http2.NewFramer(&torn, nil)
	_ = fr.WriteRawFrame(http2.FrameHeaders, 4, 1, []byte{0x88})
	_ = fr.WriteData(1, false, []byte("hel"))
	f.Add(torn.Bytes())
	f.Fuzz(func(t *testing.T, wire []byte) {
		originate(t, patient, func(o *origin) {
			streams := []*ClientStream{o.ask("GET"), o.ask("HEAD"), o.upload()}
			go func() {
				_, _ = o.c.Write(wire)
				o.c.Close()
			}()
			for _, s := range streams {
				var r message.Response
				err := s.ReadHead(&r, false, soonest())
				for err == nil && r.Status < 200 {
					err = s.ReadHead(&r, false, soonest())
				}
				if err == nil && (r.Status > 999 || r.Fields.Has(message.Connection) || r.Fields.Has(message.TransferEncoding) || bytes.ContainsAny(r.Fields.AppendWire(nil), "\x00")) {
					t.Errorf("passed on: %d %q", r.Status, r.Fields.AppendWire(nil))
				}
				for err == nil {
					s.SetReadDeadline(soonest())
					if _, err = s.ReadBody(); errors.Is(err, io.EOF) && !s.BodyDone() {
						t.Errorf("content that is not whole ends as if it were: %v", err)
					}
				}
				s.Close()
			}
			if n := o.conn.Streams(); n != 0 {
				t.Error(n, "streams are left")
			}
		})
	})
}

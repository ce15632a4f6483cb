// SPDX-License-Identifier: Apache-2.0

package l7

import (
	"bytes"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"github.com/weirlb/weir/internal/message"
	"github.com/weirlb/weir/internal/upstream"
)

// unwilling is a backend over HTTP/2 that does not process the first request:
// deny says so. Those that follow it echoes the length of, as :status 200.
func unwilling(t *testing.T, deny func(fr *http2.Framer, stream uint32, c net.Conn)) (addr string, conns *atomic.Int32) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ln.Close() })
	conns = new(atomic.Int32)
	var denied atomic.Bool
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			conns.Add(1)
			t.Cleanup(func() { _ = c.Close() })
			go func() {
				_, _ = io.ReadFull(c, make([]byte, len(http2.ClientPreface)))
				fr := http2.NewFramer(c, c)
				_ = fr.WriteSettings()
				for {
					f, err := fr.ReadFrame()
					if err != nil {
						return
					}
					if _, ok := f.(*http2.HeadersFrame); ok && denied.CompareAndSwap(false, true) {
						deny(fr, f.Header().StreamID, c)
						continue
					}
					if d, ok := f.(*http2.DataFrame); ok && d.StreamEnded() {
						_ = fr.WriteHeaders(http2.HeadersFrameParam{StreamID: f.Header().StreamID, EndHeaders: true, EndStream: true, BlockFragment: []byte{0x88}})
					}
					if d, ok := f.(*http2.DataFrame); ok && len(d.Data()) > 0 {
						_ = fr.WriteWindowUpdate(0, uint32(len(d.Data())))
					}
				}
			}()
		}
	}()
	return ln.Addr().String(), conns
}

// TestUnprocessed: a request that a backend says it has not processed is asked for
// again, whatever its method, and is no retry.
func TestUnprocessed(t *testing.T) {
	for name, c := range map[string]struct {
		deny  func(fr *http2.Framer, stream uint32, c net.Conn)
		conns int32
	}{
		"GOAWAY": {func(fr *http2.Framer, _ uint32, c net.Conn) {
			_ = fr.WriteGoAway(0, http2.ErrCodeNo, nil)
			_ = c.Close()
		}, 2},
		"REFUSED_STREAM": {func(fr *http2.Framer, stream uint32, _ net.Conn) {
			_ = fr.WriteRSTStream(stream, http2.ErrCodeRefusedStream)
		}, 1},
	} {
		for _, size := range []int{10, 40 << 10} {
			t.Run(name, func(t *testing.T) {
				addr, conns := unwilling(t, c.deny)
				r := newRig(t, []string{addr}, rigOptions{edit: func(r *rig) {
					r.upstreams.Protocol, r.upstreams.MaxStreams, r.upstreams.Ping = upstream.HTTP2, 10, 10*time.Second
				}})
				tr := &http.Transport{}
				defer tr.CloseIdleConnections()
				res, err := (&http.Client{Transport: tr}).Post("http://"+r.addr, "text/plain", io.MultiReader(bytes.NewReader(make([]byte, size))))
				if err != nil {
					t.Fatal(err)
				}
				_ = res.Body.Close()
				rec := r.record()
				if res.StatusCode != 200 || rec.Redispatches != 1 || rec.Retries != 0 || rec.Reason != message.OK || !rec.Sent {
					t.Errorf("%s, %+v", res.Status, rec)
				}
				if n := conns.Load(); n != c.conns {
					t.Errorf("%d connections, want %d", n, c.conns)
				}
			})
		}
	}
}

// TestBackendLeavesMidAnswer: a connection that ends within an answer ends that answer
// as a torn one, whether the backend has said so before or not.
func TestBackendLeavesMidAnswer(t *testing.T) {
	for name, goodbye := range map[string]func(fr *http2.Framer, stream uint32){
		"close":            func(*http2.Framer, uint32) {},
		"GOAWAY and close": func(fr *http2.Framer, stream uint32) { _ = fr.WriteGoAway(stream, http2.ErrCodeNo, nil) },
	} {
		t.Run(name, func(t *testing.T) {
			heard := make(chan struct{})
			addr, _ := unwilling(t, func(fr *http2.Framer, stream uint32, c net.Conn) {
				_ = fr.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, EndHeaders: true, BlockFragment: []byte{0x88}})
				_ = fr.WriteData(stream, false, []byte("hello"))
				<-heard
				goodbye(fr, stream)
				_ = c.Close()
			})
			r := newRig(t, []string{addr}, rigOptions{edit: func(r *rig) {
				r.upstreams.Protocol, r.upstreams.MaxStreams, r.upstreams.Ping = upstream.HTTP2, 10, 10*time.Second
			}})
			tr := &http.Transport{}
			defer tr.CloseIdleConnections()
			res, err := (&http.Client{Transport: tr, Timeout: 10 * time.Second}).Get("http://" + r.addr)
			if err != nil {
				t.Fatal(err)
			}
			defer res.Body.Close() //nolint:errcheck // a test's
			if _, err := io.ReadFull(res.Body, make([]byte, 5)); err != nil {
				t.Fatal(err)
			}
			close(heard)
			if n, err := io.Copy(io.Discard, res.Body); err == nil {
				t.Errorf("%d more bytes, and whole", n)
			}
			if rec := r.record(); rec.Reason != message.ResetMidResponse {
				t.Errorf("ended %s: %s", rec.Reason, rec.Detail)
			}
		})
	}
}

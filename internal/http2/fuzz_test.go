// SPDX-License-Identifier: Apache-2.0

package http2

import (
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"github.com/weirlb/weir/internal/http1"
	"github.com/weirlb/weir/internal/message"
	"github.com/weirlb/weir/internal/netconn"
)

// FuzzServe sends any bytes behind the preface. Whatever they are, the connection
// ends once they have, every stream's exchange ends, nothing is left of the
// budget, and what is sent is frames.
func FuzzServe(f *testing.F) {
	settings := "\x00\x00\x00\x04\x00\x00\x00\x00\x00"
	request := "\x00\x00\x07\x01\x05\x00\x00\x00\x01\x82\x86\x84\x41\x01a\x00"
	f.Add([]byte(settings))
	f.Add([]byte(settings + "\x00\x00\x06\x01\x05\x00\x00\x00\x01\x82\x86\x84\x41\x01a"))
	f.Add([]byte(settings + request + "\x00\x00\x04\x03\x00\x00\x00\x00\x01\x00\x00\x00\x08"))
	f.Add([]byte(settings + "\x00\x00\x06\x01\x04\x00\x00\x00\x01\x83\x86\x84\x41\x01a\x00\x00\x05\x00\x09\x00\x00\x00\x01\x02hi\x00\x00"))
	f.Add([]byte(settings + "\x00\x00\x04\x01\x00\x00\x00\x00\x01\x83\x86\x84\x41\x00\x00\x02\x09\x04\x00\x00\x00\x01\x01a\x00\x00\x01\x01\x05\x00\x00\x00\x01\x40"))
	f.Add([]byte(settings + "\x00\x00\x08\x06\x00\x00\x00\x00\x0012345678\x00\x00\x04\x08\x00\x00\x00\x00\x00\x00\x00\x00\x01"))
	f.Fuzz(func(t *testing.T, b []byte) {
		s := &Server{Budget: &netconn.Budget{}, Settings: Settings{Timeouts: http1.Timeouts{Header: 5 * time.Second, Idle: 5 * time.Second, Write: 5 * time.Second}}}
		s.Budget.SetLimit(1 << 20)
		s.Handler = func(s *ServerStream) {
			for {
				if _, err := s.ReadBody(); err != nil {
					break
				}
			}
			_ = s.WriteHead(&message.Response{Status: 200}, []byte("hello"), true)
		}
		client, server := net.Pipe()
		go s.Serve(netconn.New(server), nil, nil)
		read := make(chan error, 1)
		go func() {
			fr := http2.NewFramer(nil, client)
			for {
				if _, err := fr.ReadFrame(); err != nil {
					_, _ = io.Copy(io.Discard, client)
					read <- err
					return
				}
			}
		}()
		_ = client.SetWriteDeadline(time.Now().Add(5 * time.Second))
		_, _ = io.WriteString(client, preface)
		_, _ = client.Write(b)
		_ = client.Close()
		done := make(chan struct{})
		go func() { s.Wait(); close(done) }()
		select {
		case <-done:
		case <-time.After(10 * time.Second):
			t.Fatal("it does not end")
		}
		if err := <-read; !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrClosedPipe) && !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Fatalf("the client got no frame: %v", err)
		}
		if n := s.Budget.Used(); n != 0 {
			t.Fatalf("%d bytes of the budget are not given back", n)
		}
	})
}

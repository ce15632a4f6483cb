// SPDX-License-Identifier: Apache-2.0

package handover

import (
	"errors"
	"io"
	"os"
	"syscall"
	"testing"
	"time"
)

// FuzzReceive: whatever the other side writes is a message, an error or the
// end; a message names no more sockets than came.
func FuzzReceive(f *testing.F) {
	f.Add([]byte(packet(`{"kind":"hello","protocol":1,"oldest":1,"version":"v1","pid":7,"sockets":2,"notes":{"instance":3}}`)))
	f.Add([]byte(packet(`{"kind":"sockets","binds":["127.0.0.1:80"]}`)))
	f.Add([]byte(packet(`{"kind":"built","mood":"good"}`) + packet(`{"kind":"ready"}`)))
	f.Add([]byte(packet(`{"kind":"state","state":"AAAA"}`)))
	f.Add([]byte(packet(`{"kind":"report","report":{"connections":-1}}`)))
	f.Add([]byte("\xff\xff\xff\xff"))
	f.Add([]byte("\x10\x00\x00\x00{"))
	f.Add([]byte("\x00\x00\x00\x00"))
	f.Add([]byte("HTTP/1.1 200 OK\r\n\r\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		if len(text) > 32<<10 {
			t.Skip("more than the pair holds")
		}
		fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		w := os.NewFile(uintptr(fds[0]), "w")
		_, err = w.Write(text)
		if err = errors.Join(err, w.Close()); err != nil {
			t.Fatal(err)
		}
		c, err := newChannel(os.NewFile(uintptr(fds[1]), "r"))
		if err != nil {
			t.Fatal(err)
		}
		defer c.close()
		c.expectBy(time.Now().Add(time.Minute))
		for n := 0; ; n++ {
			m, files, err := c.receive()
			if err != nil {
				if errors.Is(err, os.ErrDeadlineExceeded) {
					t.Error("it waits for more than came")
				}
				if errors.Is(err, io.EOF) && n == 0 && len(text) >= headerLen {
					t.Errorf("an end inside a message: %v", err)
				}
				return
			}
			if len(files) != len(m.Binds) || len(files) > 0 {
				t.Errorf("%d sockets for %d names, and none came", len(files), len(m.Binds))
			}
		}
	})
}

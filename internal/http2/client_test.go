// SPDX-License-Identifier: Apache-2.0

package http2

import (
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"

	"github.com/weirlb/weir/internal/clock"
	"github.com/weirlb/weir/internal/message"
	"github.com/weirlb/weir/internal/netconn"
)

// TestExchange: heads, content, trailers and interim answers of several exchanges
// at once on one connection.
func TestExchange(t *testing.T) {
	originate(t, patient, func(o *origin) {
		a, b := o.ask("GET"), o.ask("POST", "Te", "trailers", "Connection", "close", "Keep-Alive", "5")
		o.head(3, false, ":status", "103", "link", "</a>")
		o.head(3, false, ":status", "200", "content-type", "text/plain")
		o.head(1, true, ":status", "204")
		_ = o.fr.WriteData(3, false, []byte("hel"))
		_ = o.fr.WriteDataPadded(3, false, []byte("lo"), make([]byte, 7))
		o.head(3, true, "grpc-status", "0")
		var r message.Response
		if err := b.ReadHead(&r, false, soonest()); err != nil || r.Status != 103 {
			t.Fatal(r.Status, err)
		}
		if status, content, trailers, err := take(b); status != 200 || content != "hello" || trailers != "grpc-status: 0\r\n" || err != nil {
			t.Error(status, content, trailers, err)
		}
		if status, content, _, err := take(a); status != 204 || content != "" || err != nil {
			t.Error(status, content, err)
		}
		if !a.Reusable() || !b.Reusable() {
			t.Error("not complete")
		}
		a.Done()
		b.Done()
		if o.has("RST") || o.has("GOAWAY") {
			t.Error(o.heard)
		}
		if n := o.conn.Streams(); n != 0 {
			t.Error(n, "streams are open")
		}
	})
}

// TestGoAway: streams above the last one that the backend names are unprocessed
// and said to be, the others are answered, and no further one is opened.
func TestGoAway(t *testing.T) {
	originate(t, patient, func(o *origin) {
		a, b := o.ask("POST"), o.ask("POST")
		_ = o.fr.WriteGoAway(1, http2.ErrCodeNo, nil)
		if _, _, _, err := take(b); err == nil || !b.Unprocessed() || b.ResponseStarted() {
			t.Error(err, b.Unprocessed())
		}
		b.Close()
		if o.conn.Open(clock.Now()) != nil {
			t.Error("opened a stream behind GOAWAY")
		}
		o.head(1, true, ":status", "200")
		if status, _, _, err := take(a); status != 200 || err != nil || a.Unprocessed() {
			t.Error(status, err)
		}
		a.Done()
		synctest.Wait()
		if _, err := o.c.Write([]byte{0}); err == nil {
			t.Error("the connection goes on without a stream")
		}
		o.mu.Lock()
		defer o.mu.Unlock()
		if len(o.overs) != 1 || !strings.Contains(o.overs[0], "NO_ERROR") {
			t.Error(o.overs)
		}
	})
}

// TestRefused: REFUSED_STREAM says that a request was not processed, another
// code does not.
func TestRefused(t *testing.T) {
	originate(t, patient, func(o *origin) {
		for code, want := range map[http2.ErrCode]bool{http2.ErrCodeRefusedStream: true, http2.ErrCodeCancel: false} {
			s := o.ask("POST")
			_ = o.fr.WriteRSTStream(s.id, code)
			if _, _, _, err := take(s); err == nil || s.Unprocessed() != want || !s.ResponseStarted() {
				t.Error(code, err, s.Unprocessed())
			}
			s.Close()
		}
	})
}

// TestMostStreams: no more streams than the backend allows, and as many as it
// allows later.
func TestMostStreams(t *testing.T) {
	originate(t, patient, func(o *origin) {
		a, b := o.ask("GET"), o.ask("GET")
		if o.conn.Open(clock.Now()) != nil {
			t.Error("a third stream of two")
		}
		_ = o.fr.WriteSettings(http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: 3})
		synctest.Wait()
		if o.more != 1 || o.conn.Room() != 1 {
			t.Error(o.more, o.conn.Room())
		}
		_ = o.fr.WriteSettings(http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: 0})
		synctest.Wait()
		a.Close()
		b.Close()
		if o.conn.Open(clock.Now()) != nil {
			t.Error("a stream of none")
		}
	}, http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: 2})
}

// TestCancel: an exchange that is cut or closed before its end is reset at once,
// and what waits for it returns.
func TestCancel(t *testing.T) {
	originate(t, patient, func(o *origin) {
		s := o.ask("GET")
		done := make(chan error)
		go func() {
			var r message.Response
			done <- s.ReadHead(&r, false, 0)
		}()
		synctest.Wait()
		s.Cut()
		if err := <-done; err == nil {
			t.Error("no error")
		}
		if !o.has("RST 1 CANCEL") {
			t.Error(o.heard)
		}
		s.Close()
		u := o.upload()
		o.head(u.id, true, ":status", "413") // an early answer
		if status, _, _, err := take(u); status != 413 || err != nil || u.Reusable() {
			t.Error(status, err)
		}
		u.Close()
		if !o.has("RST 3 CANCEL") || o.count("RST 1 CANCEL") != 1 {
			t.Error(o.heard)
		}
	})
}

// TestWholeAnswer: an answer that is there in whole survives a reset of what the
// backend did not want to read.
func TestWholeAnswer(t *testing.T) {
	originate(t, patient, func(o *origin) {
		s := o.upload()
		o.head(1, false, ":status", "200")
		_ = o.fr.WriteData(1, true, []byte("enough"))
		_ = o.fr.WriteRSTStream(1, http2.ErrCodeNo)
		synctest.Wait()
		if err := s.WriteBody([]byte("x"), false); err == nil {
			t.Error("written behind the reset")
		}
		if status, content, _, err := take(s); status != 200 || content != "enough" || err != nil {
			t.Error(status, content, err)
		}
		s.Close()
	})
}

// TestSlowStream: a stream whose window is used up waits until its deadline and
// holds up no other; a stream that nobody reads holds up itself alone.
func TestSlowStream(t *testing.T) {
	originate(t, patient, func(o *origin) {
		slow, quick := o.upload(), o.upload()
		slow.SetWriteDeadline(clock.Now().Add(3 * time.Second))
		if err := slow.WriteBody(make([]byte, startWindow+1), false); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Error(err)
		}
		synctest.Wait()
		_ = o.fr.WriteWindowUpdate(0, 1<<20) // slow has used the connection's, too
		synctest.Wait()
		if err := quick.WriteBody(make([]byte, 1000), true); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		if o.data[1] != startWindow || o.data[3] != 1000 {
			t.Error(o.data)
		}
		o.head(1, false, ":status", "200")
		o.head(3, false, ":status", "200")
		for range firstWindow / maxFrame { // nobody reads slow
			_ = o.fr.WriteData(1, false, make([]byte, maxFrame))
		}
		const size = 2 * connWindow
		go func() {
			for sent := 0; sent < size; {
				o.mu.Lock()
				room := firstWindow + o.window[3] - sent
				o.mu.Unlock()
				if room < maxFrame {
					time.Sleep(time.Millisecond)
					continue
				}
				_ = o.fr.WriteData(3, sent+maxFrame == size, make([]byte, maxFrame))
				sent += maxFrame
			}
		}()
		if status, content, _, err := take(quick); status != 200 || len(content) != size || err != nil {
			t.Error(status, len(content), err)
		}
		slow.Close()
		quick.Close()
	})
}

// TestSilence: a backend that falls silent is asked, not more often than gRPC's
// servers bear, and one that does not answer is given up with its exchanges.
func TestSilence(t *testing.T) {
	originate(t, patient, func(o *origin) {
		s := o.ask("GET")
		answering := func() {
			for range 3 {
				time.Sleep(10*time.Second + time.Millisecond)
				synctest.Wait()
				if o.has("PING ack=false") {
					_ = o.fr.WritePing(true, healthPing)
				}
			}
		}
		answering()
		if n := o.count("PING ack=false"); n != 2 {
			t.Errorf("%d PINGs in 30 s, want 2", n)
		}
		time.Sleep(4 * time.Minute)
		if n := o.count("PING ack=false"); n != 2 {
			t.Errorf("%d PINGs in 4 minutes, want 2", n)
		}
		time.Sleep(90 * time.Second)
		if n := o.count("PING ack=false"); n != 3 {
			t.Errorf("%d PINGs, want 3", n)
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		var r message.Response
		if err := s.ReadHead(&r, false, soonest()); !errors.Is(err, ErrSilent) {
			t.Error(err)
		}
		s.Close()
	})
}

// TestGreeting: a backend that speaks something else, or nothing, is found out
// before a request is sent.
func TestGreeting(t *testing.T) {
	for name, c := range map[string]struct {
		says string
		want string
	}{
		"HTTP/1.1": {"HTTP/1.1 400 Bad Request\r\n\r\n", "bad_response: the backend does not speak HTTP/2"},
		"SSH":      {"SSH-2.0-OpenSSH_9.2\r\n", "bad_response: the backend does not speak HTTP/2"},
		"a PING":   {"\x00\x00\x08\x06\x00\x00\x00\x00\x0012345678", "bad_response: the backend does not speak HTTP/2"},
		"nothing":  {"", ErrNoHello.Error()},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client, server := net.Pipe()
				go func() { _, _ = io.Copy(io.Discard, server) }()
				if c.says != "" {
					go func() { _, _ = io.WriteString(server, c.says) }()
				}
				k := &Client{}
				nc := netconn.New(client)
				_, err := k.Start(nc, patient, &origin{}, clock.Now().Add(time.Second))
				if got := reasonOf(err); got != c.want {
					t.Errorf("got %q, want %q", got, c.want)
				}
				_ = nc.Close()
				server.Close()
				k.Close()
			})
		})
	}
}

// TestKeep: a connection without exchanges ends after its time, and says so.
func TestKeep(t *testing.T) {
	originate(t, ClientSettings{Keep: 30 * time.Second}, func(o *origin) {
		s := o.ask("GET")
		o.head(1, true, ":status", "200")
		if _, _, _, err := take(s); err != nil {
			t.Fatal(err)
		}
		s.Done()
		time.Sleep(29 * time.Second)
		if o.has("GOAWAY") {
			t.Error("ended early")
		}
		time.Sleep(2 * time.Second)
		if !o.has("GOAWAY NO_ERROR") || len(o.overs) != 1 {
			t.Error(o.heard, o.overs)
		}
	})
}

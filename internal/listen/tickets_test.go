// SPDX-License-Identifier: Apache-2.0

package listen

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirlb/weir/internal/weirtest"
)

// ticketServer is what matters here of one process's listener: a store and its
// keys.
type ticketServer struct {
	tickets *tickets
	store   *certStore
}

func newTicketServer(ca *weirtest.Authority, name string) *ticketServer {
	cert := ca.Issue(name)
	s := &ticketServer{newTickets(), storeOf(&tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12})}
	s.tickets.use(s.store, name)
	return s
}

// age lets time pass for the keys.
func (s *ticketServer) age(by time.Duration) {
	s.tickets.mu.Lock()
	for i := range s.tickets.keys {
		s.tickets.keys[i].born = s.tickets.keys[i].born.Add(-by)
	}
	s.tickets.mu.Unlock()
	s.tickets.turn()
}

// ticketClient is a client that keeps its session.
type ticketClient struct{ config *tls.Config }

func newTicketClient(ca *weirtest.Authority, version uint16) *ticketClient {
	return &ticketClient{&tls.Config{
		RootCAs: ca.Pool(), ServerName: "a.test", ClientSessionCache: tls.NewLRUClientSessionCache(1),
		MinVersion: version, MaxVersion: version,
	}}
}

// resumes connects, and reports whether that went on with a session from before.
func (c *ticketClient) resumes(t *testing.T, s *ticketServer) bool {
	t.Helper()
	near, far := net.Pipe()
	server := tls.Server(far, s.store.config)
	done := make(chan error, 1)
	go func() {
		_, err := server.Write([]byte("x"))
		done <- err
	}()
	client := tls.Client(near, c.config)
	if _, err := client.Read(make([]byte, 1)); err != nil { // the tickets of TLS 1.3 come before it
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	_, _ = near.Close(), far.Close()
	return client.ConnectionState().DidResume
}

// TestTicketsGoAlong: who was a client of the one process is one of the next, in
// both versions of TLS; who was one of another listener is not.
func TestTicketsGoAlong(t *testing.T) {
	ca := weirtest.NewAuthority(t)
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		t.Run(tls.VersionName(version), func(t *testing.T) {
			old, next, other := newTicketServer(ca, "a.test"), newTicketServer(ca, "a.test"), newTicketServer(ca, "a.test")
			c := newTicketClient(ca, version)
			if c.resumes(t, old) || !c.resumes(t, old) {
				t.Fatal("does not resume within one process")
			}
			if c.resumes(t, other) {
				t.Error("a ticket of one listener was taken by another")
			}
			c.resumes(t, old)
			if err := next.tickets.restore(old.tickets.export()); err != nil {
				t.Fatal(err)
			}
			if !c.resumes(t, next) {
				t.Error("does not resume in the next process")
			}
			// And the other way: the old one is still there for what it has.
			if !c.resumes(t, old) {
				t.Error("a ticket of the next process means nothing to the old one")
			}
		})
	}
}

// TestTicketLife: a ticket is good while its key is kept, through as many rotations
// as there are old keys, over an upgrade in between; then it is not, and a new one
// is given.
func TestTicketLife(t *testing.T) {
	ca := weirtest.NewAuthority(t)
	for rotations := range ticketOld + 3 {
		for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
			s, c := newTicketServer(ca, "a.test"), newTicketClient(ca, version)
			c.resumes(t, s)
			for i := range rotations {
				s.age(ticketRotation)
				if i == 1 {
					next := newTicketServer(ca, "a.test")
					if err := next.tickets.restore(s.tickets.export()); err != nil {
						t.Fatal(err)
					}
					s = next
				}
			}
			if got, want := c.resumes(t, s), rotations <= ticketOld; got != want {
				t.Errorf("%s: after %d rotations: resumes %v, want %v", tls.VersionName(version), rotations, got, want)
			}
			if !c.resumes(t, s) {
				t.Errorf("%s: after %d rotations no new ticket was given", tls.VersionName(version), rotations)
			}
		}
	}
}

// TestTicketRotation: keys are made by the clock, and forgotten by it.
func TestTicketRotation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newTickets()
		k.use(plainStore(), "web")
		begin := time.Now()
		for i := range 10 {
			list := k.export()
			if len(list) != min(i, ticketOld)+1 || list[0].Age != 0 || list[len(list)-1].Age != time.Duration(min(i, ticketOld))*ticketRotation {
				t.Fatalf("after %v: %d keys, ages %v to %v", time.Since(begin), len(list), list[0].Age, list[len(list)-1].Age)
			}
			time.Sleep(ticketRotation)
			synctest.Wait()
		}
		newest := k.export()[0].Key
		// The next process goes on at the same pace: a key is not older for it.
		time.Sleep(ticketRotation / 2)
		next := newTickets()
		next.use(plainStore(), "web")
		if err := next.restore(k.export()); err != nil {
			t.Fatal(err)
		}
		k.close()
		if got := next.export(); len(got) != ticketOld+1 || !bytes.Equal(got[0].Key, newest) || got[0].Age != ticketRotation/2 {
			t.Errorf("%d keys, the newest of %v", len(got), got[0].Age)
		}
		time.Sleep(ticketRotation / 2)
		synctest.Wait()
		if got := next.export(); bytes.Equal(got[0].Key, newest) || !bytes.Equal(got[1].Key, newest) {
			t.Error("no new key when it was due")
		}
		next.close()
		if got := k.export(); len(got) != ticketOld+1 || !bytes.Equal(got[0].Key, newest) {
			t.Error("keys were made after the end")
		}
	})
}

// TestTicketKeysRefused: what is no key is not used, nor what is too old.
func TestTicketKeysRefused(t *testing.T) {
	k := newTickets()
	defer k.close()
	if err := k.restore([]TicketKey{{make([]byte, 32), 0}}); err != nil || k.export() != nil {
		t.Error("keys of a listener without TLS")
	}
	k.use(plainStore(), "web")
	own := k.export()[0].Key
	good := TicketKey{bytes.Repeat([]byte{7}, 32), time.Hour}
	for name, list := range map[string][]TicketKey{
		"none":    nil,
		"short":   {good, {make([]byte, 31), 0}},
		"empty":   {{}},
		"unborn":  {good, {make([]byte, 32), -1}},
		"too old": {{make([]byte, 32), ticketLife}},
	} {
		err := k.restore(list)
		if got := k.export(); len(got) != 1 || !bytes.Equal(got[0].Key, own) {
			t.Errorf("%s: changed the keys, %v", name, err)
		}
	}
	many := make([]TicketKey, 50)
	for i := range many {
		many[i] = TicketKey{bytes.Repeat([]byte{byte(i)}, 32), time.Duration(i) * time.Minute}
	}
	if err := k.restore(many); err != nil || len(k.export()) != ticketOld+1 {
		t.Errorf("%v, %d keys", err, len(k.export()))
	}
	for _, text := range []string{fmt.Sprint(good), fmt.Sprintf("%v %+v %#v %s", good, good, good, good), fmt.Sprintf("%+v", []TicketKey{good})} {
		if strings.Contains(text, "7") {
			t.Errorf("a key was printed: %s", text)
		}
	}
}

// TestTicketsOverChange: clients resume after the TLS settings of a running
// listener were changed, and its keys are what another process gets.
func TestTicketsOverChange(t *testing.T) {
	s := startSecure(t, Options{}, []string{"a.test"})
	c := &tls.Config{ServerName: "a.test", ClientSessionCache: tls.NewLRUClientSessionCache(1)}
	if _, err := s.hello(t, c); err != nil {
		t.Fatal(err)
	}
	keys := s.TicketKeys()
	cert, key := s.ca.Write(s.dir, "b.test", s.ca.Issue("b.test"))
	opt := s.set.Load().opt
	changed := *opt.TLS
	changed.Certificates = append(changed.Certificates[:1:1], CertFile{cert, key})
	changed.MinVersion = tls.VersionTLS13
	opt.TLS = &changed
	commit, _, err := s.Change(opt)
	if err != nil {
		t.Fatal(err)
	}
	commit()
	if st, err := s.hello(t, c); err != nil || !st.DidResume {
		t.Errorf("resumed %v, %v", st.DidResume, err)
	}
	if got := s.TicketKeys(); len(got) != 1 || !bytes.Equal(got[0].Key, keys[0].Key) {
		t.Error("other keys after a change")
	}
	next := startSecure(t, Options{}, []string{"a.test"})
	next.ca = s.ca // whom the client believes
	if err := next.SetTicketKeys(keys); err != nil {
		t.Fatal(err)
	}
	if st, err := next.hello(t, c); err != nil || !st.DidResume {
		t.Errorf("in the next process: resumed %v, %v", st.DidResume, err)
	}
}

// storeOf is a store of a configuration, without files.
func storeOf(c *tls.Config) *certStore {
	s := &certStore{config: c}
	s.now.Store(&certSet{})
	return s
}

func plainStore() *certStore { return storeOf(&tls.Config{}) }

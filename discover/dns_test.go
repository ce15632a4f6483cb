// SPDX-License-Identifier: Apache-2.0

package discover

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestAddresses(t *testing.T) {
	many := make([]string, 300)
	var all []string
	for i := range many {
		many[i] = fmt.Sprintf("app.test. 60 A 10.1.%d.%d", i/250, i%250+1)
		all = append(all, fmt.Sprintf("10.1.%d.%d:80", i/250, i%250+1))
	}
	slices.Sort(all)
	for _, c := range []struct {
		name  string
		zone  []string
		setup func(*server)
		kind  string
		want  string // endpoints
		err   string // part of the error; "": none
		next  time.Duration
		asked []string // some of the questions
	}{
		{"both families", []string{"app.test. 60 A 10.0.0.2", "app.test. 30 A 10.0.0.1", "app.test. 90 AAAA fd00::1"}, nil, "", "10.0.0.1:80 10.0.0.2:80 [fd00::1]:80", "", 30 * time.Second, nil},
		{"one family", []string{"app.test. 60 A 10.0.0.2", "app.test. 20 AAAA fd00::1"}, nil, "a", "10.0.0.2:80", "", time.Minute, nil},
		{"the other", []string{"app.test. 60 A 10.0.0.2", "app.test. 20 AAAA fd00::1"}, nil, "aaaa", "[fd00::1]:80", "", 20 * time.Second, nil},
		{"an alias has a time to live too", []string{"app.test. 7 CNAME b.test.", "b.test. 60 A 10.0.0.1"}, nil, "", "10.0.0.1:80", "", 7 * time.Second, nil},
		{"TTL 0", []string{"app.test. 0 A 10.0.0.1"}, nil, "", "10.0.0.1:80", "", 0, nil},
		{"TTL beyond all", []string{"app.test. 4000000000 A 10.0.0.1"}, nil, "", "10.0.0.1:80", "", 0, nil},
		{"TTL above the cap", []string{"app.test. 86400 A 10.0.0.1"}, nil, "", "10.0.0.1:80", "", ttlCap, nil},
		{"300 records come over TCP", many, nil, "a", strings.Join(all, " "), "", time.Minute, []string{"app.test. A udp", "app.test. A tcp"}},
		{"NXDOMAIN", nil, nil, "", "", "no endpoints", -1, nil},
		{"no address", []string{"app.test. 60 TXT x"}, nil, "", "", "no endpoints", -1, nil},
		{"SERVFAIL", []string{"app.test. 60 A 10.0.0.1"}, func(s *server) { s.code("app.test.", dns.RcodeServerFailure) }, "", "", "SERVFAIL", -1, nil},
		{"silence", []string{"app.test. 60 A 10.0.0.1"}, func(s *server) { s.code("app.test.", -1) }, "", "", "no answer in time", -1, nil},
		{"one family fails", []string{"app.test. 60 A 10.0.0.1"}, func(s *server) { s.code("app.test. AAAA", dns.RcodeServerFailure) }, "", "10.0.0.1:80", "AAAA of app.test.: SERVFAIL", -1, nil},
		{"a server older than EDNS", []string{"app.test. 60 A 10.0.0.1"}, func(s *server) { s.change(func() { s.noEDNS = true }) }, "", "10.0.0.1:80", "", time.Minute, nil},
		{"an answer to another question", []string{"app.test. 60 A 10.0.0.1"}, func(s *server) {
			s.change(func() { s.mangle = func(m *dns.Msg) { m.Question[0].Name = "evil.test." } })
		}, "", "", "another question", -1, nil},
		{"records of others", []string{"app.test. 60 A 10.0.0.1"}, func(s *server) {
			s.change(func() {
				s.mangle = func(m *dns.Msg) {
					rr, _ := dns.NewRR("evil.test. 60 A 10.6.6.6")
					m.Answer = append(m.Answer, rr)
				}
			})
		}, "", "10.0.0.1:80", "", time.Minute, nil},
		{"truncated over TCP too", []string{"app.test. 60 A 10.0.0.1"}, func(s *server) {
			s.change(func() { s.mangle = func(m *dns.Msg) { m.Truncated = true } })
		}, "", "", "truncated", -1, nil},
		{"addresses of nobody", []string{"app.test. 60 A 0.0.0.0", "app.test. 60 A 224.0.0.1", "app.test. 60 A 10.0.0.1"}, nil, "", "10.0.0.1:80", "no server's address", -1, nil},
		{"addresses in the clothes of IPv6", []string{"app.test. 60 AAAA ::ffff:10.0.0.1"}, nil, "", "10.0.0.1:80", "", time.Minute, nil},
		{"aliases in a circle", []string{"app.test. 60 CNAME b.test.", "b.test. 60 CNAME app.test."}, nil, "", "", "no endpoints", -1, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := newServer(t, c.zone...)
			if c.setup != nil {
				c.setup(s)
			}
			d := &DNS{Name: "app.test", Type: c.kind, Port: 80, Servers: []string{s.addr}, Timeout: 300 * time.Millisecond}
			got, f := look(t, d, resolverFor(d))
			if got != c.want || (f.Err == nil) != (c.err == "") || c.err != "" && !strings.Contains(f.Err.Error(), c.err) {
				t.Errorf("%q, %v; want %q, %q", got, f.Err, c.want, c.err)
			}
			if c.err == "no endpoints" && !errors.Is(f.Err, ErrEmpty) {
				t.Errorf("%v is not ErrEmpty", f.Err)
			}
			if c.next >= 0 && f.Next != c.next {
				t.Errorf("again after %s, want %s", f.Next, c.next)
			}
			asked := s.questions()
			for _, q := range c.asked {
				if !slices.Contains(asked, q) {
					t.Errorf("not asked: %s among %q", q, asked)
				}
			}
		})
	}
}

func TestServices(t *testing.T) {
	for _, c := range []struct {
		name string
		zone string
		want string
		err  string
	}{
		{"weights and priorities", "10 5 80 a|20 7 81 b|a A 10.0.0.1|b A 10.0.0.2", "10.0.0.1:80*5 10.0.0.2:81*7/1", ""},
		{"weights of zero get little", "0 0 80 a|0 100 80 b|a A 10.0.0.1|b A 10.0.0.2", "10.0.0.1:80 10.0.0.2:80*100", ""},
		{"large weights", "0 65535 80 a|0 1 80 b|a A 10.0.0.1|b A 10.0.0.2", "10.0.0.1:80*1000 10.0.0.2:80", ""},
		{"a weight is for all addresses of a target", "0 10 80 a|0 20 80 b|a A 10.0.0.1|a A 10.0.0.3|b A 10.0.0.2", "10.0.0.1:80*250 10.0.0.2:80*1000 10.0.0.3:80*250", ""},
		{"two names of one server", "0 10 80 a|0 20 80 b|5 1 80 c|a A 10.0.0.1|b A 10.0.0.1|c A 10.0.0.1", "10.0.0.1:80*30", ""},
		{"two ports of one server", "0 10 80 a|0 20 81 a|a A 10.0.0.1", "10.0.0.1:80*10 10.0.0.1:81*20", ""},
		{"a target that is not there", "0 10 80 a|0 20 80 b|a A 10.0.0.1", "10.0.0.1:80*10", "target b.test.: no endpoints"},
		{"tiers are counted among those that are there", "1 10 80 a|2 20 80 b|b A 10.0.0.1", "10.0.0.1:80*20", "target a.test."},
		{"not available", "0 0 0 .", "", "no endpoints"},
		{"IPv6", "0 10 80 a|a AAAA fd00::1", "[fd00::1]:80*10", ""},
	} {
		for _, bare := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, bare %v", c.name, bare), func(t *testing.T) {
				t.Parallel()
				s := newServer(t)
				var zone []string
				for part := range strings.SplitSeq(c.zone, "|") {
					w := strings.Fields(part)
					switch {
					case w[0] >= "a":
						zone = append(zone, fmt.Sprintf("%s.test. 60 %s %s", w[0], w[1], w[2]))
					case w[3] == ".":
						zone = append(zone, "_http._tcp.test. 60 SRV 0 0 0 .")
					default:
						zone = append(zone, fmt.Sprintf("_http._tcp.test. 60 SRV %s %s %s %s.test.", w[0], w[1], w[2], w[3]))
					}
				}
				s.change(func() { s.zone, s.bare = zone, bare })
				d := &DNS{Name: "_http._tcp.test", Servers: []string{s.addr}, Timeout: 300 * time.Millisecond}
				got, f := look(t, d, resolverFor(d))
				if got != c.want || (f.Err == nil) != (c.err == "") || c.err != "" && !strings.Contains(f.Err.Error(), c.err) {
					t.Errorf("%q, %v; want %q, %q", got, f.Err, c.want, c.err)
				}
			})
		}
	}
}

// TestStandIn: what cannot be asked for is stood in for by what was known, and
// told to be so; nothing is remembered instead of a whole answer.
func TestStandIn(t *testing.T) {
	s := newServer(t, "app.test. 60 A 10.0.0.1", "app.test. 60 AAAA fd00::1",
		"_x._tcp.test. 60 SRV 0 1 80 a.test.", "_x._tcp.test. 60 SRV 0 1 80 b.test.", "a.test. 60 A 10.0.0.1", "b.test. 60 A 10.0.0.2")
	s.change(func() { s.bare = true })
	d := &DNS{Name: "app.test", Port: 80, Servers: []string{s.addr}}
	r := resolverFor(d)
	if got, f := look(t, d, r); got != "10.0.0.1:80 [fd00::1]:80" || f.Err != nil {
		t.Fatal(got, f.Err)
	}
	s.code("app.test. AAAA", dns.RcodeServerFailure)
	if got, f := look(t, d, r); got != "10.0.0.1:80 [fd00::1]:80" || f.Err == nil {
		t.Fatal(got, f.Err)
	}
	s.code("app.test. A", dns.RcodeServerFailure)
	if got, f := look(t, d, r); got != "" || f.Err == nil {
		t.Fatal("a memory was told as a finding", got, f.Err)
	}
	x := &DNS{Name: "_x._tcp.test", Servers: []string{s.addr}}
	rx := resolverFor(x)
	if got, f := look(t, x, rx); got != "10.0.0.1:80 10.0.0.2:80" || f.Err != nil {
		t.Fatal(got, f.Err)
	}
	s.code("b.test.", dns.RcodeServerFailure)
	if got, f := look(t, x, rx); got != "10.0.0.1:80 10.0.0.2:80" || f.Err == nil {
		t.Fatal(got, f.Err)
	}
	s.code("_x._tcp.test.", dns.RcodeServerFailure)
	if got, f := look(t, x, rx); got != "" || f.Err == nil {
		t.Fatal(got, f.Err)
	}
}

// TestServersInOrder: a server that fails is passed over, one that says no is
// believed.
func TestServersInOrder(t *testing.T) {
	first, second := newServer(t, "app.test. 60 A 10.0.0.1"), newServer(t, "app.test. 60 A 10.0.0.2")
	d := &DNS{Name: "app.test", Type: "a", Port: 80, Servers: []string{first.addr, second.addr}, Timeout: 200 * time.Millisecond}
	for _, c := range []struct {
		code int
		want string
	}{{0, "10.0.0.1:80"}, {dns.RcodeServerFailure, "10.0.0.2:80"}, {dns.RcodeRefused, "10.0.0.2:80"}, {-1, "10.0.0.2:80"}, {dns.RcodeNameError, ""}} {
		first.code("app.test.", c.code)
		if got, f := look(t, d, resolverFor(d)); got != c.want {
			t.Errorf("code %d: %q, %v; want %q", c.code, got, f.Err, c.want)
		}
	}
}

// TestSystemFiles: search list, ndots and the hosts file count, and are read
// again when they have changed.
func TestSystemFiles(t *testing.T) {
	dir := t.TempDir()
	s := newServer(t, "app.b.test. 60 A 10.0.0.1", "x.y. 60 A 10.0.0.9", "x.y.b.test. 60 A 10.0.0.8", "app. 60 A 10.0.0.7", "app.c.test. 60 A 10.0.0.6")
	hosts, resolv := filepath.Join(dir, "hosts"), filepath.Join(dir, "resolv.conf")
	write := func(path, text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(hosts, "")
	server := s.addr
	ask := func(name, search string) (string, Finding) {
		t.Helper()
		write(resolv, "nameserver 127.0.0.1\n"+search+"\n")
		d := &DNS{Name: name, Port: 80, resolv: resolv, hosts: hosts}
		r := resolverFor(d)
		// The port of name servers cannot be said in the file.
		c := r.read()
		c.client.servers = []string{server}
		a := r.ask(t.Context(), c, []question{{d.Name, d.wants()}})[0]
		addrs, _ := addresses(a.records)
		return fmt.Sprint(addrs), Finding{Err: a.err, Next: a.ttl}
	}
	for _, c := range []struct{ name, search, want string }{
		{"app", "search a.test b.test", "[10.0.0.1]"},
		{"app", "search c.test b.test", "[10.0.0.6]"},
		{"app.", "search a.test b.test", "[10.0.0.7]"},
		{"x.y", "search b.test", "[10.0.0.9]"},
		{"x.y", "search b.test\noptions ndots:2", "[10.0.0.8]"},
		{"x.y.", "search b.test\noptions ndots:5", "[10.0.0.9]"},
	} {
		if got, f := ask(c.name, c.search); got != c.want || f.Err != nil {
			t.Errorf("%s with %q: %s, %v; want %s", c.name, c.search, got, f.Err, c.want)
		}
	}
	// A failure on the way is no reason to take another service of that name.
	s.code("app.c.test.", dns.RcodeServerFailure)
	if got, f := ask("app", "search c.test b.test"); got != "[]" || f.Err == nil {
		t.Errorf("%s, %v", got, f.Err)
	}
	write(hosts, "# none\n10.9.9.9 App app.b.test # here\nfd00::9 app\nnonsense app\n")
	s.questions()
	if got, f := ask("app", ""); got != "[10.9.9.9 fd00::9]" || f.Next != ttlHosts || len(s.questions()) > 0 {
		t.Errorf("%s, %+v", got, f)
	}
}

// TestRunFollows: the source asks again when the time to live is over, and sooner
// after a failure.
func TestRunFollows(t *testing.T) {
	s := newServer(t, "app.test. 0 A 10.0.0.1")
	found := watch(t, &DNS{Name: "app.test", Type: "a", Port: 80, Servers: []string{s.addr}, Timeout: 200 * time.Millisecond})
	expect := func(want string, next time.Duration) {
		t.Helper()
		f := <-found
		if said(f.Endpoints) != want || f.Next != next {
			t.Fatalf("%q, %v, again after %s; want %q, %s", said(f.Endpoints), f.Err, f.Next, want, next)
		}
	}
	expect("10.0.0.1:80", time.Second)
	s.set("app.test. 300 A 10.0.0.2")
	s.code("app.test.", dns.RcodeServerFailure)
	began := time.Now()
	expect("", time.Second)
	s.code("app.test.", 0)
	expect("10.0.0.2:80", 5*time.Minute)
	if took := time.Since(began); took > 4*time.Second {
		t.Errorf("it took %s to follow", took)
	}
}

// TestRunRefuses: settings that can never work end Run, all others do not.
func TestRunRefuses(t *testing.T) {
	for _, d := range []*DNS{{}, {Name: "a"}, {Name: "a", Port: 70000}, {Name: "a", Port: 1, Type: "mx"}} {
		if err := d.Run(t.Context(), func(Finding) { t.Error("reported") }); err == nil {
			t.Errorf("%+v runs", d)
		}
	}
}

func TestBackoff(t *testing.T) {
	for fails, want := range []float64{1, 1, 2, 4, 5, 5, 5} {
		if got := backoff(fails).Seconds(); got != want {
			t.Errorf("after %d: %g s, want %g", fails, got, want)
		}
	}
	if backoff(1e9) != retryMost {
		t.Error("overflow")
	}
}

// TestRunEndsAtOnce: a question that nobody answers does not hold the end up.
func TestRunEndsAtOnce(t *testing.T) {
	s := newServer(t, "app.test. 0 A 10.0.0.1")
	s.code("app.test.", -1)
	for _, d := range []*DNS{
		{Name: "app.test", Port: 80, Servers: []string{s.addr}, Timeout: time.Minute},
		{Name: "app.test", Port: 80, Servers: []string{"192.0.2.1:53"}, Timeout: time.Minute}, // TEST-NET-1: nobody
	} {
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() {
			ended <- d.Run(ctx, func(f Finding) { t.Errorf("reported %+v", f) })
		}()
		if d.Servers[0] == s.addr {
			for len(s.questions()) == 0 {
				time.Sleep(time.Millisecond)
			}
		}
		cancel()
		began := time.Now()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		if took := time.Since(began); took > 2*time.Second {
			t.Errorf("it took %s to end", took)
		}
	}
}

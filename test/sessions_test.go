// SPDX-License-Identifier: Apache-2.0

package test

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

// openList is what tests look at of /api/v1/sessions.
type openList struct {
	Total    int `json:"total"`
	Matched  int `json:"matched"`
	Sessions []struct {
		Kind, Protocol, Listener, Route, Pool, Backend, Client, Name string
		Ending                                                       bool
	} `json:"sessions"`
}

// TestSessionsListed: whatever lasts is listed while it is open, with its client, the
// oldest first, and is gone from the list when it has ended.
func TestSessionsListed(t *testing.T) {
	events := &http.Server{Addr: freeAddr(t), ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, "data: 1\n\n")
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	})}
	ln, err := net.Listen("tcp", events.Addr)
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = events.Serve(ln) }()
	t.Cleanup(func() { _ = events.Close() })
	db, dns, ws := startTalker(t), startPacketeer(t), newWSBackend(t)
	web, tcp, udp := freeAddr(t), freeAddr(t), freeUDP(t)
	var chat *wsClients
	t.Cleanup(func() { // when weir has ended
		if chat != nil {
			chat.last.Store(true)
			chat.all.Wait()
		}
	})
	w := startLive(t, binary, func(dir string) string {
		return fmt.Sprintf(`admin: {bind: "unix:%s/admin.sock"}
shutdown: {delay: none, deadline: 2s, spread: 500ms}
listeners:
  web: {bind: %q, routes: [{name: feed, match: {path: /events}, pool: feed}, {name: chat, pool: chat}]}
  db: {bind: %q, protocol: tcp, pool: db}
  dns: {bind: %q, protocol: udp, pool: dns}
pools:
  feed: {backends: ["http://%s"], health: {active: off}}
  chat: {backends: ["http://%s"], health: {active: off}}
  db: {backends: ["tcp://%s"], drain: {deadline: none}}
  dns: {backends: ["udp://%s"]}
`, dir, web, tcp, udp, events.Addr, ws.addr, db.addr, dns.addr)
	})
	list := func(query string) (l openList) {
		t.Helper()
		w.decode("/api/v1/sessions"+query, &l)
		return l
	}
	if out := w.must("sessions"); out != "Nothing that lasts is open.\n" {
		t.Errorf("of none: %s", out)
	}

	// One of each kind, one after the other.
	s, err := openChat(tcp)
	if err != nil {
		t.Fatal(err)
	}
	f, err := openFlow(udp)
	if err == nil {
		err = f.ask(20 * time.Second)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer f.c.Close()
	chat = startWS(web, 1)
	eventually(t, 10*time.Second, "the WebSocket", func() bool { return chat.open.Load() == 1 })
	resp, err := http.Get("http://" + web + "/events")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	eventually(t, 10*time.Second, "all are listed", func() bool { return list("").Total == 4 })

	all := list("")
	var got []string
	for _, x := range all.Sessions {
		client, _, err := net.SplitHostPort(x.Client)
		if err != nil || x.Ending {
			t.Errorf("%+v: %v", x, err)
		}
		got = append(got, strings.Join([]string{x.Kind, x.Protocol, x.Listener, x.Route, x.Pool, x.Backend, client, x.Name}, " "))
	}
	want := []string{
		"session tcp db default db " + db.addr + " 127.0.0.1 ",
		"flow udp dns default dns " + dns.addr + " 127.0.0.1 ",
		"tunnel http web chat chat " + ws.addr + " 127.0.0.1 h",
		"stream http web feed feed " + events.Addr + " 127.0.0.1 " + web,
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("listed\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if x := all.Sessions[0]; x.Client != s.c.LocalAddr().String() {
		t.Errorf("the session is of %s, not of %s", x.Client, s.c.LocalAddr())
	}
	for query, kinds := range map[string]string{
		"?pool=db": "session", "?listener=web": "tunnel stream", "?backend=" + dns.addr: "flow", "?limit=1": "session",
		"?client=127.0.0.0/8&limit=2": "session flow", "?client=192.0.2.1": "",
	} {
		var got []string
		for _, x := range list(query).Sessions {
			got = append(got, x.Kind)
		}
		if strings.Join(got, " ") != kinds {
			t.Errorf("%s: %v, want %s", query, got, kinds)
		}
	}
	if out := w.must("sessions", "--listener", "web"); !strings.HasPrefix(out, "2 of the 4 that are open\nCLIENT ") || strings.Count(out, "\n") != 4 {
		t.Errorf("the command says\n%s", out)
	}
	if out, code := w.run("sessions", "--pool", "dp"); code != 1 || !strings.Contains(out, "no such pool: dp; there is chat, db, dns, feed") {
		t.Errorf("of an unknown pool: %d, %s", code, out)
	}

	// Who goes is listed no more.
	chat.last.Store(true)
	_ = s.c.Close()
	_ = events.Close()
	eventually(t, 10*time.Second, "two have ended", func() bool { return list("").Total == 2 })
}

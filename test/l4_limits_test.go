// SPDX-License-Identifier: Apache-2.0

package test

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// wasReset reports that a session was ended by a reset, which may come before its
// first word is written.
func wasReset(err error) bool {
	return errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// hold opens sessions that have to come about.
func hold(t *testing.T, addr string, n int) []*chat {
	t.Helper()
	var all []*chat
	for range n {
		s, err := openChat(addr)
		if err != nil {
			t.Fatalf("session %d: %v", len(all), err)
		}
		t.Cleanup(func() { _ = s.c.Close() })
		all = append(all, s)
	}
	return all
}

// turnedAway expects a session to be reset.
func turnedAway(t *testing.T, addr, what string) {
	t.Helper()
	if s, err := openChat(addr); !wasReset(err) {
		t.Errorf("%s: %+v, %v; want a reset", what, s, err)
	}
}

// TestSessionLimits: at each ceiling the next session is reset, or waits where there
// is a queue; the reason is counted, those that are open go on, a place that is given
// back is used, and no backend is blamed.
func TestSessionLimits(t *testing.T) {
	a, b := startTalker(t), startTalker(t)
	both := fmt.Sprintf(`"tcp://%s", "tcp://%s"`, a.addr, b.addr)
	at := map[string]string{}
	for _, name := range []string{"all", "each", "routed", "slots", "hasty", "conns", "total"} {
		at[name] = freeAddr(t)
	}
	log := filepath.Join(t.TempDir(), "access.log")
	w := startRun(t, fmt.Sprintf(`admin: {bind: "${ADMIN}"}
log: {access: {path: %q}}
listeners:
  l:      {bind: "${LISTEN}", protocol: tcp, pool: app}
  all:    {bind: %q, protocol: tcp, limits: {max_connections: 2}, pool: app}
  each:   {bind: %q, protocol: tcp, limits: {max_connections_per_client: 2}, pool: app}
  routed: {bind: %q, protocol: tcp, routes: [{limits: {requests: 2}, pool: app}]}
  slots:  {bind: %q, protocol: tcp, pool: slots}
  hasty:  {bind: %q, protocol: tcp, pool: hasty}
  conns:  {bind: %q, protocol: tcp, pool: conns}
  total:  {bind: %q, protocol: tcp, pool: total}
pools:
  app:   {backends: [%[9]s]}
  slots: {backends: [%[9]s], limits: {requests: 1, queue: 1, queue_timeout: 1m}}
  hasty: {backends: [%[9]s], limits: {requests: 1, queue: 1, queue_timeout: 50ms}}
  conns: {backends: [%[9]s], limits: {connections: 1}}
  total: {backends: [%[9]s], limits: {pool_requests: 2, queue: 0}}
`, log, at["all"], at["each"], at["routed"], at["slots"], at["hasty"], at["conns"], at["total"], both))
	reason := func(name, reason string) {
		t.Helper()
		eventually(t, 10*time.Second, name+" counts "+reason, func() bool { return w.sessions(t, name, reason) > 0 })
	}
	for name, why := range map[string]string{
		"all": "conn_limit", "each": "conn_limit", "routed": "route_full", "hasty": "queue_timeout", "conns": "conn_limit", "total": "queue_full",
	} {
		open := hold(t, at[name], 2)
		turnedAway(t, at[name], name)
		reason(name, why)
		for _, s := range open {
			if err := s.say("go on"); err != nil {
				t.Errorf("%s: a session within the limit: %v", name, err)
			}
		}
		_ = open[0].c.Close()
		eventually(t, 10*time.Second, name+" has a place again", func() bool {
			s, err := openChat(at[name])
			if err == nil {
				t.Cleanup(func() { _ = s.c.Close() })
			}
			return err == nil
		})
	}

	open := hold(t, at["slots"], 2)
	waiting := make(chan error, 1)
	go func() {
		s, err := openChat(at["slots"])
		if err == nil {
			_ = s.c.Close()
		}
		waiting <- err
	}()
	eventually(t, 10*time.Second, "one waits", func() bool { return w.sum(t, "weir_queue_length", `"slots"`) == 1 })
	turnedAway(t, at["slots"], "behind a full queue")
	reason("slots", "queue_full")
	_ = open[0].c.Close()
	if err := <-waiting; err != nil {
		t.Errorf("who waited: %v", err)
	}
	w.blameless(t)
	for _, pool := range []string{"app", "slots", "hasty", "conns", "total"} {
		for id, s := range w.backends(t, pool) {
			if s.Health != "healthy" && s.Health != "unknown" {
				t.Errorf("%s of %s is %s: %s", id, pool, s.Health, s.Reason)
			}
		}
	}
	text := string(read(t, log))
	for _, why := range []string{"route_full", "queue_timeout", "queue_full", "conn_limit"} {
		if !strings.Contains(text, `"reason":"`+why+`"`) {
			t.Errorf("the access log has no %s", why)
		}
	}
	if !strings.Contains(w.out.String(), "connection refused at a ceiling") {
		t.Error("the log says nothing of connections that were refused")
	}
}

// sessions returns how many sessions of a listener ended for a reason.
func (w *weir) sessions(t *testing.T, listener, reason string) (n float64) {
	t.Helper()
	for line := range strings.Lines(w.metrics(t)) {
		if strings.HasPrefix(line, "weir_sessions_total{") && strings.Contains(line, fmt.Sprintf("listener=%q", listener)) && strings.Contains(line, fmt.Sprintf("reason=%q", reason)) {
			f := strings.Fields(line)
			n += parse(t, f[len(f)-1])
		}
	}
	return n
}

// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"
)

// upgrader is a Controller that can hand over.
type upgrader struct {
	*fake
	*source

	guard  sync.Mutex
	asked  []string // binaries
	answer error
}

var upgraded = Upgrade{Binary: "/usr/local/bin/weir", PID: 8, Version: "v2", Previous: Process{7, "v1"}, TookMS: 41.5}

func (u *upgrader) UpgradeBinary(_ context.Context, binary string) (Upgrade, error) {
	u.guard.Lock()
	defer u.guard.Unlock()
	u.asked = append(u.asked, binary)
	if u.answer != nil {
		return Upgrade{}, u.answer
	}
	return upgraded, nil
}

func (u *upgrader) Patch(string, string, Patch) (Backend, error) {
	return Backend{}, fmt.Errorf("%w: ask again in a moment", ErrUpgrading)
}

func TestUpgradeCall(t *testing.T) {
	u := &upgrader{fake: newFake(), source: &source{epoch: "e"}}
	s := serve(t, Options{Controller: u})
	post := func(body string) request {
		return request{method: "POST", path: "/api/v1/upgrade", body: body, header: asJSON}
	}
	w, body := send(t, s, post(`{}`))
	var got Upgrade
	if err := json.Unmarshal([]byte(body), &got); err != nil || w.StatusCode != 200 || got != upgraded || !w.Close {
		t.Errorf("%d %s %v, closes: %v", w.StatusCode, body, err, w.Close)
	}
	for _, c := range []struct {
		q      request
		status int
		code   string
	}{
		{post(``), 400, CodeBadBody},
		{post(`{"binary":7}`), 400, CodeBadBody},
		{post(`{"path":"/bin/sh"}`), 400, CodeBadBody},
		{post(`{} {}`), 400, CodeBadBody},
		{post(`{"binary":"/bin/sh"}`), 403, CodeForbidden}, // without a token
		{request{path: "/api/v1/upgrade"}, 405, CodeBadMethod},
		{request{method: "POST", path: "/api/v1/upgrade", body: `{}`, header: map[string]string{"Content-Type": "text/plain"}}, 415, CodeNotJSON},
		{request{method: "POST", path: "/api/v1/upgrade", body: `{}`, header: map[string]string{"Content-Type": "application/json", "Origin": "http://elsewhere"}}, 403, CodeCrossOrigin},
		{request{method: "PATCH", path: "/api/v1/pools/app/backends/x", body: `{"weight":1}`, header: asJSON}, 409, CodeUpgrading},
	} {
		w, body := send(t, s, c.q)
		var p Problem
		if err := json.Unmarshal([]byte(body), &p); err != nil || w.StatusCode != c.status || p.Code != c.code {
			t.Errorf("%s %s: %d %s", c.q.method, c.q.body, w.StatusCode, body)
		}
	}
	for err, want := range map[error]struct {
		status int
		code   string
	}{
		ErrUpgrading:        {409, CodeUpgrading},
		ErrNoUpgrade:        {409, CodeNoUpgrade},
		ErrUpgradeFailed:    {422, CodeUpgradeFailed},
		errors.New("other"): {500, CodeInternal},
	} {
		u.answer = fmt.Errorf("%w: because", err)
		w, body := send(t, s, post(`{}`))
		if w.StatusCode != want.status || !strings.Contains(body, want.code) || !strings.Contains(body, "because") {
			t.Errorf("%v: %d %s", err, w.StatusCode, body)
		}
	}
	if len(u.asked) != 5 {
		t.Errorf("asked for %q", u.asked)
	}
}

// TestUpgradeNamesBinary: with a token a binary may be named, and the client
// hands over what comes back.
func TestUpgradeNamesBinary(t *testing.T) {
	u := &upgrader{fake: newFake(), source: &source{epoch: "e"}}
	s := serve(t, Options{Controller: u, TokenFile: tokenFile(t, testToken)})
	c := client(t, ClientOptions{Address: s.Addr().String(), TokenFile: tokenFile(t, testToken)})
	if got, err := c.Upgrade(t.Context(), "/opt/weir"); err != nil || got != upgraded {
		t.Errorf("%+v, %v", got, err)
	}
	u.answer = fmt.Errorf("%w: exit status 1", ErrUpgradeFailed)
	var p *Problem
	if _, err := c.Upgrade(t.Context(), ""); !errors.As(err, &p) || p.Code != CodeUpgradeFailed {
		t.Errorf("%v", err)
	}
	if want := []string{"/opt/weir", ""}; !reflect.DeepEqual(u.asked, want) {
		t.Errorf("asked for %q, want %q", u.asked, want)
	}
}

// TestYield: who yields keeps nobody: feeds end, connections close with their
// answers, and after Return they stay open.
func TestYield(t *testing.T) {
	u := &upgrader{fake: newFake(), source: &source{epoch: "e"}}
	u.add("one")
	s := serve(t, Options{Controller: u})
	url := "http://" + s.Addr().String()
	tr := &http.Transport{}
	t.Cleanup(tr.CloseIdleConnections)
	keep := &http.Client{Transport: tr, Timeout: 20 * time.Second}
	closes := func() bool {
		t.Helper()
		w, err := keep.Get(url + "/livez")
		if err != nil {
			t.Fatal(err)
		}
		defer w.Body.Close()
		return w.Close
	}
	if closes() {
		t.Error("closes before Yield")
	}
	w, err := keep.Get(url + "/api/v1/events")
	if err != nil {
		t.Fatal(err)
	}
	defer w.Body.Close()
	in := bufio.NewScanner(w.Body)
	for in.Scan() && !strings.HasPrefix(in.Text(), "data:") {
	}
	s.Yield()
	for in.Scan() { // to its end, which comes
	}
	if err := in.Err(); err != nil {
		t.Errorf("the feed: %v", err)
	}
	if !closes() {
		t.Error("stays open after Yield")
	}
	s.Return()
	if closes() {
		t.Error("closes after Return")
	}
	s.Release()
	if _, err := (&http.Client{Transport: &http.Transport{}}).Get(url + "/livez"); err == nil {
		t.Error("accepts after Release")
	}
}

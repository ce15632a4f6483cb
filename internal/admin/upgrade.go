// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"sync"
	"time"
)

// Upgrader is a Controller that can hand over to another binary.
type Upgrader interface {
	// UpgradeBinary starts a binary (empty: the path that this process was started
	// from) and returns when that serves, or when it is dead and this process
	// serves on. Errors: ErrUpgrading, ErrNoUpgrade, and ErrUpgradeFailed with the
	// reason.
	UpgradeBinary(ctx context.Context, binary string) (Upgrade, error)
}

// Errors about upgrades, possibly wrapped. Any method of a Controller that
// changes something may return ErrUpgrading.
var (
	ErrUpgrading     = errors.New("an upgrade is under way")
	ErrNoUpgrade     = errors.New("cannot upgrade")
	ErrUpgradeFailed = errors.New("the upgrade failed, the old process serves on")
)

// Upgrade says who took over.
type Upgrade struct {
	Binary   string  `json:"binary"`   // path that was started
	PID      int     `json:"pid"`      // of the process that serves now
	Version  string  `json:"version"`  // of it
	Previous Process `json:"previous"` // that drains now
	TookMS   float64 `json:"took_ms"`  // from the start of the process until it served
}

// Process is one that runs weir.
type Process struct {
	PID     int    `json:"pid"`
	Version string `json:"version"`
}

// Predecessor is the process that this one took over from, while it drains.
type Predecessor struct {
	Process
	Since       time.Time `json:"since"`       // when this process took over
	Connections int       `json:"connections"` // of clients that it still has, a second ago at most
}

// The codes of problems with upgrades.
const (
	CodeUpgrading     = "upgrading"
	CodeNoUpgrade     = "cannot_upgrade"
	CodeUpgradeFailed = "upgrade_failed"
)

// upgradeTime bounds a call: longer than an upgrade may take.
const upgradeTime = 90 * time.Second

// registerUpgrade serves the handover to another binary. To name one is to run
// code as weir's user, so that needs a token, or the mode of a socket file.
func registerUpgrade(mux *http.ServeMux, ctl Controller, guarded bool) {
	u, ok := ctl.(Upgrader)
	if !ok {
		return
	}
	mux.Handle("/api/v1/upgrade", only(func(w http.ResponseWriter, r *http.Request) { upgrade(u, guarded, w, r) }, http.MethodPost))
}

func upgrade(u Upgrader, guarded bool, w http.ResponseWriter, r *http.Request) {
	var in struct {
		Binary string `json:"binary"`
	}
	d := json.NewDecoder(r.Body)
	d.DisallowUnknownFields()
	if err := d.Decode(&in); err != nil {
		problem(w, http.StatusBadRequest, CodeBadBody, `send {} or {"binary": "/path/of/weir"}`)
		return
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		problem(w, http.StatusBadRequest, CodeBadBody, "the body goes on after the JSON object")
		return
	}
	if in.Binary != "" && !guarded {
		problem(w, http.StatusForbidden, CodeForbidden, "a binary is only taken with admin.token_file, or on an admin address unix:/path; "+
			"without one the path is started again that this weir was started from")
		return
	}
	c := http.NewResponseController(w)
	if err := errors.Join(c.SetReadDeadline(time.Time{}), c.SetWriteDeadline(time.Now().Add(upgradeTime))); err != nil {
		problem(w, http.StatusInternalServerError, CodeInternal, err.Error())
		return
	}
	// Who asks may go: an upgrade is not given up for that.
	out, err := u.UpgradeBinary(context.WithoutCancel(r.Context()), in.Binary)
	switch {
	case errors.Is(err, ErrUpgrading):
		problem(w, http.StatusConflict, CodeUpgrading, err.Error())
	case errors.Is(err, ErrNoUpgrade):
		problem(w, http.StatusConflict, CodeNoUpgrade, err.Error())
	case errors.Is(err, ErrUpgradeFailed):
		problem(w, http.StatusUnprocessableEntity, CodeUpgradeFailed, err.Error())
	case err != nil:
		problem(w, http.StatusInternalServerError, CodeInternal, err.Error())
	default:
		w.Header().Set("Connection", "close") // the next call goes to the process that serves
		writeJSON(w, out)
	}
}

// Upgrade makes the balancer hand over to a binary, or to the path that it was
// started from. A refusal is a *Problem.
func (c *Client) Upgrade(ctx context.Context, binary string) (u Upgrade, err error) {
	body, err := json.Marshal(map[string]string{"binary": binary})
	if err != nil {
		return u, err
	}
	err = c.do(ctx, http.MethodPost, "/api/v1/upgrade", body, &u)
	c.Close() // its connection leads to the old process
	return u, err
}

// Yield makes clients go to whoever listens on the address now: idle
// connections are closed, others with their answers, and feeds end. Return takes
// that back.
func (s *Server) Yield() {
	s.http.SetKeepAlivesEnabled(false)
	s.feeds.end()
}

// Return is for a server whose successor is gone.
func (s *Server) Return() { s.http.SetKeepAlivesEnabled(true) }

// Release closes the listening socket for good; connections go on until Close.
func (s *Server) Release() { _ = s.listener.Close() }

// followers are the feeds that are being sent. The zero value is ready.
type followers struct {
	mu  sync.Mutex
	all map[*context.CancelFunc]struct{}
}

// follow wraps a feed so that end can end it.
func (f *followers) follow(h http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithCancel(r.Context())
		defer cancel()
		f.mu.Lock()
		if f.all == nil {
			f.all = make(map[*context.CancelFunc]struct{})
		}
		f.all[&cancel] = struct{}{}
		f.mu.Unlock()
		defer func() {
			f.mu.Lock()
			defer f.mu.Unlock()
			delete(f.all, &cancel)
		}()
		h(w, r.WithContext(ctx))
	}
}

// end ends the feeds there are.
func (f *followers) end() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for cancel := range f.all {
		(*cancel)()
	}
}

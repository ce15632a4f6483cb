// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
)

// maxConfig bounds a configuration that is posted.
const maxConfig = 8 << 20

// Reloader is what the API needs of a balancer whose configuration can change.
// A Controller may implement it.
type Reloader interface {
	// ReloadConfig reads the configuration file again and applies it. Errors:
	// ErrBadConfig with all reasons, ErrNoReload.
	ReloadConfig(dryRun bool) (Reload, error)
	// ApplyConfig applies a text, if the generation given (0: whichever) serves.
	// Errors: as above, and ErrGeneration.
	ApplyConfig(text []byte, generation uint64, dryRun bool) (Reload, error)
	// RunningConfig returns what serves, with secrets masked.
	RunningConfig() Config
}

// Errors that a Reloader returns, possibly wrapped.
var (
	ErrBadConfig  = errors.New("the configuration was not applied")
	ErrNoReload   = errors.New("cannot reload")
	ErrGeneration = errors.New("another generation serves")
)

// Reload says what a reload did, or would do.
type Reload struct {
	Generation uint64   `json:"generation"` // that serves now
	DryRun     bool     `json:"dry_run"`
	Changes    []Delta  `json:"changes"`
	Warnings   []string `json:"warnings"`
}

// Delta is one change of the configuration.
type Delta struct {
	Op   string `json:"op"` // added, removed, changed, moved
	Path string `json:"path"`
	Old  string `json:"old,omitempty"`
	New  string `json:"new,omitempty"`
	Text string `json:"text"` // the change as a line for people
}

// Config is a configuration that serves.
type Config struct {
	Generation uint64 `json:"generation"`
	File       string `json:"file,omitempty"` // empty: made from flags or posted
	Text       string `json:"text"`           // in full, secrets as ***
}

// The codes of problems with configurations.
const (
	CodeBadConfig  = "bad_config"
	CodeNoReload   = "cannot_reload"
	CodeGeneration = "generation"
)

// registerConfig serves what changes the configuration. guarded says that a
// token or the mode of a socket file protects it: loopback alone is open to
// every user and program of the machine, and a configuration names files.
func (a api) registerConfig(mux *http.ServeMux, guarded bool) {
	r, ok := a.ctl.(Reloader)
	if !ok {
		return
	}
	c := configAPI{r}
	post := c.apply
	if !guarded {
		post = func(w http.ResponseWriter, _ *http.Request) {
			problem(w, http.StatusForbidden, CodeForbidden, "a configuration is only taken with admin.token_file, or on an admin address unix:/path; 'weir reload' reads the file again without")
		}
	}
	mux.Handle("/api/v1/config", methods(map[string]http.HandlerFunc{http.MethodGet: c.show, http.MethodPost: post}))
	mux.Handle("/api/v1/reload", only(c.reload, http.MethodPost))
}

type configAPI struct{ r Reloader }

func (c configAPI) show(w http.ResponseWriter, _ *http.Request) {
	cfg := c.r.RunningConfig()
	w.Header().Set("ETag", etag(cfg.Generation))
	writeJSON(w, cfg)
}

func (c configAPI) reload(w http.ResponseWriter, r *http.Request) {
	dry, err := dryRun(r)
	if err != nil {
		problem(w, http.StatusBadRequest, CodeBadBody, err.Error())
		return
	}
	out, err := c.r.ReloadConfig(dry)
	c.answer(w, &out, err)
}

func (c configAPI) apply(w http.ResponseWriter, r *http.Request) {
	dry, err := dryRun(r)
	if err != nil {
		problem(w, http.StatusBadRequest, CodeBadBody, err.Error())
		return
	}
	generation := uint64(0)
	if tag := r.Header.Get("If-Match"); tag != "" && tag != "*" {
		if generation, err = strconv.ParseUint(strings.Trim(tag, `"`), 10, 64); err != nil || generation == 0 {
			problem(w, http.StatusPreconditionFailed, CodeGeneration, "If-Match is "+tag+": no generation has that ETag")
			return
		}
	}
	var in struct {
		Text *string `json:"text"`
	}
	d := json.NewDecoder(r.Body)
	d.DisallowUnknownFields()
	err = d.Decode(&in)
	var tooLong *http.MaxBytesError
	switch {
	case errors.As(err, &tooLong):
		problem(w, http.StatusRequestEntityTooLarge, CodeBadBody, fmt.Sprintf("the body is longer than %d bytes", tooLong.Limit))
		return
	case err != nil || in.Text == nil:
		problem(w, http.StatusBadRequest, CodeBadBody, `send {"text": "the configuration as YAML"}`)
		return
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		problem(w, http.StatusBadRequest, CodeBadBody, "the body goes on after the JSON object")
		return
	}
	out, err := c.r.ApplyConfig([]byte(*in.Text), generation, dry)
	c.answer(w, &out, err)
}

func (c configAPI) answer(w http.ResponseWriter, out *Reload, err error) {
	switch {
	case errors.Is(err, ErrUpgrading):
		problem(w, http.StatusConflict, CodeUpgrading, err.Error())
		return
	case errors.Is(err, ErrGeneration):
		problem(w, http.StatusPreconditionFailed, CodeGeneration, err.Error())
		return
	case errors.Is(err, ErrNoReload):
		problem(w, http.StatusConflict, CodeNoReload, err.Error())
		return
	case errors.Is(err, ErrBadConfig):
		problem(w, http.StatusUnprocessableEntity, CodeBadConfig, err.Error())
		return
	case err != nil:
		problem(w, http.StatusInternalServerError, CodeInternal, err.Error())
		return
	}
	if out.Changes == nil {
		out.Changes = []Delta{}
	}
	if out.Warnings == nil {
		out.Warnings = []string{}
	}
	w.Header().Set("ETag", etag(out.Generation))
	writeJSON(w, out)
}

func etag(generation uint64) string { return `"` + strconv.FormatUint(generation, 10) + `"` }

func dryRun(r *http.Request) (bool, error) {
	switch v := r.URL.Query().Get("dry_run"); v {
	case "", "0", "false":
		return false, nil
	case "1", "true":
		return true, nil
	default:
		return false, fmt.Errorf("dry_run is %q: use 1 or 0", v)
	}
}

// Reload makes the balancer read its configuration again, or only says what
// that would change. A refusal is a *Problem whose Detail lists every reason.
func (c *Client) Reload(ctx context.Context, dryRun bool) (r Reload, err error) {
	path := "/api/v1/reload"
	if dryRun {
		path += "?dry_run=1"
	}
	err = c.do(ctx, http.MethodPost, path, []byte("{}"), &r)
	return r, err
}

// Config asks for the configuration that serves.
func (c *Client) Config(ctx context.Context) (cfg Config, err error) {
	err = c.do(ctx, http.MethodGet, "/api/v1/config", nil, &cfg)
	return cfg, err
}

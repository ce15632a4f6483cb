// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// Membership is a Controller whose pools take backends, and lose them, while
// they run. A backend that was added lives beside those of the configuration and
// those that were found, over reloads, until it is removed, its pool leaves the
// configuration, or the configuration lists its id.
type Membership interface {
	// AddBackend adds the backend that a JSON object describes with the keys of a
	// configuration, and returns it as it is then; created says whether it is new,
	// or was added before and now has these settings. Errors: ErrUnknownPool,
	// ErrBadBackend with every fault, ErrConflict with what to do instead.
	AddBackend(pool string, description []byte) (b Backend, created bool, err error)
	// RemoveBackend takes out a backend that was added and returns what is left of
	// it. Asked again while work is in flight it moves the deadline, whatever the
	// backend came from. Errors: ErrUnknownPool, ErrUnknownBackend, ErrConflict
	// with what to do instead for one that is configured or found.
	RemoveBackend(pool, id string, r Removal) (Backend, error)
}

// Changer is a Membership that takes many changes as one, which costs about as
// much as a single one: each is told to the pool as a whole.
type Changer interface {
	// ChangeBackends makes all changes of one pool, or none. Errors: those of
	// AddBackend and RemoveBackend, with every fault of the list.
	ChangeBackends(pool string, list []BackendChange) (BackendsChanged, error)
}

// BackendChange is one of: add what a JSON object describes, or remove an id.
type BackendChange struct {
	Description []byte
	Remove      string // not empty: the id to remove
}

// BackendsChanged counts what a list of changes did. What was as wanted before is
// in none.
type BackendsChanged struct {
	Added   int `json:"added"`
	Changed int `json:"changed"`
	Removed int `json:"removed"` // what they have in flight finishes within the pool's drain.deadline
}

// Errors that a Membership returns, possibly wrapped.
var (
	ErrBadBackend = errors.New("is no backend")
	ErrConflict   = errors.New("not possible as things are")
)

// Removal says what becomes of a removed backend's work in flight. The zero value
// lets it finish within the pool's drain.deadline.
type Removal struct {
	Deadline time.Duration // until it is cut; 0: the pool's
	Force    bool          // cut now
}

// Where a backend is known from.
const (
	SourceConfig    = "config"    // the configuration lists it
	SourceAPI       = "api"       // it was added to the running pool
	SourceDiscovery = "discovery" // the pool's source found it
)

// Added says since when a backend is there that was added to the running pool.
type Added struct {
	At   time.Time `json:"at"`
	AgeS float64   `json:"age_s"`
}

// The codes of problems with backends that are added or removed.
const (
	CodeBadBackend = "bad_backend"
	CodeConflict   = "conflict"
)

func (a api) registerBackends(mux *http.ServeMux) {
	one := map[string]http.HandlerFunc{http.MethodGet: a.backend, http.MethodPatch: a.patch}
	if m, ok := a.ctl.(Membership); ok {
		one[http.MethodDelete] = func(w http.ResponseWriter, r *http.Request) { removeBackend(m, w, r) }
		mux.Handle("/api/v1/pools/{pool}/backends", methods(map[string]http.HandlerFunc{
			http.MethodGet:  a.backends,
			http.MethodPost: func(w http.ResponseWriter, r *http.Request) { addBackend(m, w, r) },
		}))
	} else {
		mux.Handle("/api/v1/pools/{pool}/backends", only(a.backends, http.MethodGet))
	}
	mux.Handle("/api/v1/pools/{pool}/backends/{id}", methods(one))
}

func (a api) backends(w http.ResponseWriter, r *http.Request) {
	p, err := a.ctl.Pool(r.PathValue("pool"))
	if err != nil {
		refused(w, err)
		return
	}
	fillPool(&p)
	writeJSON(w, struct {
		Backends []Backend `json:"backends"`
	}{p.Members})
}

func addBackend(m Membership, w http.ResponseWriter, r *http.Request) {
	body, ok := readBody(w, r)
	if !ok {
		return
	}
	if !json.Valid(body) {
		problem(w, http.StatusBadRequest, CodeBadBody, `the body is no JSON: send such as {"url": "http://10.0.1.21:8080", "weight": 2}`)
		return
	}
	pool := r.PathValue("pool")
	if c, ok := m.(Changer); ok && bytes.HasPrefix(bytes.TrimSpace(body), []byte("[")) {
		changeBackends(c, w, pool, body)
		return
	}
	b, created, err := m.AddBackend(pool, body)
	if err != nil {
		refused(w, err)
		return
	}
	fillBackend(&b)
	status := http.StatusOK
	if created {
		status = http.StatusCreated
		w.Header().Set("Location", backendPath(pool, b.ID))
	}
	writeJSONAs(w, status, b)
}

// changeBackends takes a list: descriptions of backends to be added, and
// {"remove": ID}.
func changeBackends(c Changer, w http.ResponseWriter, pool string, body []byte) {
	var items []json.RawMessage
	if err := json.Unmarshal(body, &items); err != nil { // it is valid, and a list
		problem(w, http.StatusBadRequest, CodeBadBody, err.Error())
		return
	}
	list := make([]BackendChange, len(items))
	for i, item := range items {
		var keys map[string]json.RawMessage
		if json.Unmarshal(item, &keys) != nil || keys["remove"] == nil {
			list[i].Description = item
			continue
		}
		if json.Unmarshal(keys["remove"], &list[i].Remove) != nil || list[i].Remove == "" || len(keys) > 1 {
			problem(w, http.StatusUnprocessableEntity, CodeBadBackend, fmt.Sprintf(`item %d: write {"remove": "ID"} and nothing else in it`, i))
			return
		}
	}
	done, err := c.ChangeBackends(pool, list)
	if err != nil {
		refused(w, err)
		return
	}
	writeJSON(w, done)
}

func removeBackend(m Membership, w http.ResponseWriter, r *http.Request) {
	var how Removal
	q := r.URL.Query()
	for name := range q {
		if name != "deadline" && name != "force" {
			problem(w, http.StatusBadRequest, CodeBadBody, fmt.Sprintf("%q is not understood: use deadline=30s or force=1", name))
			return
		}
	}
	if d := q.Get("deadline"); d != "" {
		var err error
		if how.Deadline, err = time.ParseDuration(d); err != nil || how.Deadline <= 0 {
			problem(w, http.StatusBadRequest, CodeBadBody, fmt.Sprintf("deadline is %q: use a duration such as 30s; force=1 cuts at once", d))
			return
		}
	}
	switch f := q.Get("force"); {
	case f == "1", f == "true", f == "" && q.Has("force"):
		how.Force = true
	case f != "" && f != "0" && f != "false":
		problem(w, http.StatusBadRequest, CodeBadBody, fmt.Sprintf("force is %q: use 1 or 0", f))
		return
	}
	if how.Force && how.Deadline > 0 {
		problem(w, http.StatusBadRequest, CodeBadBody, "force cuts at once, so it goes with no deadline")
		return
	}
	if body, ok := readBody(w, r); !ok {
		return
	} else if s := strings.TrimSpace(string(body)); s != "" && s != "{}" {
		problem(w, http.StatusBadRequest, CodeBadBody, "DELETE takes no body; deadline and force go into the query")
		return
	}
	b, err := m.RemoveBackend(r.PathValue("pool"), r.PathValue("id"), how)
	if err != nil {
		refused(w, err)
		return
	}
	fillBackend(&b)
	writeJSON(w, b)
}

// readBody reads a request's body, or answers why not.
func readBody(w http.ResponseWriter, r *http.Request) ([]byte, bool) {
	body, err := io.ReadAll(r.Body)
	var tooLong *http.MaxBytesError
	switch {
	case errors.As(err, &tooLong):
		problem(w, http.StatusRequestEntityTooLarge, CodeBadBody, fmt.Sprintf("the body is longer than %d bytes", tooLong.Limit))
		return nil, false
	case err != nil:
		problem(w, http.StatusBadRequest, CodeBadBody, "the body could not be read: "+err.Error())
		return nil, false
	}
	return body, true
}

// NewBackend is a backend to be added. What is zero is left to the defaults of a
// configuration.
type NewBackend struct {
	URL      string  `json:"url"`
	Weight   *uint32 `json:"weight,omitempty"`
	Zone     string  `json:"zone,omitempty"`
	ID       string  `json:"id,omitempty"`
	Backup   bool    `json:"backup,omitempty"`
	Priority int     `json:"priority,omitempty"`
}

// AddBackend adds a backend to a running pool and returns it as it is then.
func (c *Client) AddBackend(ctx context.Context, pool string, n NewBackend) (b Backend, err error) {
	body, err := json.Marshal(n)
	if err != nil {
		return b, err
	}
	err = c.do(ctx, http.MethodPost, "/api/v1/pools/"+url.PathEscape(pool)+"/backends", body, &b)
	return b, err
}

// RemoveBackend takes out a backend that was added and returns what is left of it.
func (c *Client) RemoveBackend(ctx context.Context, pool, id string, r Removal) (b Backend, err error) {
	path := backendPath(pool, id)
	switch {
	case r.Force:
		path += "?force=1"
	case r.Deadline > 0:
		path += "?deadline=" + url.QueryEscape(r.Deadline.String())
	}
	err = c.do(ctx, http.MethodDelete, path, []byte("{}"), &b)
	return b, err
}

// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

// api serves /api/v1 from a Controller.
type api struct{ ctl Controller }

func (a api) register(mux *http.ServeMux) {
	mux.Handle("/api/v1/status", only(a.status, http.MethodGet))
	mux.Handle("/api/v1/pools", only(a.pools, http.MethodGet))
	mux.Handle("/api/v1/pools/{pool}", only(a.pool, http.MethodGet))
	a.registerBackends(mux)
	mux.HandleFunc("/api/", func(w http.ResponseWriter, r *http.Request) {
		problem(w, http.StatusNotFound, CodeNotFound, "no such resource: "+r.URL.Path)
	})
}

// only serves one method, and HEAD with GET.
func only(h http.HandlerFunc, method string) http.Handler {
	return methods(map[string]http.HandlerFunc{method: h})
}

func methods(by map[string]http.HandlerFunc) http.Handler {
	var allow []string
	for _, m := range []string{http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPatch, http.MethodDelete} {
		if by[m] != nil || m == http.MethodHead && by[http.MethodGet] != nil {
			allow = append(allow, m)
		}
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		m := r.Method
		if m == http.MethodHead {
			m = http.MethodGet
		}
		if h := by[m]; h != nil {
			h(w, r)
			return
		}
		w.Header().Set("Allow", strings.Join(allow, ", "))
		problem(w, http.StatusMethodNotAllowed, CodeBadMethod, r.Method+" is not supported here; "+strings.Join(allow, ", ")+" is")
	})
}

func (a api) status(w http.ResponseWriter, _ *http.Request) {
	s := a.ctl.Status()
	if s.Listeners == nil {
		s.Listeners = []Listener{}
	}
	if s.Pools == nil {
		s.Pools = []PoolSummary{}
	}
	writeJSON(w, s)
}

func (a api) pools(w http.ResponseWriter, _ *http.Request) {
	all := a.ctl.Pools()
	for i := range all {
		fillPool(&all[i])
	}
	if all == nil {
		all = []Pool{}
	}
	writeJSON(w, struct {
		Pools []Pool `json:"pools"`
	}{all})
}

func (a api) pool(w http.ResponseWriter, r *http.Request) {
	p, err := a.ctl.Pool(r.PathValue("pool"))
	if err != nil {
		refused(w, err)
		return
	}
	fillPool(&p)
	writeJSON(w, p)
}

func (a api) backend(w http.ResponseWriter, r *http.Request) {
	p, err := a.ctl.Pool(r.PathValue("pool"))
	if err != nil {
		refused(w, err)
		return
	}
	for _, b := range p.Members {
		if b.ID == r.PathValue("id") {
			fillBackend(&b)
			writeJSON(w, b)
			return
		}
	}
	refused(w, fmt.Errorf("%w in pool %s: %s", ErrUnknownBackend, p.Name, r.PathValue("id")))
}

func fillPool(p *Pool) {
	if p.Members == nil {
		p.Members = []Backend{}
	}
	for i := range p.Members {
		fillBackend(&p.Members[i])
	}
}

func fillBackend(b *Backend) {
	if b.History == nil {
		b.History = []Change{}
	}
}

func (a api) patch(w http.ResponseWriter, r *http.Request) {
	body, ok := readBody(w, r)
	if !ok {
		return
	}
	p, err := parsePatch(body)
	if err != nil {
		problem(w, http.StatusBadRequest, CodeBadPatch, err.Error())
		return
	}
	b, err := a.ctl.Patch(r.PathValue("pool"), r.PathValue("id"), p)
	if err != nil {
		refused(w, err)
		return
	}
	fillBackend(&b)
	writeJSON(w, b)
}

func refused(w http.ResponseWriter, err error) {
	switch {
	case errors.Is(err, ErrUnknownPool):
		problem(w, http.StatusNotFound, CodeUnknownPool, err.Error())
	case errors.Is(err, ErrUnknownListener):
		problem(w, http.StatusNotFound, CodeUnknownListener, err.Error())
	case errors.Is(err, ErrUnknownBackend):
		problem(w, http.StatusNotFound, CodeUnknownBackend, err.Error())
	case errors.Is(err, ErrBadBackend):
		problem(w, http.StatusUnprocessableEntity, CodeBadBackend, err.Error())
	case errors.Is(err, ErrConflict):
		problem(w, http.StatusConflict, CodeConflict, err.Error())
	case errors.Is(err, ErrBadPatch):
		problem(w, http.StatusUnprocessableEntity, CodeBadPatch, err.Error())
	case errors.Is(err, ErrUpgrading):
		problem(w, http.StatusConflict, CodeUpgrading, err.Error())
	default:
		problem(w, http.StatusInternalServerError, CodeInternal, err.Error())
	}
}

// maxWeight is the largest weight, as in configuration.
const maxWeight = 1000

// parsePatch reads {"admin":"draining|enabled|disabled","weight":N or null,
// "deadline":"30s"}: each key may be absent, null returns the weight to the
// configured one, and an unknown key is a mistake, not to be passed over.
func parsePatch(body []byte) (Patch, error) {
	var in struct {
		Admin    *string         `json:"admin"`
		Weight   json.RawMessage `json:"weight"`
		Deadline *string         `json:"deadline"`
	}
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	if err := d.Decode(&in); err != nil {
		return Patch{}, fmt.Errorf("the body is not the expected JSON object: %w", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return Patch{}, errors.New("the body goes on after the JSON object")
	}
	var p Patch
	if in.Admin != nil {
		switch *in.Admin {
		case "enabled", "draining", "disabled":
			p.Admin = *in.Admin
		default:
			return Patch{}, fmt.Errorf("admin is %q: use enabled, draining or disabled", *in.Admin)
		}
	}
	switch w := string(in.Weight); w {
	case "":
	case "null":
		p.ResetWeight = true
	default:
		var n uint32
		if err := json.Unmarshal(in.Weight, &n); err != nil || n > maxWeight {
			return Patch{}, fmt.Errorf("weight is %s: use a whole number from 0 to %d, or null for the configured one", w, maxWeight)
		}
		p.Weight = &n
	}
	if in.Deadline != nil {
		t, err := time.ParseDuration(*in.Deadline)
		if err != nil || t <= 0 {
			return Patch{}, fmt.Errorf("deadline is %q: use a duration such as 30s", *in.Deadline)
		}
		if p.Admin != "draining" && p.Admin != "disabled" {
			return Patch{}, errors.New("deadline goes with admin: draining or disabled")
		}
		p.Deadline = t
	}
	if p == (Patch{}) {
		return Patch{}, errors.New("nothing to change: give admin, weight or both")
	}
	return p, nil
}

// marshal writes a patch as parsePatch reads it.
func (p Patch) marshal() ([]byte, error) {
	out := map[string]any{}
	if p.Admin != "" {
		out["admin"] = p.Admin
	}
	if p.Weight != nil {
		out["weight"] = *p.Weight
	} else if p.ResetWeight {
		out["weight"] = nil
	}
	if p.Deadline > 0 {
		out["deadline"] = p.Deadline.String()
	}
	return json.Marshal(out)
}

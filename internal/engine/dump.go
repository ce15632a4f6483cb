// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"runtime/debug"
	"runtime/pprof"
	"slices"
	"sync"

	"github.com/weirlb/weir/internal/admin"
	"github.com/weirlb/weir/internal/config"
	"github.com/weirlb/weir/internal/doctor"
)

var _ admin.Dumper = (*Engine)(nil)

// DumpParts implements admin.Dumper. What it shows is what the API shows, with
// the same things masked, and beside it what only a look into the process tells.
func (e *Engine) DumpParts() []admin.DumpPart {
	data := func(name string, get func() (any, error)) admin.DumpPart {
		return admin.DumpPart{Name: name, Write: func(_ context.Context, w io.Writer) error {
			v, err := get()
			if err != nil {
				return err
			}
			enc := json.NewEncoder(w)
			enc.SetIndent("", "  ")
			enc.SetEscapeHTML(false)
			return enc.Encode(v)
		}}
	}
	profile := func(name, which string, form int) admin.DumpPart {
		return admin.DumpPart{Name: name, Guarded: true, Write: func(_ context.Context, w io.Writer) error {
			return pprof.Lookup(which).WriteTo(w, form)
		}}
	}
	return []admin.DumpPart{
		{Name: "version.txt", Write: func(_ context.Context, w io.Writer) error { return e.writeBuild(w) }},
		{Name: "machine.txt", Write: func(_ context.Context, w io.Writer) error { return doctor.Look().Write(w) }},
		data("doctor.json", func() (any, error) {
			return doctor.Examine(doctor.Input{Facts: doctor.Look(), Plan: e.gen.Load().Plan}), nil
		}),
		{Name: "log.txt", Write: func(_ context.Context, w io.Writer) error { return e.recent.write(w) }},
		{Name: "config.yaml", Write: func(_ context.Context, w io.Writer) error {
			_, err := w.Write(e.gen.Load().Plan.Public())
			return err
		}},
		data("status.json", func() (any, error) { return e.Status(), nil }),
		data("pools.json", func() (any, error) { return e.Pools(), nil }),
		data("events.json", func() (any, error) {
			list, _ := e.FollowEvents(0)
			return list, nil
		}),
		data("failures.json", func() (any, error) {
			f, err := e.Failures("")
			return maskedFailures(f), err
		}),
		{Name: "metrics.txt", Write: e.writeMetrics},
		profile("goroutines.txt", "goroutine", 2),
		profile("heap.pb.gz", "heap", 0),
	}
}

// writeBuild tells what the binary was built from.
func (e *Engine) writeBuild(w io.Writer) error {
	text := "weir " + e.opt.Version + "\n"
	if info, ok := debug.ReadBuildInfo(); ok {
		text += info.String()
	}
	_, err := io.WriteString(w, text)
	return err
}

// writeMetrics writes what a scrape would get.
func (e *Engine) writeMetrics(ctx context.Context, w io.Writer) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "/metrics", nil)
	if err != nil {
		return err
	}
	e.metrics.Handler().ServeHTTP(&bodyOnly{Writer: w, header: http.Header{}}, r)
	return nil
}

// bodyOnly is a response of which only the content is wanted.
type bodyOnly struct {
	io.Writer
	header http.Header
}

func (b *bodyOnly) Header() http.Header { return b.header }
func (b *bodyOnly) WriteHeader(int)     {}

// maskedFailures hides what a client may have sent as a secret: queries, and
// fields that the access log was told to write.
func maskedFailures(f admin.Failures) admin.Failures {
	f.Pools = slices.Clone(f.Pools)
	for i := range f.Pools {
		p := &f.Pools[i]
		p.Requests = slices.Clone(p.Requests)
		for j, raw := range p.Requests {
			p.Requests[j] = maskedRequest(raw)
		}
	}
	return f
}

func maskedRequest(raw json.RawMessage) json.RawMessage {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	var v any
	if d.Decode(&v) != nil {
		return json.RawMessage(`"` + config.Masked + `"`)
	}
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false) // "->" is for people
	if err := enc.Encode(maskedValue("", v)); err != nil {
		return json.RawMessage(`"` + config.Masked + `"`)
	}
	return bytes.TrimSuffix(out.Bytes(), []byte("\n"))
}

func maskedValue(name string, v any) any {
	switch v := v.(type) {
	case map[string]any:
		for k, x := range v {
			v[k] = maskedValue(k, x)
		}
	case []any:
		for i, x := range v {
			v[i] = maskedValue(name, x)
		}
	case string:
		if name == "query" && v != "" {
			return config.Masked
		}
		return config.MaskField(name, v)
	}
	return v
}

const (
	recentLines = 500
	recentBytes = 512 << 10
)

// recentLog remembers the last lines of the log, for a support bundle. The zero
// value is empty. It is safe for concurrent use.
type recentLog struct {
	mu    sync.Mutex
	lines [][]byte // oldest first
	size  int
}

// tee returns a writer that remembers what goes to w; nil stays nil.
func (r *recentLog) tee(w io.Writer) io.Writer {
	if w == nil {
		return nil
	}
	return io.MultiWriter(r, w)
}

// Write remembers a line: a log writes each with one call.
func (r *recentLog) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lines = append(r.lines, bytes.Clone(p))
	r.size += len(p)
	for len(r.lines) > recentLines || r.size > recentBytes && len(r.lines) > 1 {
		r.size -= len(r.lines[0])
		r.lines[0] = nil
		r.lines = r.lines[1:]
	}
	return len(p), nil
}

func (r *recentLog) write(w io.Writer) error {
	r.mu.Lock()
	lines := slices.Clone(r.lines)
	r.mu.Unlock()
	for _, l := range lines {
		if _, err := w.Write(l); err != nil {
			return err
		}
	}
	return nil
}

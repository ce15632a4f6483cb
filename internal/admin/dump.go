// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"runtime/debug"
	"sync/atomic"
	"time"
)

// Dumper is a Controller that can tell all about itself for a support bundle.
type Dumper interface {
	// DumpParts returns the files of a bundle. None may hold a secret.
	DumpParts() []DumpPart
}

// DumpPart is one file of a bundle.
type DumpPart struct {
	Name    string // such as status.json
	Guarded bool   // shows memory: only with a token or on a socket file
	// Write writes the content. It is given up, with what it has written so far,
	// when ctx ends; it may still run then, and must not touch w any more than it
	// cannot help.
	Write func(ctx context.Context, w io.Writer) error
}

const (
	dumpPartTime = 10 * time.Second // one part may take
	dumpTime     = 2 * time.Minute  // all of them may take
	dumpPartSize = 32 << 20         // of one part; the rest is cut off
)

// registerDump serves the bundle, if there is one. guarded says that a token or
// the mode of a socket file protects the address.
func registerDump(mux *http.ServeMux, ctl Controller, guarded bool) {
	d, ok := ctl.(Dumper)
	if !ok {
		return
	}
	s := &dumps{src: d, guarded: guarded, partTime: dumpPartTime, partSize: dumpPartSize}
	mux.Handle("/api/v1/debug/dump", only(s.serve, http.MethodGet))
}

type dumps struct {
	src      Dumper
	guarded  bool
	partTime time.Duration
	partSize int
	busy     atomic.Bool // one at a time: a bundle costs a stop of the world and some memory
}

func (s *dumps) serve(w http.ResponseWriter, r *http.Request) {
	if !s.busy.CompareAndSwap(false, true) {
		w.Header().Set("Retry-After", "10")
		problem(w, http.StatusServiceUnavailable, CodeTooMany, "another bundle is being made")
		return
	}
	defer s.busy.Store(false)
	if err := http.NewResponseController(w).SetWriteDeadline(time.Now().Add(dumpTime)); err != nil {
		problem(w, http.StatusInternalServerError, CodeInternal, err.Error())
		return
	}
	w.Header().Set("Content-Type", "application/gzip")
	w.Header().Set("Content-Disposition", `attachment; filename="weir-dump.tar.gz"`)
	ctx, cancel := context.WithTimeout(r.Context(), dumpTime)
	defer cancel()
	if err := s.write(ctx, w); err != nil {
		panic(http.ErrAbortHandler) // so that the client does not take a part for the whole
	}
}

// write makes the bundle. Its error is the writer's: what goes wrong in a part
// is told in the bundle.
func (s *dumps) write(ctx context.Context, w io.Writer) error {
	zip := gzip.NewWriter(w)
	b := NewBundle(zip, time.Now())
	for _, p := range s.src.DumpParts() {
		if p.Guarded && !s.guarded {
			b.Note(p.Name, errors.New("left out: it shows memory, so it needs admin.token_file, or an admin address unix:/path"))
			continue
		}
		text, err := s.limited(ctx, p)
		if err != nil {
			b.Note(p.Name, err)
		}
		if err := b.Add(p.Name, text); err != nil {
			return err
		}
	}
	if err := b.Close(); err != nil {
		return err
	}
	return zip.Close()
}

// limited makes one part within its time and size.
func (s *dumps) limited(ctx context.Context, p DumpPart) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, s.partTime)
	defer cancel()
	type outcome struct {
		text []byte
		err  error
	}
	done := make(chan outcome, 1)
	go func() { // outlives this call only when the part does not heed its context
		buf := &cappedBuffer{left: s.partSize}
		err := guardedWrite(ctx, p, buf)
		done <- outcome{buf.Bytes(), err}
	}()
	select {
	case o := <-done:
		return o.text, o.err
	case <-ctx.Done():
		return nil, fmt.Errorf("not made within %v", s.partTime)
	}
}

func guardedWrite(ctx context.Context, p DumpPart, w io.Writer) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("bug: %v\n%s", r, debug.Stack())
		}
	}()
	return p.Write(ctx, w)
}

// errCut says that a part is longer than it may be.
var errCut = errors.New("cut off: it is too long")

// cappedBuffer takes so much and no more.
type cappedBuffer struct {
	bytes.Buffer
	left int
}

// Write implements io.Writer.
func (b *cappedBuffer) Write(p []byte) (int, error) {
	n := min(len(p), b.left)
	b.Buffer.Write(p[:n])
	b.left -= n
	if n < len(p) {
		return n, errCut
	}
	return n, nil
}

// Bundle is a tar archive in which the first mishap does not end the rest. It is
// for one goroutine.
type Bundle struct {
	tar   *tar.Writer
	at    time.Time
	notes bytes.Buffer
	files []bundleFile
}

type bundleFile struct {
	Name string `json:"name"`
	Size int    `json:"size"`
}

// NewBundle begins a bundle in w; at is the time of its files.
func NewBundle(w io.Writer, at time.Time) *Bundle { return &Bundle{tar: tar.NewWriter(w), at: at} }

// Add adds a file. Its error is the writer's.
func (b *Bundle) Add(name string, text []byte) error {
	b.files = append(b.files, bundleFile{name, len(text)})
	if err := b.tar.WriteHeader(&tar.Header{Name: "weir-dump/" + name, Mode: 0o600, Size: int64(len(text)), ModTime: b.at, Format: tar.FormatPAX}); err != nil {
		return err
	}
	_, err := b.tar.Write(text)
	return err
}

// Note records why a file is missing or incomplete, for errors.txt.
func (b *Bundle) Note(name string, err error) { fmt.Fprintf(&b.notes, "%s: %v\n", name, err) }

// Close adds errors.txt, where there are any, and manifest.json, and ends the
// archive; the writer below stays open.
func (b *Bundle) Close() error {
	if b.notes.Len() > 0 {
		if err := b.Add("errors.txt", b.notes.Bytes()); err != nil {
			return err
		}
	}
	text, err := json.MarshalIndent(struct {
		At    time.Time    `json:"at"`
		Files []bundleFile `json:"files"`
	}{b.at, b.files}, "", "  ")
	if err != nil {
		return err
	}
	return errors.Join(b.Add("manifest.json", append(text, '\n')), b.tar.Close())
}

// Dump writes a running weir's support bundle, a gzipped tar archive, to w. Its
// own time limit is longer than that of other calls. After an error w holds a
// part of a bundle, or nothing.
func (c *Client) Dump(ctx context.Context, w io.Writer) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.base+"/api/v1/debug/dump", nil)
	if err != nil {
		return fmt.Errorf("admin address %q: %w", c.where, err)
	}
	if c.token != "" {
		req.Header.Set("Authorization", "Bearer "+c.token)
	}
	patient := *c.http
	patient.Timeout = max(dumpTime+dumpPartTime, c.http.Timeout)
	resp, err := patient.Do(req)
	if err != nil {
		return c.unreachable(ctx, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK || resp.Header.Get("Content-Type") != "application/gzip" {
		return c.refusal(resp)
	}
	if _, err := io.Copy(w, resp.Body); err != nil {
		return fmt.Errorf("weir at %s broke off its answer: %w", c.where, err)
	}
	return nil
}

// refusal is the error of an answer that is not what was asked for.
func (c *Client) refusal(resp *http.Response) error {
	p := new(Problem)
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxBody))
	if err != nil || json.Unmarshal(text, p) != nil || p.Code == "" {
		return fmt.Errorf("what answers at %s (%s) is not weir's admin address", c.where, resp.Status)
	}
	if p.Code == CodeUnauthorized {
		return fmt.Errorf("weir at %s asks for a token, or does not accept the one given: use --token-file: %w", c.where, p)
	}
	return p
}

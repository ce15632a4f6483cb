// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// dumper is a fake with parts that misbehave.
type dumper struct {
	*fake
	parts []DumpPart
}

func (d *dumper) DumpParts() []DumpPart { return d.parts }

func says(text string) func(context.Context, io.Writer) error {
	return func(_ context.Context, w io.Writer) error {
		_, err := io.WriteString(w, text)
		return err
	}
}

// unbundled reads a bundle.
func unbundled(t *testing.T, r io.Reader) map[string]string {
	t.Helper()
	zip, err := gzip.NewReader(r)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for archive := tar.NewReader(zip); ; {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(archive)
		if err != nil {
			t.Fatal(err)
		}
		name, ok := strings.CutPrefix(h.Name, "weir-dump/")
		if !ok || h.Mode != 0o600 {
			t.Errorf("%s with mode %o", h.Name, h.Mode)
		}
		files[name] = string(text)
	}
}

// What goes wrong in one part is told, and the others are there.
func TestDumpParts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		d := &dumper{newFake(), []DumpPart{
			{Name: "good.txt", Write: says("good")},
			{Name: "fails.txt", Write: func(_ context.Context, w io.Writer) error {
				_, _ = io.WriteString(w, "half")
				return errors.New("no more")
			}},
			{Name: "heeds.txt", Write: func(ctx context.Context, _ io.Writer) error { <-ctx.Done(); return ctx.Err() }},
			{Name: "hangs.txt", Write: func(context.Context, io.Writer) error { <-release; return nil }},
			{Name: "panics.txt", Write: func(context.Context, io.Writer) error { panic("oh") }},
			{Name: "long.txt", Write: func(_ context.Context, w io.Writer) error {
				for {
					if _, err := w.Write(make([]byte, 1000)); err != nil {
						return err
					}
				}
			}},
			{Name: "memory.txt", Guarded: true, Write: says("memory")},
			{Name: "last.txt", Write: says("last")},
		}}
		for _, guarded := range []bool{false, true} {
			var out bytes.Buffer
			begin := time.Now()
			s := &dumps{src: d, guarded: guarded, partTime: time.Second, partSize: 64 << 10}
			if err := s.write(t.Context(), &out); err != nil {
				t.Fatal(err)
			}
			if took := time.Since(begin); took != 2*time.Second {
				t.Errorf("two parts that hang took %v", took)
			}
			files := unbundled(t, &out)
			if files["good.txt"] != "good" || files["fails.txt"] != "half" || files["last.txt"] != "last" || len(files["long.txt"]) != 64<<10 {
				t.Errorf("%.200v", files)
			}
			if _, ok := files["memory.txt"]; ok != guarded {
				t.Errorf("guarded %v: memory %v", guarded, ok)
			}
			for _, want := range []string{"fails.txt: no more", "hangs.txt: not made within 1s", "heeds.txt: ", "panics.txt: bug: oh", "long.txt: cut off"} {
				if !strings.Contains(files["errors.txt"], want) {
					t.Errorf("no %q in:\n%s", want, files["errors.txt"])
				}
			}
			var manifest struct {
				Files []bundleFile `json:"files"`
			}
			if err := json.Unmarshal([]byte(files["manifest.json"]), &manifest); err != nil {
				t.Fatal(err)
			}
			if len(manifest.Files) != len(files)-1 || !slices.Contains(manifest.Files, bundleFile{"good.txt", 4}) {
				t.Errorf("%+v", manifest)
			}
		}
		close(release)
		synctest.Wait()
	})
}

// Who may have a bundle, and what it holds then.
func TestDumpIsGuarded(t *testing.T) {
	parts := []DumpPart{{Name: "a.txt", Write: says("a")}, {Name: "memory.txt", Guarded: true, Write: says("m")}}
	open := serve(t, Options{Controller: &dumper{newFake(), parts}})
	token := tokenFile(t, testToken)
	withToken := serve(t, Options{Controller: &dumper{newFake(), parts}, TokenFile: token})
	path := filepath.Join(t.TempDir(), "s")
	serve(t, Options{Controller: &dumper{newFake(), parts}, Bind: "unix:" + path})
	for _, c := range []struct {
		opt    ClientOptions
		memory bool
		fails  string
	}{
		{ClientOptions{Address: open.Addr().String()}, false, ""},
		{ClientOptions{Address: withToken.Addr().String()}, false, "--token-file"},
		{ClientOptions{Address: withToken.Addr().String(), TokenFile: token}, true, ""},
		{ClientOptions{Address: "unix:" + path}, true, ""},
		{ClientOptions{Address: "127.0.0.1:1"}, false, "not running"},
	} {
		client, err := NewClient(c.opt)
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		err = client.Dump(t.Context(), &out)
		client.Close()
		if c.fails != "" {
			if err == nil || !strings.Contains(err.Error(), c.fails) {
				t.Errorf("%+v: %v", c.opt, err)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		files := unbundled(t, &out)
		if _, ok := files["memory.txt"]; ok != c.memory || files["a.txt"] != "a" || c.memory == strings.Contains(files["errors.txt"], "memory.txt: left out") {
			t.Errorf("%+v: %v", c.opt, files)
		}
	}
	if resp, _ := send(t, serve(t, Options{}), request{"GET", "/api/v1/debug/dump", "", nil}); resp.StatusCode != http.StatusNotFound {
		t.Errorf("without parts: %s", resp.Status)
	}
}

// One bundle at a time, and one that breaks off is no whole one.
func TestDumpIsOne(t *testing.T) {
	began, release := make(chan struct{}), make(chan struct{})
	s := serve(t, Options{Controller: &dumper{newFake(), []DumpPart{{Name: "slow.txt", Write: func(context.Context, io.Writer) error {
		close(began)
		<-release
		return nil
	}}}}})
	client, err := NewClient(ClientOptions{Address: s.Addr().String()})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	first := make(chan error, 1)
	go func() { first <- client.Dump(t.Context(), io.Discard) }()
	<-began
	var p *Problem
	if err := client.Dump(t.Context(), io.Discard); !errors.As(err, &p) || p.Code != CodeTooMany {
		t.Errorf("%v", err)
	}
	close(release)
	if err := <-first; err != nil {
		t.Error(err)
	}
}

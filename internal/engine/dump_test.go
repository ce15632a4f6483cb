// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weirlb/weir/internal/admin"
	"github.com/weirlb/weir/internal/config"
)

// A bundle of a weir whose configuration is full of secrets, and to which clients
// sent some, holds none of them, and all the rest.
func TestDumpHoldsNoSecret(t *testing.T) {
	dir := t.TempDir()
	token := filepath.Join(dir, "token")
	if err := os.WriteFile(token, []byte("hunter-token-file-0123456789\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(dir, "s")
	text := fmt.Sprintf(`admin: {bind: "unix:%s", token_file: %s}
log: {access: off}
listeners:
  web:
    bind: "127.0.0.1:0"
    routes:
      - match: {path: /key, headers: {X-Api-Key: hunter-match}}
        respond: {code: 204}
      - match: {path_prefix: /a}
        pool: app
        request_headers: {set: {Authorization: "Bearer hunter-bearer", X-Upstream-Token: hunter-set, X-Plain: seen-plain}}
        response_headers: {add: {Set-Cookie: "id=hunter-cookie"}}
      - match: {path: /env}
        respond: {code: 200, body: "${WEIR_TEST_SECRET}", content_type: text/plain}
pools:
  app: {backends: ["http://127.0.0.1:1"], health: {active: off}}
`, socket, token)
	t.Setenv("WEIR_TEST_SECRET", "hunter-environment")
	plan, err := config.Parse("weir.yaml", []byte(text), os.LookupEnv)
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	e, err := New(plan, Options{Version: "1.2.3-test", Stderr: &log})
	if err != nil {
		t.Fatal(err)
	}
	e.Start()
	defer func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	}()
	base := "http://" + e.liveListeners()[0].bound()[0]
	for _, path := range []string{"/a/x?token=hunter-query&p=1", "/none?api_key=hunter-query", "/env"} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, base+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Basic hunter-client")
		req.Header.Set("Cookie", "hunter=client")
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close() // read from no further
	}
	http.DefaultClient.CloseIdleConnections()
	// A refused configuration goes to the log, with its excerpt.
	if _, err := e.ApplyConfig([]byte(strings.Replace(text, "code: 204", "code: 2040", 1)+"bad: 1\n"), 0, false); err == nil {
		t.Fatal("a bad configuration was applied")
	}

	client, err := admin.NewClient(admin.ClientOptions{Address: "unix:" + socket, TokenFile: token})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	var out bytes.Buffer
	if err := client.Dump(t.Context(), &out); err != nil {
		t.Fatal(err)
	}
	files := bundled(t, &out)
	for name, want := range map[string]string{
		"version.txt": "weir 1.2.3-test", "machine.txt": "kernel: ", "doctor.json": `"name": "files"`, "log.txt": "was not reloaded", "config.yaml": "seen-plain",
		"status.json": `"generation"`, "pools.json": "127.0.0.1:1", "events.json": "reload refused", "failures.json": "connect_refused",
		"metrics.txt": "weir_requests_total", "goroutines.txt": "goroutine ", "heap.pb.gz": "\x1f\x8b", "manifest.json": "config.yaml",
	} {
		if !strings.Contains(files[name], want) {
			t.Errorf("%s has no %q: %.300s", name, want, files[name])
		}
	}
	if len(files) != 13 {
		t.Errorf("%d files, errors: %s", len(files), files["errors.txt"])
	}
	for name, text := range files {
		if name == "heap.pb.gz" {
			zip, err := gzip.NewReader(strings.NewReader(text))
			if err != nil {
				t.Fatal(err)
			}
			plain, err := io.ReadAll(zip)
			if err != nil {
				t.Fatal(err)
			}
			text = string(plain)
		}
		for line := range strings.Lines(text) {
			if strings.Contains(line, "hunter") {
				t.Errorf("%s: %s", name, line)
			}
		}
	}
}

func bundled(t *testing.T, r io.Reader) map[string]string {
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
		files[strings.TrimPrefix(h.Name, "weir-dump/")] = string(text)
	}
}

// What is remembered of the log is bounded, in lines and in bytes.
func TestRecentLog(t *testing.T) {
	var r recentLog
	w := r.tee(io.Discard)
	for i := range 2 * recentLines {
		fmt.Fprintf(w, "line %d\n", i)
	}
	var out strings.Builder
	if err := r.write(&out); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(out.String(), "\n"); n != recentLines || !strings.HasPrefix(out.String(), fmt.Sprintf("line %d\n", recentLines)) {
		t.Errorf("%d lines: %.100s", n, out.String())
	}
	for range 10 {
		fmt.Fprintln(w, strings.Repeat("x", recentBytes/4))
	}
	if r.size > recentBytes || len(r.lines) > 4 {
		t.Errorf("%d bytes in %d lines", r.size, len(r.lines))
	}
	if r.tee(nil) != nil {
		t.Error("a log to nowhere goes somewhere")
	}
}

func TestMaskedFailures(t *testing.T) {
	for raw, want := range map[string]string{
		`{"path":"/a","query":"token=x","bytes":123456789012345678}`: `{"bytes":123456789012345678,"path":"/a","query":"***"}`,
		`{"headers":{"Authorization":"x","X-A":"b"}}`:                `{"headers":{"Authorization":"***","X-A":"b"}}`,
		`{"a":["eyJhbGciOiJub25lIn0.e30."],"query":""}`:              `{"a":["***"],"query":""}`,
		`no JSON`: `"***"`,
	} {
		if got := string(maskedRequest([]byte(raw))); got != want {
			t.Errorf("%s: %s", raw, got)
		}
	}
}

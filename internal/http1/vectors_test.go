// SPDX-License-Identifier: Apache-2.0

package http1

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/weirlb/weir/internal/message"
)

// vectorDir holds test data of other parsers, kept beside the repository and
// not copied into it.
const vectorDir = "../../../shared/vectors/http1"

type vector struct {
	ID, Kind, Expect string
	Mode             string `json:"parser_mode"`
	Raw              string
	raw              []byte
}

// wanted translates a vector's expectation: what a lenient mode is tested with
// is an error here.
func (v *vector) wanted() string {
	switch v.Mode {
	case "", "request", "response", "request-finish", "response-finish":
		if v.Expect == "headers-accepted" {
			return "accept"
		}
		return v.Expect
	default:
		return "reject"
	}
}

func loadVectors(t *testing.T) []vector {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(vectorDir, "*.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	if len(files) == 0 {
		t.Skipf("no vectors: %s is absent (it lies beside the repository, not in it)", vectorDir)
	}
	var all []vector
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(bytes.NewReader(text))
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			var v vector
			if err := json.Unmarshal(lines.Bytes(), &v); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if v.raw, err = base64.StdEncoding.DecodeString(v.Raw); err != nil {
				t.Fatalf("%s: %v", v.ID, err)
			}
			all = append(all, v)
		}
	}
	return all
}

// stream reads messages from raw until it ends, as a connection would, and
// returns accept, incomplete (the first head or a chunked body did not end) or
// the error.
func stream(v *vector) (result string, heads int, err error) {
	raw := v.raw
	for first := true; len(raw) > 0; first = false {
		n, kind, length, last, err := streamHead(v, &raw)
		if err != nil {
			return "reject", heads, err
		}
		if n == 0 {
			if first {
				return "incomplete", heads, nil
			}
			return "accept", heads, nil
		}
		heads++
		raw = raw[n:]
		switch kind {
		case message.Sized:
			raw = raw[min(int64(len(raw)), length):]
		case message.UntilClose:
			return "accept", heads, nil
		case message.Chunked:
			var c ChunkReader
			for len(raw) > 0 && !c.Done() {
				_, n, err := c.Next(raw)
				if err != nil {
					return "reject", heads, err
				}
				raw = raw[n:]
			}
			if !c.Done() {
				return "incomplete", heads, nil
			}
		}
		if last {
			return "accept", heads, nil
		}
	}
	return "accept", heads, nil
}

// streamHead parses one head of the vector's kind. A request without Host gets
// one: most vectors have none, because their parsers do not ask for it.
func streamHead(v *vector, raw *[]byte) (n int, kind message.Body, length int64, last bool, err error) {
	if v.Kind == "response" {
		r := new(message.Response)
		n, err = ParseResponse(*raw, &Limits{}, r, false)
		return n, r.Body, r.ContentLength, r.Close, err
	}
	r := new(message.Request)
	n, err = ParseRequest(*raw, &Limits{}, r)
	if errors.Is(err, errHostMissing) {
		line := bytes.Index((*raw)[2:], []byte("\r\n")) + 4
		*raw = append(append(append([]byte(nil), (*raw)[:line]...), "Host: a.example\r\n"...), (*raw)[line:]...)
		n, err = ParseRequest(*raw, &Limits{}, r)
	}
	return n, r.Body, r.ContentLength, r.Close || r.WebSocket, err
}

// chunkVector reads a chunked body or a single size line.
func chunkVector(v *vector) (string, int, error) {
	var c ChunkReader
	raw := v.raw
	for len(raw) > 0 && !c.Done() {
		_, n, err := c.Next(raw)
		if err != nil {
			return "reject", 0, err
		}
		raw = raw[n:]
	}
	if c.state < chunkData {
		return "incomplete", 0, nil
	}
	return "accept", 0, nil
}

// TestVectors holds the parsers against those of llhttp, picohttpparser, hyper
// and Traffic Server. Where they differ the table in deviations_test.go says
// why; an entry that no longer differs fails.
func TestVectors(t *testing.T) {
	seen := map[string]bool{}
	for _, v := range loadVectors(t) {
		for i := 2; seen[v.ID]; i++ {
			v.ID = fmt.Sprintf("%s #%d", v.ID, i)
		}
		seen[v.ID] = true
		read := stream
		if v.Kind == "chunked-body" || v.Kind == "chunk-size-line" {
			read = chunkVector
		}
		got, heads, err := read(&v)
		want := v.wanted()
		same := got == want ||
			want == "accept" && got == "incomplete" || // the vector stops within its head
			want == "incomplete" && got == "accept" && v.Mode == "request-finish" || // within its content
			want == "reject" && got == "incomplete" // waits for more, and is never forwarded
		if v.Kind == "request-pipeline" && want == "reject" {
			same = same && heads == 0 // the good request behind it is not answered
		}
		why, listed := deviations[v.ID]
		switch {
		case same && listed:
			t.Errorf("%s: listed as a deviation (%s), but agrees: %s", v.ID, why, got)
		case !same && !listed:
			t.Errorf("%q: %s (%v), want %s: %q", v.ID, got, err, want, v.raw)
		}
	}
	for id := range deviations {
		if !seen[id] {
			t.Errorf("deviation %q names no vector", id)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package test

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"
)

// wsPeer is an implementation of WebSocket, as client and as server.
type wsPeer struct {
	name string
	// serve echoes on an address and closes with the code that it is asked for. It
	// returns what tells the codes with which clients have closed, so far.
	serve func(t *testing.T, addr string) (codes func() []string)
	// ask runs cases one after another and returns what came of each.
	ask func(t *testing.T, url string, cases []string) map[string]string
}

// wsPeers are those that the tests know.
var wsPeers = map[string]wsPeer{
	"coder":      {"coder", coderServe, coderAsk},
	"ws":         {"ws", scripted(wsOfNode, "server.cjs"), scriptedAsk(wsOfNode, "client.cjs")},
	"websockets": {"websockets", scripted(wsOfPython, "server.py"), scriptedAsk(wsOfPython, "client.py")},
}

// wsOfNode and wsOfPython run a script of testdata/websocket.
func wsOfNode(t *testing.T, script string) (env []string, command []string) {
	t.Helper()
	modules := installed(t, "ws", "node_modules")
	return []string{"NODE_PATH=" + modules}, []string{tool(t, "node"), filepath.Join("testdata", "websocket", script)}
}

func wsOfPython(t *testing.T, script string) (env []string, command []string) {
	t.Helper()
	const python = "/usr/bin/python3" // the distribution's, whose modules make deps installs
	if err := exec.Command(python, "-c", "import websockets").Run(); err != nil {
		t.Fatalf("Python's websockets is not installed: run `make deps`: %v", err)
	}
	return nil, []string{python, filepath.Join("testdata", "websocket", script)}
}

type wsScript func(t *testing.T, script string) (env []string, command []string)

func scripted(lang wsScript, script string) func(*testing.T, string) func() []string {
	return func(t *testing.T, addr string) func() []string {
		env, cmd := lang(t, script)
		p := spawnEnv(t, env, cmd[0], append(cmd[1:], port(addr))...)
		waitListening(t, p, addr)
		return func() (codes []string) {
			for line := range strings.Lines(p.out.String()) {
				if code, ok := strings.CutPrefix(strings.TrimSpace(line), "closed "); ok {
					codes = append(codes, code)
				}
			}
			return codes
		}
	}
}

func scriptedAsk(lang wsScript, script string) func(*testing.T, string, []string) map[string]string {
	return func(t *testing.T, url string, cases []string) map[string]string {
		env, cmd := lang(t, script)
		p := spawnEnv(t, env, cmd[0], append(append(cmd[1:], url), cases...)...)
		p.wait(2 * time.Minute)
		said := map[string]string{}
		for line := range strings.Lines(p.out.String()) {
			if c, what, ok := strings.Cut(strings.TrimSpace(line), ": "); ok {
				said[c] = what
			}
		}
		return said
	}
}

// coderServe is a server of the Go module coder/websocket.
func coderServe(t *testing.T, addr string) func() []string {
	t.Helper()
	var mu sync.Mutex
	var codes []string
	serve := func(w http.ResponseWriter, r *http.Request) {
		c, err := websocket.Accept(w, r, &websocket.AcceptOptions{InsecureSkipVerify: true, CompressionMode: websocket.CompressionContextTakeover, CompressionThreshold: 1})
		if err != nil {
			return
		}
		defer func() { _ = c.CloseNow() }()
		c.SetReadLimit(1 << 26)
		for {
			kind, p, err := c.Read(r.Context())
			if err != nil {
				mu.Lock()
				codes = append(codes, strconv.Itoa(int(websocket.CloseStatus(err))))
				mu.Unlock()
				return
			}
			text := ""
			if kind == websocket.MessageText {
				text = string(p)
			}
			if code, ok := strings.CutPrefix(text, "close "); ok {
				n, _ := strconv.Atoi(code)
				_ = c.Close(websocket.StatusCode(n), "asked")
				return
			}
			if text == "fragments" {
				err = coderFragments(r.Context(), c, "four ", "five ", "six")
			} else {
				err = c.Write(r.Context(), kind, p)
			}
			if err != nil {
				return
			}
		}
	}
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: http.HandlerFunc(serve), ErrorLog: log.New(io.Discard, "", 0), ReadHeaderTimeout: time.Minute}
	go func() { _ = s.Serve(ln) }()
	t.Cleanup(func() { _ = s.Close() })
	return func() []string {
		mu.Lock()
		defer mu.Unlock()
		return append([]string(nil), codes...)
	}
}

// coderFragments sends one message in several frames.
func coderFragments(ctx context.Context, c *websocket.Conn, parts ...string) error {
	w, err := c.Writer(ctx, websocket.MessageText)
	if err != nil {
		return err
	}
	for _, p := range parts {
		if _, err := io.WriteString(w, p); err != nil {
			return err
		}
	}
	return w.Close()
}

func coderAsk(t *testing.T, url string, cases []string) map[string]string {
	t.Helper()
	said := map[string]string{}
	for _, c := range cases {
		got, err := coderCase(t.Context(), url, c)
		if err != nil {
			got = "failed: " + err.Error()
		}
		said[c] = got
	}
	return said
}

func coderCase(ctx context.Context, url, what string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	name, arg, _ := strings.Cut(what, " ")
	n, _ := strconv.Atoi(arg)
	opt := &websocket.DialOptions{
		HTTPClient: &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}, //nolint:gosec // the test's own
	}
	if name == "deflate" {
		opt.CompressionMode, opt.CompressionThreshold = websocket.CompressionContextTakeover, 1
	}
	c, res, err := websocket.Dial(ctx, url, opt) //nolint:bodyclose // it is the connection
	if err != nil {
		return "", err
	}
	defer func() { _ = c.CloseNow() }()
	c.SetReadLimit(1 << 26)
	echo := func(kind websocket.MessageType, p []byte) error {
		if err := c.Write(ctx, kind, p); err != nil {
			return err
		}
		_, got, err := c.Read(ctx)
		if err == nil && !bytes.Equal(got, p) {
			err = errors.New("something else came back")
		}
		return err
	}
	switch name {
	case "echo":
		if err := echo(websocket.MessageBinary, bytes.Repeat([]byte("weir"), n/4+1)[:n]); err != nil {
			return "", err
		}
		return "ok", c.Close(1000, "")
	case "fragments":
		if err := coderFragments(ctx, c, "one ", "two ", "three"); err != nil {
			return "", err
		}
		_, first, err1 := c.Read(ctx)
		err2 := c.Write(ctx, websocket.MessageText, []byte("fragments"))
		_, second, err3 := c.Read(ctx)
		return fmt.Sprintf("%s, %s", first, second), errors.Join(err1, err2, err3, c.Close(1000, ""))
	case "deflate":
		if err := echo(websocket.MessageText, bytes.Repeat([]byte("compressible "), 20000)); err != nil {
			return "", err
		}
		how, _, _ := strings.Cut(res.Header.Get("Sec-WebSocket-Extensions"), ";")
		return how, c.Close(1000, "")
	case "ping":
		_ = c.CloseRead(ctx)
		return "are you there", c.Ping(ctx)
	case "leave": // no error: the other side has answered with the same code
		return arg + " leaving", c.Close(websocket.StatusCode(n), "leaving")
	case "left":
		if err := c.Write(ctx, websocket.MessageText, []byte("close "+arg)); err != nil {
			return "", err
		}
		_, _, err := c.Read(ctx)
		var ce websocket.CloseError
		if !errors.As(err, &ce) {
			return "", err
		}
		return fmt.Sprintf("%d %s", ce.Code, ce.Reason), nil
	}
	return "", errors.New("no such case")
}

// wsCodes are the codes that a Close frame may carry (RFC 6455 section 7.4, and
// IANA's registry).
var wsCodes = []int{1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 1012, 1013, 1014, 3000, 3999, 4000, 4999}

// wsCases are the cases, and what comes of each.
func wsCases(sizes, codes []int) (cases []string, want map[string]string) {
	want = map[string]string{"fragments": "one two three, four five six", "deflate": "permessage-deflate", "ping": "are you there"}
	cases = []string{"fragments", "deflate", "ping"}
	add := func(c, result string) {
		cases = append(cases, c)
		want[c] = result
	}
	for _, n := range sizes {
		add(fmt.Sprintf("echo %d", n), "ok")
	}
	for _, n := range codes {
		add(fmt.Sprintf("leave %d", n), fmt.Sprintf("%d leaving", n))
		add(fmt.Sprintf("left %d", n), fmt.Sprintf("%d asked", n))
	}
	return cases, want
}

// wsTalk has a client talk to a server through weir.
func wsTalk(t *testing.T, client, server string, sizes, codes []int) {
	t.Helper()
	addr := freeAddr(t)
	got := wsPeers[server].serve(t, addr)
	w := startRun(t, fmt.Sprintf(`
admin: {bind: "${ADMIN}"}
log: {access: {path: off}}
listeners: {web: {bind: "${LISTEN}", pool: app}}
pools: {app: {backends: ["http://%s"], health: {active: {initial: up, interval: 60s}}}}
`, addr))
	cases, want := wsCases(sizes, codes)
	said := wsPeers[client].ask(t, "ws://"+w.addr+"/", cases)
	for _, c := range cases {
		if said[c] != want[c] {
			t.Errorf("%s: %q, want %q", c, said[c], want[c])
		}
	}
	for _, n := range codes { // what the client has closed with has arrived
		eventually(t, 10*time.Second, fmt.Sprintf("the server gets %d", n), func() bool {
			for _, c := range got() {
				if c == strconv.Itoa(n) {
					return true
				}
			}
			return false
		})
	}
}

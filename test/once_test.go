// SPDX-License-Identifier: Apache-2.0

package test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// No POST is executed twice and each 5xx says truly whether it was sent, while
// backends are killed every 200 ms, reset after the head, and reset after they
// have executed.
func TestPostExecutedOnce(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	addrs := []string{freeAddr(t), freeAddr(t), freeAddr(t)}
	var mu sync.Mutex
	ps := make([]*process, len(addrs))
	launch := func(i int) {
		mu.Lock()
		defer mu.Unlock()
		ps[i] = spawnRole(t, "ledger", addrs[i], filepath.Join(dir, fmt.Sprintf("ledger%d", i)))
	}
	for i := range addrs {
		launch(i)
		waitListening(t, ps[i], addrs[i])
	}
	log := filepath.Join(dir, "access.log")
	w := startRun(t, fmt.Sprintf(`
admin: {bind: "${ADMIN}"}
log: {access: {path: "%s"}}
listeners: {web: {bind: "${LISTEN}", pool: app}}
pools:
  app: {backends: ["http://%s", "http://%s", "http://%s"]}
`, log, addrs[0], addrs[1], addrs[2]))

	stop, killed := make(chan struct{}), 0
	var killer sync.WaitGroup
	killer.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			case <-time.After(200 * time.Millisecond):
			}
			mu.Lock()
			victim := ps[i%len(ps)]
			mu.Unlock()
			victim.signal(syscall.SIGKILL)
			<-victim.done
			killed++
			launch(i % len(ps))
		}
	})
	var next atomic.Int64
	status := make([]int, postCount)
	var wg sync.WaitGroup
	for range 32 {
		wg.Go(func() {
			tr := &http.Transport{MaxIdleConnsPerHost: 1}
			defer tr.CloseIdleConnections()
			hc := &http.Client{Transport: tr, Timeout: 90 * time.Second}
			for {
				id := int(next.Add(1)) - 1
				if id >= postCount {
					return
				}
				req, _ := http.NewRequest("POST", w.url("/id/"+strconv.Itoa(id)), strings.NewReader("amount=1"))
				resp, err := hc.Do(req)
				if err != nil {
					t.Errorf("POST %d: weir itself failed: %v", id, err)
					return
				}
				_, _ = io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
				status[id] = resp.StatusCode
				time.Sleep(3 * time.Millisecond)
			}
		})
	}
	wg.Wait()
	close(stop)
	killer.Wait()

	w.signal(syscall.SIGINT) // flushes the log
	w.wait(40 * time.Second)
	executed := readLedgers(t, dir)
	sent := readSent(t, log)
	var ok, failed, twice int
	for id, code := range status {
		n := executed[strconv.Itoa(id)]
		if n > 1 {
			twice++
		}
		if code == 200 {
			ok++
			if n == 0 {
				t.Errorf("POST %d answered 200 but was never executed", id)
			}
			continue
		}
		failed++
		s, logged := sent["/id/"+strconv.Itoa(id)]
		if !logged {
			t.Errorf("POST %d failed with %d and has no log line that says whether it was sent", id, code)
		}
		if n > 0 && !s {
			t.Errorf("POST %d failed with %d, log says it was not sent, yet it was executed", id, code)
		}
	}
	t.Logf("%d POSTs: %d ok, %d failed, %d executed twice; %d kills", postCount, ok, failed, twice, killed)
	if twice > 0 {
		t.Errorf("%d POSTs were executed twice", twice)
	}
	if failed == 0 || ok < postCount/4 {
		t.Errorf("%d ok, %d failed: the faults were not what this test means to make", ok, failed)
	}
}

// readLedgers counts how often each id was executed.
func readLedgers(t *testing.T, dir string) map[string]int {
	t.Helper()
	out := map[string]int{}
	files, _ := filepath.Glob(filepath.Join(dir, "ledger*"))
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			out[strings.TrimSpace(line)]++
		}
	}
	return out
}

// readSent reads what the access log says per path.
func readSent(t *testing.T, file string) map[string]bool {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]bool{}
	for line := range strings.Lines(string(text)) {
		var rec struct {
			Path string `json:"path"`
			Sent *bool  `json:"sent"`
		}
		if err := json.Unmarshal([]byte(line), &rec); err != nil {
			t.Fatalf("access log line %q: %v", line, err)
		}
		if rec.Sent != nil {
			out[rec.Path] = *rec.Sent
		}
	}
	return out
}

// ledger is a backend that writes each executed id to a file before it
// answers. One request in ten is reset after its head was read, one in ten
// after it was executed.
func ledger(addr, file string) error {
	f, err := os.OpenFile(file, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer c.Close()
			r := bufio.NewReader(c)
			for {
				req, err := http.ReadRequest(r)
				if err != nil {
					return
				}
				fate := rand.IntN(10)
				if fate == 0 {
					_ = c.(*net.TCPConn).SetLinger(0)
					return
				}
				_, _ = io.Copy(io.Discard, req.Body)
				if req.Method == "POST" {
					// One write with O_APPEND: whole lines even when killed.
					fmt.Fprintf(f, "%s\n", strings.TrimPrefix(req.URL.Path, "/id/"))
				}
				if fate == 1 {
					_ = c.(*net.TCPConn).SetLinger(0)
					return
				}
				fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
			}
		}()
	}
}

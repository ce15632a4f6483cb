// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// entry is one event in the life of a backend.
type entry struct {
	at     time.Time
	kind   string // a request, a probe, or what became of a connection
	method string // "-" where there is none
	id     string // of a request
	status int    // what it was going to answer
}

// Kinds of entries.
const (
	gotRequest = "r"
	gotProbe   = "p"
	connOpened = "o"
	connTired  = "t" // closed by the backend, idle for too long
	connLeft   = "l" // closed by the other side while it was idle
)

// note appends an entry. One write(2) each: what was written is in the page
// cache, which kill -9 does not empty.
func note(f *os.File, e entry) {
	if e.method == "" {
		e.method = "-"
	}
	fmt.Fprintf(f, "%d %s %s %d %s\n", e.at.UnixNano(), e.kind, e.method, e.status, e.id)
}

// readLedger returns all whole lines of a ledger, in order of arrival.
func readLedger(path string) ([]entry, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var all []entry
	sc := bufio.NewScanner(f)
	for sc.Scan() {
		w := strings.Split(sc.Text(), " ")
		if len(w) != 5 {
			return nil, fmt.Errorf("%s: a line reads %q", path, sc.Text())
		}
		at, err := strconv.ParseInt(w[0], 10, 64)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		status, _ := strconv.Atoi(w[3])
		all = append(all, entry{at: time.Unix(0, at), kind: w[1], method: w[2], status: status, id: w[4]})
	}
	return all, sc.Err()
}

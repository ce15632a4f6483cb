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

// entry is one request as a backend got it.
type entry struct {
	at     time.Time
	probe  bool
	method string
	id     string // empty for probes
	status int    // what it was going to answer
}

// note appends an entry. One write(2) each: what was written is in the page
// cache, which kill -9 does not empty.
func note(f *os.File, e entry) {
	kind := "r"
	if e.probe {
		kind = "p"
	}
	fmt.Fprintf(f, "%d %s %s %d %s\n", e.at.UnixNano(), kind, e.method, e.status, e.id)
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
		all = append(all, entry{at: time.Unix(0, at), probe: w[1] == "p", method: w[2], status: status, id: w[4]})
	}
	return all, sc.Err()
}

// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Log is what ReadLog has read.
type Log struct {
	Arrivals []Arrival // in order of At, the first at 0
	Lines    int       // lines that were not empty
	Skipped  int       // of them, those that are no record of a request
	Begin    time.Time // of the first request
}

// ErrNoRequests is wrapped by ReadLog's error when a log holds no request.
var ErrNoRequests = errors.New("the log holds no request")

// maxLine is the longest line that ReadLog takes; weir's are below 80 KiB.
const maxLine = 1 << 20

// ReadLog reads an access log for Traffic.Replay. A line is weir's own record (a
// JSON object with time, and duration_ms as the work) or one in the common log
// format, to which a request time in seconds may be appended as nginx's
// $request_time is: "... 200 612 0.045" or "rt=0.045". The key is the hash of the
// client. Times of whole seconds are spread evenly over their second. Other lines
// are counted and skipped.
//
// A recorded duration holds what the request waited, so that replayed work is
// larger than the work was if servers were busy then.
func ReadLog(r io.Reader) (*Log, error) {
	log := &Log{}
	var lines []logLine
	in := bufio.NewScanner(r)
	in.Buffer(make([]byte, 64<<10), maxLine)
	for in.Scan() {
		text := bytes.TrimSpace(in.Bytes())
		if len(text) == 0 {
			continue
		}
		log.Lines++
		l, ok := parseLine(text)
		if !ok {
			log.Skipped++
			continue
		}
		lines = append(lines, l)
	}
	if err := in.Err(); err != nil {
		return nil, fmt.Errorf("line %d: %w", log.Lines+1, err)
	}
	if len(lines) == 0 {
		return nil, fmt.Errorf("%w in %d lines", ErrNoRequests, log.Lines)
	}
	slices.SortStableFunc(lines, func(a, b logLine) int { return a.at.Compare(b.at) })
	spread(lines)
	log.Begin = lines[0].at
	for _, l := range lines {
		log.Arrivals = append(log.Arrivals, Arrival{At: l.at.Sub(log.Begin), Work: l.work, Key: l.key, HasKey: l.key != 0})
	}
	return log, nil
}

type logLine struct {
	at   time.Time
	work time.Duration
	key  uint64
}

// spread divides the lines of a second without a fraction evenly over it.
func spread(lines []logLine) {
	for i := 0; i < len(lines); {
		j := i + 1
		for j < len(lines) && lines[j].at.Equal(lines[i].at) {
			j++
		}
		if lines[i].at.Nanosecond() == 0 {
			for k := i; k < j; k++ {
				lines[k].at = lines[k].at.Add(time.Second * time.Duration(k-i) / time.Duration(j-i))
			}
		}
		i = j
	}
	slices.SortStableFunc(lines, func(a, b logLine) int { return a.at.Compare(b.at) })
}

func parseLine(text []byte) (logLine, bool) {
	if text[0] == '{' {
		return parseJSON(text)
	}
	return parseCommon(string(text))
}

func parseJSON(text []byte) (l logLine, ok bool) {
	var rec struct {
		Time     string  `json:"time"`
		Duration float64 `json:"duration_ms"`
		Client   string  `json:"client"`
		Tunnel   bool    `json:"tunnel"`
	}
	if json.Unmarshal(text, &rec) != nil || rec.Tunnel {
		return l, false
	}
	at, err := time.Parse(time.RFC3339Nano, rec.Time)
	if err != nil || !sane(at) {
		return l, false
	}
	return logLine{at, millis(rec.Duration), keyOf(rec.Client)}, true
}

// millis is a recorded number of milliseconds; what is none counts as 0.
func millis(v float64) time.Duration {
	if !(v > 0) {
		return 0
	}
	return time.Duration(min(math.Round(v*1e6), float64(24*time.Hour)))
}

// parseCommon reads host ident user [time] "request" status bytes ...
func parseCommon(text string) (l logLine, ok bool) {
	host, rest, ok := strings.Cut(text, " ")
	if !ok {
		return l, false
	}
	_, rest, ok = strings.Cut(rest, "[")
	if !ok {
		return l, false
	}
	when, rest, ok := strings.Cut(rest, "]")
	if !ok {
		return l, false
	}
	at, err := time.Parse("02/Jan/2006:15:04:05 -0700", when)
	if err != nil || !sane(at) {
		return l, false
	}
	l = logLine{at: at, key: keyOf(host)}
	if fields := strings.Fields(rest); len(fields) > 3 {
		last := strings.TrimPrefix(fields[len(fields)-1], "rt=")
		if strings.Contains(last, ".") {
			if v, err := strconv.ParseFloat(last, 64); err == nil {
				l.work = millis(v * 1000)
			}
		}
	}
	return l, true
}

// sane keeps differences within what a Duration holds.
func sane(at time.Time) bool { return at.Year() >= 1990 && at.Year() < 2200 }

func keyOf(client string) uint64 {
	if client == "" {
		return 0
	}
	h := mix(uint64(len(client)))
	for i := range len(client) {
		h = mix(h ^ uint64(client[i]))
	}
	return max(h, 1)
}

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// parseShare reads a share as it is written in configuration: "20%".
func parseShare(s string) (float64, error) {
	number, ok := strings.CutSuffix(s, "%")
	v, err := strconv.ParseFloat(number, 64)
	if !ok || err != nil || !(v >= 0 && v <= 100) {
		return 0, fmt.Errorf("%q is not a share: write it like 20%%", s)
	}
	return v / 100, nil
}

// parseWeight reads a weight. The running weir knows its bounds.
func parseWeight(s string) (uint32, error) {
	n, err := strconv.ParseUint(s, 10, 32)
	if err != nil || n > 1000 {
		return 0, wrongUse("%q is not a weight: a whole number from 0 to 1000; for a smaller share multiply the others' weights", s)
	}
	return uint32(n), nil
}

// parseSince reads a time: how long before now, or when. Empty is the zero time.
func parseSince(s string, now time.Time) (time.Time, error) {
	if s == "" {
		return time.Time{}, nil
	}
	if d, err := time.ParseDuration(s); err == nil && d >= 0 {
		return now.Add(-d), nil
	}
	if t, err := time.Parse(time.RFC3339, s); err == nil {
		return t, nil
	}
	for _, form := range []string{"2006-01-02 15:04:05", "2006-01-02 15:04"} {
		if t, err := time.ParseInLocation(form, s, now.Location()); err == nil {
			return t, nil
		}
	}
	for _, form := range []string{"15:04:05", "15:04"} {
		if t, err := time.ParseInLocation(form, s, now.Location()); err == nil {
			y, m, d := now.Date()
			return time.Date(y, m, d, t.Hour(), t.Minute(), t.Second(), 0, now.Location()), nil
		}
	}
	return time.Time{}, wrongUse("--since is %q: write how long ago, such as 10m, or when, such as 15:04 or 2026-01-31T08:00:00Z", s)
}

// splitBackend reads POOL/BACKEND. A backend's id may itself hold slashes, a
// pool's name never does.
func splitBackend(s string) (pool, backend string, err error) {
	pool, backend, ok := strings.Cut(s, "/")
	if !ok || pool == "" || backend == "" {
		return "", "", wrongUse("%q is not POOL/BACKEND, for example app/10.0.1.21:8080", s)
	}
	return pool, backend, nil
}

// noFileArgs refuses arguments of a command that takes its file with -c.
func noFileArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return wrongUse("%q is one word too many; a configuration is given with -c: %s -c %s", args[0], cmd.CommandPath(), args[0])
	}
	return nil
}

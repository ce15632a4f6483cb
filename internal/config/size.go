// SPDX-License-Identifier: Apache-2.0

package config

import (
	"math"
	"strconv"
	"strings"
)

var sizeUnits = []struct {
	name  string
	bytes int64
}{{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}, {"B", 1}}

// bytesText reads "64KiB".
func bytesText(text, per string) (v int64, what, fix string) {
	body, ok := strings.CutSuffix(text, per)
	kind := "size"
	if per != "" {
		kind = "rate"
	}
	if !ok {
		return 0, quote(text) + " is not a " + kind, "write bytes per second, such as 240B/s or 64KiB/s"
	}
	end := 0
	for end < len(body) && (body[end] >= '0' && body[end] <= '9' || body[end] == '_' || body[end] == '.') {
		end++
	}
	num, unit := body[:end], body[end:]
	if end == 0 {
		return 0, quote(text) + " is not a " + kind, "write a number with a unit, such as 64KiB" + per
	}
	if what, fix := number(num, false); what != "" {
		if strings.Contains(num, ".") && !strings.Contains(num, "_") {
			return 0, quote(text) + " is not a whole number", "use a smaller unit, such as " + "KiB or B"
		}
		return 0, what, fix + unit + per
	}
	for _, u := range sizeUnits {
		if u.name != unit {
			continue
		}
		n, err := strconv.ParseInt(num, 10, 64)
		if err != nil || n > math.MaxInt64/u.bytes {
			return 0, text + " is too large", "use a smaller number"
		}
		return n * u.bytes, "", ""
	}
	if strings.TrimSpace(unit) == "" {
		return 0, quote(text) + " has no unit", "write " + num + "B" + per + " or " + num + "KiB" + per
	}
	if strings.Contains(strings.ToLower(unit), "bit") {
		return 0, quote(text) + " counts bits", "write bytes, such as 128KiB" + per
	}
	for _, u := range sizeUnits {
		if strings.EqualFold(strings.TrimSpace(unit)[:1], u.name[:1]) {
			return 0, quote(text) + " has a unit that is not known", "write " + num + u.name + per + " (weir counts in powers of 1024)"
		}
	}
	return 0, quote(unit) + " is not a unit", "use B, KiB, MiB, GiB or TiB"
}

func showBytes(v int64) string {
	for _, u := range sizeUnits {
		if v >= u.bytes && v%u.bytes == 0 {
			return strconv.FormatInt(v/u.bytes, 10) + u.name
		}
	}
	if v == 0 {
		return "0"
	}
	return strconv.FormatInt(v, 10) + "B"
}

// size reads sizes such as 64KiB; with per, rates such as 240B/s.
func size(lo, hi int64, per string) codec[int64] {
	limits := showBytes(lo) + per + " to " + showBytes(hi) + per
	name := "size"
	if per != "" {
		name = "rate"
	}
	return simple[int64]{
		name: name, limits: limits,
		parse: func(text string) (int64, string, string) {
			if text == "0" && lo == 0 {
				return 0, "", ""
			}
			v, what, fix := bytesText(text, per)
			switch {
			case what != "":
				return 0, what, fix
			case v < lo:
				return 0, text + " is too small", "allowed is " + limits + "; none where no limit is meant"
			case v > hi:
				return 0, text + " is too large", "allowed is " + limits
			}
			return v, "", ""
		},
		format: func(v int64) string { return showBytes(v) + per },
	}
}

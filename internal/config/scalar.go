// SPDX-License-Identifier: Apache-2.0

package config

import (
	"math"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// codec reads and shows the values of one type. scan reports what is wrong with
// a node itself and returns false then.
type codec[V any] interface {
	scan(d *decoder, n *node, s *spec) (V, bool)
	show(V) *node
	kind() string
	rng() string
}

// simple is a codec for single values: the text decides.
type simple[V any] struct {
	name   string
	limits string
	parse  func(text string) (v V, what, fix string) // what is empty when all is well
	format func(V) string
}

func (c simple[V]) kind() string { return c.name }
func (c simple[V]) rng() string  { return c.limits }

func (c simple[V]) scan(d *decoder, n *node, s *spec) (V, bool) {
	var none V
	if n.kind != scalar {
		d.fault(n, s.name+" is "+n.kind.String(), "write "+oneValue(c.name))
		return none, false
	}
	v, what, fix := c.parse(n.text)
	if what != "" {
		if s.off == "" && switchedOff(n) {
			what, fix = s.name+" cannot be switched off", "give a "+c.name+allowed(c.limits)
		}
		d.fault(n, what, fix)
		return none, false
	}
	return v, true
}

// oneValue says what to write where a list or a mapping stands for one value.
func oneValue(name string) string {
	if strings.Contains(name, " or ") {
		return "one of " + strings.Replace(name, " or ", ", ", 1)
	}
	return "one " + name
}

func allowed(limits string) string {
	if limits == "" {
		return ""
	}
	return " (" + limits + ")"
}

func (c simple[V]) show(v V) *node { return &node{kind: scalar, text: c.format(v)} }

// number checks the text of a non-negative decimal number and says what is odd
// about it. YAML would read `010` as 8 and `1_000` as 1000; nobody should have
// to know.
func number(text string, fraction bool) (what, fix string) {
	bare := strings.ReplaceAll(text, "_", "")
	whole, frac, dot := strings.Cut(text, ".")
	switch {
	case text == "":
		return "the number is empty", "write digits"
	case strings.Contains(text, "_") && digits(strings.Replace(bare, ".", "", 1)):
		return quote(text) + " has underscores", "write " + bare
	case text[0] == '-' && digits(text[1:]):
		return quote(text) + " is negative", "write a positive number"
	case text[0] == '+' && digits(text[1:]):
		return quote(text) + " has a sign", "write " + text[1:]
	case digits(text) && len(text) > 1 && text[0] == '0':
		return quote(text) + " has leading zeros, which YAML reads as octal", "write " + orZero(strings.TrimLeft(text, "0"))
	case digits(text):
		return "", ""
	case dot && digits(whole) && digits(frac):
		if !fraction && strings.Trim(frac, "0") == "" {
			return quote(text) + " is not a whole number", "write " + orZero(strings.TrimLeft(whole, "0"))
		}
		if !fraction {
			return quote(text) + " is not a whole number", "write a number without a point, such as " + max(strings.TrimLeft(whole, "0"), "1")
		}
		if len(whole) > 1 && whole[0] == '0' || frac[len(frac)-1] == '0' {
			return quote(text) + " has zeros that say nothing", "write " + trimZeros(text)
		}
		return "", ""
	default:
		return quote(text) + " is not a number", "write digits only"
	}
}

func trimZeros(text string) string {
	whole, frac, _ := strings.Cut(text, ".")
	whole, frac = orZero(strings.TrimLeft(whole, "0")), strings.TrimRight(frac, "0")
	if frac == "" {
		return whole
	}
	return whole + "." + frac
}

func orZero(s string) string {
	if s == "" {
		return "0"
	}
	return s
}

func digits(s string) bool {
	for _, c := range []byte(s) {
		if c < '0' || c > '9' {
			return false
		}
	}
	return s != ""
}

// integer reads whole numbers from lo to hi.
func integer[V int | int64 | uint32 | uint8](lo, hi V) codec[V] {
	limits := strconv.FormatInt(int64(lo), 10) + " to " + strconv.FormatInt(int64(hi), 10)
	if int64(hi) >= math.MaxInt32 {
		limits = strconv.FormatInt(int64(lo), 10) + " or more"
	}
	return simple[V]{
		name: "number", limits: limits,
		parse: func(text string) (V, string, string) {
			if what, fix := number(text, false); what != "" {
				return 0, what, fix
			}
			n, err := strconv.ParseInt(text, 10, 64)
			if err != nil || n > int64(hi) {
				return 0, text + " is too large", "allowed is " + limits
			}
			if n < int64(lo) {
				return 0, text + " is too small", "allowed is " + limits
			}
			return V(n), "", ""
		},
		format: func(v V) string { return strconv.FormatInt(int64(v), 10) },
	}
}

// count is an integer that is stored as 0 when there is no limit; 0 itself
// would allow nothing and is refused.
func count[V int | int64](hi V) codec[V] {
	c := integer[V](1, hi).(simple[V])
	inner := c.parse
	c.parse = func(text string) (V, string, string) {
		if text == "0" {
			return 0, "0 would allow nothing", "write none for no limit, or a number from 1 on"
		}
		return inner(text)
	}
	return c
}

// decimal reads numbers with a fraction.
func decimal(lo, hi float64) codec[float64] {
	format := func(v float64) string { return strconv.FormatFloat(v, 'f', -1, 64) }
	limits := format(lo) + " to " + format(hi)
	return simple[float64]{
		name: "number", limits: limits,
		parse: func(text string) (float64, string, string) {
			if what, fix := number(text, true); what != "" {
				return 0, what, fix
			}
			if len(text) > 16 {
				return 0, quote(text) + " is too long", "allowed is " + limits
			}
			v, err := strconv.ParseFloat(text, 64)
			if err != nil || v < lo || v > hi {
				return 0, text + " is out of range", "allowed is " + limits
			}
			return v, "", ""
		},
		format: format,
	}
}

// duration reads Go's durations from lo to hi.
func duration(lo, hi time.Duration) codec[time.Duration] {
	limits := showDuration(lo) + " to " + showDuration(hi)
	return simple[time.Duration]{
		name: "duration", limits: limits,
		parse: func(text string) (time.Duration, string, string) {
			if what, fix := oddDuration(text); what != "" {
				return 0, what, fix
			}
			v, err := time.ParseDuration(text)
			switch {
			case err != nil:
				return 0, quote(text) + " is not a duration", "write a number with a unit, such as 500ms, 5s, 2m or 1h"
			case v == 0:
				return 0, "a duration of " + text + " lets nothing happen", "write none where no limit is meant; allowed is " + limits
			case v < lo:
				return 0, text + " is too short", "allowed is " + limits
			case v > hi:
				return 0, text + " is too long", "allowed is " + limits
			}
			return v, "", ""
		},
		format: showDuration,
	}
}

// oddDuration finds what time.ParseDuration would refuse without a hint, or
// accept although it is doubtful.
func oddDuration(text string) (what, fix string) {
	if text == "0" {
		return "", "" // a duration, of the wrong length
	}
	if what, _ = number(text, true); what == "" {
		return quote(text) + " has no unit", "write " + text + "s or " + text + "ms"
	}
	bare := strings.ReplaceAll(text, "_", "")
	if m := clockPattern.FindStringSubmatch(text); m != nil {
		return quote(text) + " is a time of day", "write " + clockTime(m[1:])
	}
	if m := isoPattern.FindStringSubmatch(text); m != nil {
		return quote(text) + " is written as ISO 8601 has it", "write " + strings.ToLower(m[1])
	}
	end := len(strings.TrimRight(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ\u00b5\u03bc "))
	unit := strings.TrimSpace(text[end:])
	switch {
	case len(text) > 40:
		return quote(text) + " is not a duration", "write a number with a unit, such as 5s"
	case bare != text:
		return quote(text) + " has underscores", "write " + bare
	case strings.ContainsAny(text, " \t") && end > 0 && (shortUnits[unit] == "" || shortUnits[unit] == unit) && dayUnits[unit] == 0:
		return quote(text) + " has a space", "write " + strings.ReplaceAll(text, " ", "")
	case end > 1 && text[0] == '0' && text[1] >= '0' && text[1] <= '9':
		return quote(text) + " has leading zeros", "write " + strings.TrimLeft(text, "0")
	}
	if long, ok := dayUnits[unit]; ok {
		if n, err := strconv.ParseInt(strings.TrimSpace(text[:end]), 10, 32); err == nil {
			return quote(text) + " has a unit that is not known", "write " + showDuration(time.Duration(n)*long)
		}
	}
	if short := shortUnits[unit]; short != "" && (short != unit || strings.Contains(text, " ")) {
		return quote(text) + " has a unit that is not known", "write " + strings.TrimSpace(text[:end]) + short
	}
	return "", ""
}

var (
	clockPattern = regexp.MustCompile(`^([0-9]{1,2}):([0-9]{2})(?::([0-9]{2}))?$`)
	isoPattern   = regexp.MustCompile(`^PT([0-9]+[SMH])$`)
)

// clockTime is the duration that hours, minutes and seconds, or minutes and
// seconds, were meant to be.
func clockTime(parts []string) string {
	units := []time.Duration{time.Hour, time.Minute, time.Second}
	if parts[2] == "" {
		units = units[1:]
	}
	var sum time.Duration
	for i, u := range units {
		n, _ := strconv.Atoi(parts[i]) // two digits
		sum += time.Duration(n) * u
	}
	return showDuration(sum)
}

var dayUnits = map[string]time.Duration{"d": day, "day": day, "days": day, "w": 7 * day, "week": 7 * day, "weeks": 7 * day}

var shortUnits = map[string]string{
	"sec": "s", "secs": "s", "second": "s", "seconds": "s", "S": "s", "min": "m", "mins": "m", "minute": "m", "minutes": "m", "M": "m",
	"ms": "ms", "MS": "ms", "msec": "ms", "msecs": "ms", "millis": "ms", "millisecond": "ms", "milliseconds": "ms", "s": "s", "m": "m", "h": "h",
	"hour": "h", "hours": "h", "H": "h", "hr": "h", "hrs": "h",
}

// showDuration is time.Duration.String without the zero units at the end.
func showDuration(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = s[:len(s)-2]
	}
	if strings.HasSuffix(s, "h0m") {
		s = s[:len(s)-2]
	}
	return s
}

// share reads percentages from lo to hi (1 is 100 %), with at most four decimals.
func share(lo, hi float64) codec[float64] {
	limits := showShare(lo) + " to " + showShare(hi)
	return simple[float64]{
		name: "share", limits: limits,
		parse: func(text string) (float64, string, string) {
			digits, ok := strings.CutSuffix(text, "%")
			what, fix := number(digits, true)
			switch {
			case !ok && what == "":
				percent := text
				if v, err := strconv.ParseFloat(text, 64); err == nil && v < 1 && v > 0 {
					percent = trimZeros(strconv.FormatFloat(v*100, 'f', 4, 64))
				}
				return 0, quote(text) + " is not a share", "write it as a percentage, " + percent + "%"
			case !ok:
				return 0, quote(text) + " is not a share", "write a percentage such as 20%"
			case what != "" && strings.HasPrefix(fix, "write ") && fix != "write digits" && fix != "write digits only" && fix != "write a positive number":
				return 0, what, fix + "%"
			case what != "":
				return 0, quote(text) + " is not a share", "write a percentage such as 20%"
			}
			if _, frac, _ := strings.Cut(digits, "."); len(frac) > 4 || len(digits) > 12 {
				return 0, quote(text) + " is more exact than weir counts", "use at most four decimals"
			}
			v, err := strconv.ParseFloat(digits, 64)
			if err != nil || v/100 < lo || v/100 > hi {
				return 0, text + " is out of range", "allowed is " + limits
			}
			return v / 100, "", ""
		},
		format: showShare,
	}
}

func showShare(v float64) string {
	s := strconv.FormatFloat(v*100, 'f', 4, 64)
	return trimZeros(s) + "%"
}

// boolean reads true and false, on and off, yes and no.
func boolean() codec[bool] {
	return simple[bool]{
		name: "true or false",
		parse: func(text string) (bool, string, string) {
			switch text {
			case "true", "on", "yes":
				return true, "", ""
			case "false", "off", "no":
				return false, "", ""
			}
			if low := strings.ToLower(text); low != text && strings.Contains(" true on yes false off no ", " "+low+" ") {
				return false, quote(text) + " is not true or false", "write " + low
			}
			return false, quote(text) + " is not true or false", "write true or false"
		},
		format: strconv.FormatBool,
	}
}

// choice reads one of some words. Those in later are known but not built.
func choice(words []string, later ...string) codec[string] {
	return simple[string]{
		name: oneOf(words),
		parse: func(text string) (string, string, string) {
			for _, w := range words {
				if w == text {
					return w, "", ""
				}
			}
			for _, w := range later {
				if w == text {
					return "", quote(text) + " is not built yet in this version", "use " + oneOf(words)
				}
			}
			return "", quote(text) + " is not known here", useOne(text, words)
		},
		format: func(v string) string { return v },
	}
}

// SPDX-License-Identifier: Apache-2.0

// Package orca reads the load reports that backends put into the heads and
// trailers of their answers (Open Request Cost Aggregation: cncf/xds,
// xds/data/orca/v3/orca_load_report.proto; gRPC proposals A51 and A58).
//
// A report is the value of one of two fields:
//
//	endpoint-load-metrics: TEXT cpu_utilization=0.3,application_utilization=0.7
//	endpoint-load-metrics: JSON {"cpu_utilization": 0.3}
//	endpoint-load-metrics: BIN CTMzMzMzM9M/
//	endpoint-load-metrics-bin: CTMzMzMzM9M/
//
// where the last two hold the protobuf message in base64. The reader is strict
// and bounded: a value that is too long, malformed, or that says something
// impossible (a negative utilization, NaN) is no report. It reads the
// utilizations and passes over everything else. All functions are pure and
// allocate nothing for values that are reports.
package orca

import (
	"bytes"
	"encoding/base64"
	"strconv"
)

// The fields that carry reports.
const (
	Header    = "endpoint-load-metrics"
	HeaderBin = "endpoint-load-metrics-bin"
)

// maxValue bounds a value in bytes. Reports have some hundred; named metrics may
// add to that.
const maxValue = 4096

// Report is what is read of a load report: parts of a capacity, 1 for all of it;
// more is possible. 0 stands for "not said" as well, as it does in protobuf.
type Report struct {
	CPU         float64
	Memory      float64
	Application float64 // the application's own word about how busy it is
}

// Utilization is what balancers go by: the application's own word if it gave
// one, else the use of the CPU (A58). ok is false when it said neither.
func (r Report) Utilization() (load float64, ok bool) {
	if r.Application > 0 {
		return r.Application, true
	}
	return r.CPU, r.CPU > 0
}

// Parse reads a value of the field Header.
func Parse(value []byte) (Report, bool) {
	format, rest, found := bytes.Cut(value, space)
	if !found || len(value) > maxValue {
		return Report{}, false
	}
	switch string(format) {
	case "TEXT":
		return parseText(rest)
	case "JSON":
		return parseJSON(rest)
	case "BIN":
		return ParseBinary(bytes.TrimLeft(rest, " "))
	}
	return Report{}, false
}

var space = []byte(" ")

// ParseBinary reads a value of the field HeaderBin: base64 (RFC 4648 section 4)
// with or without padding, as gRPC allows.
func ParseBinary(value []byte) (Report, bool) {
	if len(value) > maxValue || bytes.ContainsAny(value, "\r\n") {
		return Report{}, false
	}
	if n := len(value); n%4 == 0 && n > 0 && value[n-1] == '=' {
		value = value[:n-1]
		if value[n-2] == '=' {
			value = value[:n-2]
		}
	}
	var buf [maxValue / 4 * 3]byte
	n, err := base64.RawStdEncoding.Strict().Decode(buf[:], value)
	if err != nil {
		return Report{}, false
	}
	return parseMessage(buf[:n])
}

// metric returns where the metric of a name is kept, or nil.
func (r *Report) metric(name []byte) *float64 {
	switch string(name) {
	case "cpu_utilization", "cpuUtilization":
		return &r.CPU
	case "mem_utilization", "memUtilization":
		return &r.Memory
	case "application_utilization", "applicationUtilization":
		return &r.Application
	}
	return nil
}

// number reads a decimal number as JSON writes it (RFC 8259 section 6) that can
// be a utilization: finite and not negative.
func number(b []byte) (float64, bool) {
	n := numberLen(b)
	if n == 0 || n != len(b) || n > 32 {
		return 0, false
	}
	v, err := strconv.ParseFloat(string(b), 64)
	return v, err == nil && v >= 0
}

// numberLen returns the length of the number that b begins with, 0 when there is
// none.
func numberLen(b []byte) int {
	i := 0
	digits := func() bool {
		from := i
		for i < len(b) && '0' <= b[i] && b[i] <= '9' {
			i++
		}
		return i > from
	}
	if i < len(b) && b[i] == '-' {
		i++
	}
	if i < len(b) && b[i] == '0' {
		i++
	} else if !digits() {
		return 0
	}
	if i < len(b) && b[i] == '.' {
		if i++; !digits() {
			return 0
		}
	}
	if i < len(b) && b[i]|0x20 == 'e' {
		i++
		if i < len(b) && (b[i] == '+' || b[i] == '-') {
			i++
		}
		if !digits() {
			return 0
		}
	}
	return i
}

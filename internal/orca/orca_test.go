// SPDX-License-Identifier: Apache-2.0

package orca

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"math"
	"strings"
	"testing"
)

// Messages encoded with another program.
const (
	cpu30     = "CTMzMzMzM9M/"                                                                                                                         // cpu 0.3
	allThree  = "CQAAAAAAANA/EQAAAAAAAOA/SQAAAAAAAPw/"                                                                                                 // cpu 0.25, memory 0.5, application 1.75
	everyPart = "CQAAAAAAANA/EQAAAAAAAOA/GLlgIg0KAmRiEQAAAAAAAAhAKg8KBGRpc2sRzczMzMzM7D8xAAAAAADgWEA5AAAAAAAA+D9CEAoFcXVldWURAAAAAAAAMUBJmpmZmZmZ6T8=" // with rates and maps
)

func TestParse(t *testing.T) {
	for _, c := range []struct {
		value string
		want  Report
	}{
		{"TEXT cpu_utilization=0.3", Report{CPU: 0.3}},
		{"TEXT cpu_utilization=0.25,mem_utilization=0.5,application_utilization=1.75", Report{0.25, 0.5, 1.75}},
		{"TEXT  cpu_utilization = 1e-1 ,\tnamed_metrics.queue=17,eps=x,rps_fractional=5", Report{CPU: 0.1}},
		{"TEXT named_metrics.cpu_utilization=0.9", Report{}},
		{"TEXT cpuUtilization=0.9", Report{}},
		{`JSON {"cpu_utilization": 0.3}`, Report{CPU: 0.3}},
		{`JSON {"cpuUtilization":0.25,"memUtilization":"0.5","applicationUtilization":175e-2}`, Report{0.25, 0.5, 1.75}},
		{`JSON  { "named_metrics" : {"a\"b": 1, "c": [1, -2.5e+3, true, false, null, "\u00e9", {}, []]}, "application_utilization": 0.8, "cpu_utilization": null } `, Report{Application: 0.8}},
		{`JSON {}`, Report{}},
		{"BIN " + cpu30, Report{CPU: 0.3}},
		{"BIN " + everyPart, Report{0.25, 0.5, 0.8}},
	} {
		if got, ok := Parse([]byte(c.value)); !ok || got != c.want {
			t.Errorf("%s: %+v %v, want %+v", c.value, got, ok, c.want)
		}
	}
	for _, bad := range []string{
		"", "TEXT", "TEXT ", "TEXT cpu_utilization", "TEXT cpu_utilization=", "TEXT =1", "TEXT cpu_utilization=0.3,", "TEXT ,cpu_utilization=0.3",
		"TEXT cpu_utilization=-0.1", "TEXT cpu_utilization=NaN", "TEXT cpu_utilization=inf", "TEXT cpu_utilization=1e999", "TEXT cpu_utilization=+1", "TEXT cpu_utilization=0x1p-2",
		"TEXT cpu_utilization=.5", "TEXT cpu_utilization=1.", "TEXT cpu_utilization=01", "TEXT cpu_utilization=0.3 0.4", "TEXT cpu_utilization=50%", "TEXT cpu_utilization=0.3;mem_utilization=1",
		"TEXT cpu_utilization=0.3,cpu_utilization=0.3", "TEXT mem_utilization=1,mem_utilization=1", "TEXT cpu_utilization=" + strings.Repeat("1", 33),
		"text cpu_utilization=0.3", "cpu_utilization=0.3", "XML <a/>", " TEXT cpu_utilization=0.3", "TEXTcpu_utilization=0.3", "BIN", "JSON",
		"TEXT cpu_utilization=0.3," + strings.Repeat("a=1,", 1100) + "b=1",
		`JSON []`, `JSON 1`, `JSON {"cpu_utilization": -1}`, `JSON {"cpu_utilization": true}`, `JSON {"cpu_utilization": "NaN"}`, `JSON {"cpu_utilization": "Infinity"}`, `JSON {"cpu_utilization": ""}`,
		`JSON {"cpu_utilization": 1, "cpuUtilization": 1}`, `JSON {"cpu_utilization": 1,}`, `JSON {"cpu_utilization": 1} x`, `JSON {"a": 1 "b": 2}`, `JSON {"a" 1}`, `JSON {a: 1}`, `JSON {"a": 01}`,
		`JSON {"a": tru}`, `JSON {"a": "\x"}`, `JSON {"a": "\u12g4"}`, "JSON {\"a\": \"\x01\"}", `JSON {"a`, `JSON {"a": [1, 2}`, `JSON {"a": {"b"}}`, `JSON {`, `JSON {"a":` + strings.Repeat("[", 9) + strings.Repeat("]", 9) + `}`,
		"BIN !", "BIN " + cpu30 + "=", "BIN CTMzMzMzM9M=",
	} {
		if got, ok := Parse([]byte(bad)); ok || got != (Report{}) {
			t.Errorf("%.80s: taken for %+v", bad, got)
		}
	}
}

func TestParseBinary(t *testing.T) {
	for value, want := range map[string]Report{
		cpu30: {CPU: 0.3}, allThree: {0.25, 0.5, 1.75}, everyPart: {0.25, 0.5, 0.8}, strings.TrimRight(everyPart, "="): {0.25, 0.5, 0.8}, "": {},
		"CZqZmZmZmbk/CZqZmZmZmck/": {CPU: 0.2},         // twice: the last counts
		"CAdJAAAAAAAA4D8=":         {Application: 0.5}, // cpu as a varint is another field to protobuf
		"pQEBAgMECZqZmZmZmdk/":     {CPU: 0.4},         // behind an unknown field of four bytes
		"CTMzMzMzM9M/CQAAAAAAAAAA": {},                 // back to 0
	} {
		if got, ok := ParseBinary([]byte(value)); !ok || got != want {
			t.Errorf("%s: %+v %v, want %+v", value, got, ok, want)
		}
	}
	for name, bad := range map[string]string{
		"negative": "CQAAAAAAAOC/", "NaN": "CQAAAAAAAPh/", "infinite": "SQAAAAAAAPB/", "group": "Cww=", "cut short": "CTMzMzMzM9M=", "length beyond 2^63": "Iv///////////wE=",
		"field 0": "AQAAAAAAAAAA", "no base64": "CTMz!", "url alphabet": "CQAAAAAAAOC_", "two values": cpu30 + "," + cpu30, "broken line": cpu30[:4] + "\n" + cpu30[4:],
		"bits behind the end": "CTMzMzMzM9M/Cww9"[:15], "only a tag": "CQ==", "endless varint": "////////////", "= alone": "=", "===": "A===", "long": strings.Repeat("A", 4100),
	} {
		if got, ok := ParseBinary([]byte(bad)); ok || got != (Report{}) {
			t.Errorf("%s: taken for %+v", name, got)
		}
	}
}

func TestUtilization(t *testing.T) {
	for _, c := range []struct {
		r    Report
		load float64
		ok   bool
	}{
		{Report{CPU: 0.3, Application: 0.7}, 0.7, true}, {Report{CPU: 0.9, Application: 0.1}, 0.1, true}, {Report{CPU: 0.3, Memory: 0.9}, 0.3, true},
		{Report{Memory: 0.9}, 0, false}, {Report{}, 0, false},
	} {
		if load, ok := c.r.Utilization(); load != c.load || ok != c.ok {
			t.Errorf("%+v: %v %v", c.r, load, ok)
		}
	}
}

func TestAllocatesNothing(t *testing.T) {
	values := [][]byte{
		[]byte("TEXT cpu_utilization=0.3512345678901,mem_utilization=0.5,application_utilization=0.91,named_metrics.queue=17"),
		[]byte(`JSON {"cpu_utilization": 0.3, "named_metrics": {"queue": 17}, "application_utilization": "0.91"}`),
		[]byte("BIN " + everyPart), []byte("TEXT cpu_utilization=-1"), []byte("JSON {]"), []byte("BIN !!!"),
	}
	for _, v := range values {
		if n := testing.AllocsPerRun(100, func() { Parse(v) }); n != 0 {
			t.Errorf("%s: %v allocations", v, n)
		}
	}
}

func BenchmarkParse(b *testing.B) {
	for name, v := range map[string]string{
		"text": "TEXT cpu_utilization=0.35,application_utilization=0.91", "json": `JSON {"cpu_utilization":0.35,"application_utilization":0.91}`, "bin": "BIN " + everyPart,
	} {
		value := []byte(v)
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				Parse(value)
			}
		})
	}
}

// FuzzParse: whatever is taken for a report says something possible; what is
// taken as JSON is JSON to encoding/json too, and says the same there.
func FuzzParse(f *testing.F) {
	for _, s := range []string{
		"TEXT cpu_utilization=0.3,a=b", `JSON {"cpu_utilization": "0.3", "named_metrics": {"a": [1, {}]}}`, "BIN " + everyPart, "BIN " + cpu30, everyPart,
		`JSON {"memUtilization":1e2,"applicationUtilization":null,"x":"\u00e9"}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, value []byte) {
		kept := bytes.Clone(value)
		for _, parse := range []func([]byte) (Report, bool){Parse, ParseBinary} {
			r, ok := parse(value)
			for _, v := range []float64{r.CPU, r.Memory, r.Application} {
				if !(v >= 0 && v <= math.MaxFloat64) || !ok && v != 0 {
					t.Errorf("%q: %+v %v", value, r, ok)
				}
			}
			if !bytes.Equal(value, kept) {
				t.Fatal("the value was changed")
			}
		}
		text, isJSON := bytes.CutPrefix(value, []byte("JSON "))
		if r, ok := Parse(value); ok && isJSON {
			if want, known := naiveJSON(text); known && want != r {
				t.Errorf("%q: %+v, want %+v", text, r, want)
			}
			if !json.Valid(text) {
				t.Errorf("%q is no JSON", text)
			}
		}
	})
}

// naiveJSON reads a report with encoding/json; known is false where escaped or
// odd names make the two readings differ.
func naiveJSON(text []byte) (r Report, known bool) {
	if bytes.IndexByte(text, '\\') >= 0 {
		return r, false
	}
	var m map[string]any
	if json.Unmarshal(text, &m) != nil {
		return r, true
	}
	for name, v := range m {
		to := r.metric([]byte(name))
		if to == nil {
			continue
		}
		switch v := v.(type) {
		case float64:
			*to = v
		case string:
			if json.Unmarshal([]byte(v), to) != nil {
				return r, true
			}
		}
	}
	return r, true
}

// FuzzMessage feeds the wire reader itself.
func FuzzMessage(f *testing.F) {
	for _, s := range []string{cpu30, allThree, strings.TrimRight(everyPart, "="), "Iv///////////wE"} {
		b, err := base64.RawStdEncoding.DecodeString(s)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		r, ok := parseMessage(b)
		if len(b) <= maxValue/2 {
			again, same := ParseBinary([]byte(base64.StdEncoding.EncodeToString(b)))
			if again != r || same != ok {
				t.Errorf("%x: %+v %v, in base64 %+v %v", b, r, ok, again, same)
			}
		}
	})
}

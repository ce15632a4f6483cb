// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"fmt"
	"strings"

	"github.com/weirlb/weir/internal/logline"
	"github.com/weirlb/weir/internal/message"
)

// form writes a record as one line. It does not change after newForm.
type form struct {
	template *logline.Template // nil: JSON
	query    bool
	sampled  bool     // lines say their rate
	headers  []header // of the JSON form
}

// header is a field of the request that the JSON form shows.
type header struct {
	name string
	key  string // in JSON, up to the value's opening quote
}

func newForm(opt *AccessLogOptions) (form, error) {
	f := form{query: opt.Query, sampled: opt.Sample > 0 && opt.Sample < 1}
	text := opt.Format
	switch text {
	case "", "json":
		for _, name := range opt.Fields {
			if logline.Secret(name) {
				return f, fmt.Errorf("access log: %s holds credentials and is never logged", name)
			}
			key := appendEscaped([]byte(`"`), strings.ToLower(name))
			f.headers = append(f.headers, header{name, string(key) + `":"`})
		}
		return f, nil
	case "common":
		text = logline.Common
	case "combined":
		text = logline.Combined
	}
	var err error
	if f.template, err = logline.Parse(text); err != nil {
		return f, fmt.Errorf("access log: format: %w", err)
	}
	return f, nil
}

func (f *form) append(b []byte, r *Record, rate float64) []byte {
	if f.template != nil {
		return f.fill(b, r, rate)
	}
	b, cut := appendKeys(b, r, f.query)
	if f.sampled {
		b = append(b, `,"sample":`...)
		b = appendRate(b, rate)
	}
	if len(f.headers) > 0 && r.Request != nil {
		b = f.requestFields(b, r.Request, &cut)
	}
	return endRecord(b, cut)
}

// requestFields appends those fields that the request has.
func (f *form) requestFields(b []byte, fields *message.Fields, cut *bool) []byte {
	b = append(b, `,"request_headers":{`...)
	start := len(b)
	for i := range f.headers {
		h := &f.headers[i]
		v, _ := fields.Lookup(h.name)
		if len(v) > 0 && len(b) > start {
			b = append(b, ',')
		}
		b = text(b, h.key, v, maxLogText, cut)
	}
	return append(b, '}')
}

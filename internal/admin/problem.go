// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"bytes"
	"encoding/json"
	"net/http"
)

// Problem is an error document (RFC 9457). Type is about:blank throughout, so
// Title is the status's phrase; Code is the word for programs.
type Problem struct {
	Type   string `json:"type"`
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail,omitempty"`
	Code   string `json:"code"`
}

// Error implements error, for the client.
func (p *Problem) Error() string {
	if p.Detail != "" {
		return p.Detail
	}
	return p.Title
}

// The codes of problems.
const (
	CodeBadHost         = "bad_host"
	CodeCrossOrigin     = "cross_origin"
	CodeNotJSON         = "not_json"
	CodeBadBody         = "bad_body"
	CodeBadPatch        = "bad_patch"
	CodeUnauthorized    = "unauthorized"
	CodeForbidden       = "forbidden"
	CodeNotFound        = "not_found"
	CodeBadMethod       = "method_not_allowed"
	CodeUnknownPool     = "unknown_pool"
	CodeUnknownBackend  = "unknown_backend"
	CodeUnknownListener = "unknown_listener"
	CodeBadQuestion     = "bad_question"
	CodeTooMany         = "too_many"
	CodeInternal        = "internal"
)

func problem(w http.ResponseWriter, status int, code, detail string) {
	body, err := encoded(Problem{
		Type: "about:blank", Title: http.StatusText(status), Status: status, Detail: detail, Code: code,
	})
	if err != nil { // a struct of strings and a number: cannot happen
		http.Error(w, detail, status)
		return
	}
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(status)
	_, _ = w.Write(append(body, '\n')) // the client may be gone; nobody else to tell
}

// encoded is JSON for people too: "->" stays as it is, as no answer is ever part
// of a page.
func encoded(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(v)
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), err
}

func writeJSON(w http.ResponseWriter, v any) { writeJSONAs(w, http.StatusOK, v) }

func writeJSONAs(w http.ResponseWriter, status int, v any) {
	body, err := encoded(v)
	if err != nil {
		problem(w, http.StatusInternalServerError, CodeInternal, err.Error())
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(append(body, '\n')) // as above
}

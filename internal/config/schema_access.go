// SPDX-License-Identifier: Apache-2.0

package config

import (
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/weirlb/weir/internal/logline"
)

var accessFields = []field[AccessLog]{
	key("path", "stdout", text("stdout, stderr or a file", nil), func(a *AccessLog) *string { return &a.Path }, "where the lines go"),
	key("format", "json", accessFormat, func(a *AccessLog) *string { return &a.Format },
		"form of a line; a template has names of values in it, as in `$client [$time] \"$request\" $status` (monitoring.md lists them)"),
	key("sample", "100%", share(0.000001, 1), func(a *AccessLog) *float64 { return &a.Sample },
		"share of requests that are written, chosen at random; each line says it"),
	key("always", "[errors, retried]", sorted(listOf(choice([]string{"errors", "retried", "refused", "aborted"}), nil)),
		func(a *AccessLog) *[]string { return &a.Always },
		"those that are written whatever `sample` says: errors are answers from 500 on and answers that were cut, retried took more than one attempt, refused got a 4xx from weir itself, aborted lost their client").
		off("none", nil),
	key("slow", "none", duration(tick, day), func(a *AccessLog) *time.Duration { return &a.Slow },
		"requests that take this long are written whatever `sample` says").off("none", 0),
	key("query", "false", boolean(), func(a *AccessLog) *bool { return &a.Query }, "write queries, too; they often hold secrets"),
	key("request_headers", "[]", sorted(listOf(text("field name", loggedField), nil)), func(a *AccessLog) *[]string { return &a.RequestHeaders },
		"fields of the request that JSON lines show, as they were passed on; none that holds credentials"),
}

// checkAccess refuses fields for JSON lines where the lines are not JSON: an
// operator would find out that they are missing when they are needed.
func checkAccess(d *decoder, n *node, a *AccessLog) {
	if len(a.RequestHeaders) == 0 || a.Format == "json" {
		return
	}
	fix := "write format: json, or a template with $http_" + strings.ReplaceAll(strings.ToLower(a.RequestHeaders[0]), "-", "_")
	if !slices.Contains([]string{"common", "combined"}, a.Format) {
		fix = "remove it, and write $http_" + strings.ReplaceAll(strings.ToLower(a.RequestHeaders[0]), "-", "_") + " in format where it is to stand"
	}
	d.fault(n.at("request_headers"), "request_headers adds to JSON lines, and format is "+quote(a.Format), fix)
}

// accessFormat reads the form of an access log's line.
var accessFormat codec[string] = formatCodec{simple[string]{
	name: "json, common, combined or a template",
	parse: func(text string) (string, string, string) {
		forms := []string{"json", "common", "combined"}
		if slices.Contains(forms, text) {
			return text, "", ""
		}
		if !strings.Contains(text, "$") {
			return "", quote(text) + " is not known here", useOne(text, forms) + `, or a template such as '$client [$time] "$request" $status'`
		}
		_, err := logline.Parse(text)
		var wrong *logline.Error
		switch {
		case err == nil:
			return text, "", ""
		case !errors.As(err, &wrong):
			return "", err.Error(), "use json, common or combined"
		case wrong.Name == "":
			return "", wrong.What, wrong.Fix
		}
		if near := nearest(wrong.Name, logline.Names()); near != "" {
			return "", wrong.What, "did you mean $" + near + "?"
		}
		return "", wrong.What, "docs/monitoring.md lists them; $http_NAME is a field of the request"
	},
	format: func(v string) string { return v },
}}

// formatCodec shows a template in quotes.
type formatCodec struct{ simple[string] }

func (formatCodec) show(v string) *node { return textNode(v) }

func loggedField(name string) (what, fix string) {
	if !tokenPattern.MatchString(name) {
		return quote(name) + " is not a field name", "use letters, digits and -"
	}
	if logline.Secret(name) {
		return name + " holds credentials, which are never logged", "remove it"
	}
	return "", ""
}

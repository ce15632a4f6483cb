// SPDX-License-Identifier: Apache-2.0

package config

import (
	"strings"
	"testing"
)

func TestAccessFormat(t *testing.T) {
	for format, want := range map[string]string{
		"json":                  "",
		"combined":              "",
		`$client "$request"`:    "",
		"$${status}ms":          "", // ${NAME} is of the environment
		"clf":                   `"clf" is not known here`,
		"comon":                 "did you mean common?",
		"status":                "a template such as",
		"$client $statu":        "did you mean $status?",
		"$geoip_country":        "docs/monitoring.md lists them",
		`"$status`:              "a double quote that is not closed",
		"$http_cookie":          "would write credentials into the log",
		"$":                     "write $$ for a dollar",
		"${status}":             "the environment variable status is not set",
		"costs 5 $$":            "no value of a request",
		"$http_x_my_own_header": "",
	} {
		yaml := "log: {access: {format: '" + format + "'}}\nlisteners:\n  web: {bind: \":8080\", pool: app}\npools:\n  app: {backends: [\"http://10.0.1.21:8080\"]}\n"
		plan, err := Parse("weir.yaml", []byte(yaml), func(string) (string, bool) { return "", false })
		switch {
		case want == "" && err != nil:
			t.Errorf("%s: %v", format, err)
		case want == "" && plan.Log.Access.Format != strings.ReplaceAll(format, "$${", "${"):
			t.Errorf("%s became %s", format, plan.Log.Access.Format)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%s: %v, want something about %s", format, err, want)
		}
	}
}

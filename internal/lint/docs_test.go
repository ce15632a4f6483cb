// SPDX-License-Identifier: Apache-2.0

package lint_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/weirlb/weir/internal/config"
	"github.com/weirlb/weir/internal/lint"
)

var written = regexp.MustCompile("(?s)(?:```yaml\n|<<'END'\n)(.*?)(?:```|\nEND)")

// TestDocuments finds nothing beyond notes in the configurations that users
// begin with.
func TestDocuments(t *testing.T) {
	texts := map[string]string{}
	for _, file := range []string{"../../README.md", "../../docs/configuration.md"} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range written.FindAllStringSubmatch(string(text), -1) {
			if strings.Contains(m[1], "listeners:") && strings.Contains(m[1], "pools:") {
				texts[filepath.Base(file)] += "\x00" + m[1] + "\n"
			}
		}
	}
	demo, err := config.FromProxy(config.ProxyOptions{
		Listen: "127.0.0.1:8080", Admin: "127.0.0.1:9900", Balance: "p2c", HealthPath: "/readyz", HealthInterval: time.Second, Retries: 1,
		URLs: []string{"http://127.0.0.1:9001", "http://127.0.0.1:9002", "http://127.0.0.1:9003"},
	})
	if err != nil {
		t.Fatal(err)
	}
	texts["the demo"] = string(demo.YAML(true))
	if texts["README.md"] == "" || texts["configuration.md"] == "" {
		t.Error("README.md or docs/configuration.md shows no configuration any more")
	}
	for from, text := range texts {
		for one := range strings.SplitSeq(strings.TrimPrefix(text, "\x00"), "\x00") {
			in, err := input(t, "weir.yaml", one)
			if err != nil {
				t.Errorf("%s: %v", from, err)
				continue
			}
			for _, f := range lint.Run(in) {
				if f.Severity > lint.Note {
					t.Errorf("%s: %s: %s", from, f.Rule.Name, f.What)
				}
			}
		}
	}
}

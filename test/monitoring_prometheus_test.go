// SPDX-License-Identifier: Apache-2.0

package test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// checkShown lets a Prometheus scrape weir under the rules of docs: every query
// of the dashboard has something to show, and every rule can be evaluated.
func checkShown(t *testing.T, w *weir, board []expression) {
	rules, err := filepath.Abs("../docs/monitoring/alerts.yml")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	file := filepath.Join(dir, "prometheus.yml")
	text := fmt.Sprintf(`
global: {scrape_interval: 500ms, evaluation_interval: 500ms}
rule_files: [%q]
scrape_configs: [{job_name: weir, static_configs: [{targets: [%q]}]}]
`, rules, w.admin)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	addr := freeAddr(t)
	p := spawn(t, tool(t, "prometheus"), "--config.file="+file, "--storage.tsdb.path="+filepath.Join(dir, "data"),
		"--web.listen-address="+addr, "--log.level=warn")
	eventually(t, 30*time.Second, "Prometheus is ready", func() bool {
		resp, err := http.Get("http://" + addr + "/-/ready")
		if err != nil {
			return false
		}
		resp.Body.Close()
		select {
		case <-p.done:
			t.Fatal("Prometheus has ended")
		default:
		}
		return resp.StatusCode == 200
	})
	ask := func(path string, into any) {
		t.Helper()
		resp, err := http.Get("http://" + addr + path)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if err := json.NewDecoder(resp.Body).Decode(into); err != nil {
			t.Fatal(err)
		}
	}
	var answer struct {
		Status, Error string
		Data          struct{ Result []json.RawMessage }
	}
	query := func(expr string) {
		t.Helper()
		answer.Data.Result = nil
		ask("/api/v1/query?query="+url.QueryEscape(expr), &answer)
	}
	eventually(t, 30*time.Second, "Prometheus has scraped weir five times", func() bool {
		query("count_over_time(weir_build_info[1m]) >= 5")
		return len(answer.Data.Result) > 0
	})
	for _, e := range board {
		if query(e.text); answer.Status != "success" || len(answer.Data.Result) == 0 && !strings.HasPrefix(e.where, "annotation") {
			t.Errorf("%s shows nothing: %s%s", e.where, e.text, answer.Error)
		}
	}
	var list struct {
		Data struct {
			Groups []struct {
				Rules []struct{ Name, Health, LastError string }
			}
		}
	}
	evaluated := 0
	eventually(t, 30*time.Second, "all rules were evaluated", func() bool {
		ask("/api/v1/rules", &list)
		evaluated = 0
		for _, g := range list.Data.Groups {
			for _, r := range g.Rules {
				switch r.Health {
				case "err":
					t.Fatalf("rule %s: %s", r.Name, r.LastError)
				case "unknown":
					return false
				}
				evaluated++
			}
		}
		return evaluated > 0
	})
	if evaluated < 30 {
		t.Errorf("%d rules were evaluated", evaluated)
	}
}

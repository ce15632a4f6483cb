// SPDX-License-Identifier: Apache-2.0

package test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"sort"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"

	"github.com/weirlb/weir/internal/message"
)

// promised are the metrics that dashboards and alerts of users rely on, with
// their labels.
var promised = map[string]string{
	"weir_requests_total":             "backend code listener pool reason route",
	"weir_request_seconds":            "listener pool route",
	"weir_upstream_seconds":           "phase pool",
	"weir_in_flight":                  "backend pool",
	"weir_tunnels":                    "backend pool",
	"weir_tunnels_ended_total":        "cause outcome pool",
	"weir_streams_ended_total":        "cause pool",
	"weir_sessions_total":             "backend listener pool reason route",
	"weir_session_bytes_total":        "backend direction listener pool route",
	"weir_session_seconds_total":      "backend listener pool route",
	"weir_session_datagrams_total":    "backend direction listener pool route",
	"weir_datagrams_dropped_total":    "listener reason",
	"weir_flows_evicted_total":        "listener",
	"weir_backend_state":              "backend pool state",
	"weir_backends":                   "pool state",
	"weir_backend_share":              "backend pool",
	"weir_backend_flips_total":        "backend pool",
	"weir_ejections_total":            "backend cause pool",
	"weir_panic":                      "pool",
	"weir_correlated_failure":         "kind pool",
	"weir_retries_total":              "cause outcome pool",
	"weir_retry_budget_remaining":     "pool",
	"weir_connections":                "listener pool side",
	"weir_http2_streams":              "listener",
	"weir_upstream_connections_total": "backend pool reused",
	"weir_config_generation":          "",
	"weir_config_reloads_total":       "outcome",
	"weir_upgrades_total":             "outcome",
	"weir_accept_overflows_total":     "",
	"weir_bug_total":                  "where",
	"weir_floods_total":               "cause listener",
	"weir_accept_queue_length":        "listener",
	"weir_accept_queue_limit":         "listener",
	"weir_ephemeral_ports_free":       "destination",
	"weir_time_wait":                  "",
	"weir_pool_saturation":            "pool",
	"weir_queue_length":               "pool",
	"weir_concurrency_limit":          "pool",
	"weir_shed_total":                 "pool priority",
	"weir_queue_seconds":              "pool",
	"weir_probe_seconds":              "outcome",
	"weir_log_dropped_total":          "",
	"weir_memory_limit_bytes":         "",
	"weir_memory_needed_bytes":        "",
	"weir_memory_short":               "",
	"weir_connections_relieved_total": "side",
	"weir_memory_buffered_bytes":      "",
	"weir_state_file_writes_total":    "outcome",
	"weir_redispatches_total":         "cause pool",
	"weir_sticky_total":               "outcome pool",
	"weir_hedges_total":               "outcome pool",
	"weir_grpc_calls_total":           "grpc_status listener pool route",
	"weir_build_info":                 "goversion version",
	"weir_discovery_backends":         "pool",
	"weir_discovery_held":             "pool",
	"weir_discovery_answers_total":    "outcome pool",

	"weir_memory_buffered_limit_bytes":             "",
	"weir_discovery_last_answer_timestamp_seconds": "pool",
	"weir_acme_orders_total":                       "outcome",
	"weir_tls_handshakes_total":                    "listener outcome",
	"weir_tls_handshakes_in_progress":              "listener",
	"weir_tls_handshake_seconds":                   "listener outcome",
	"weir_proxy_headers_total":                     "listener outcome",
	"weir_certificate_expiry_timestamp_seconds":    "listener name",
}

// TestMonitoring holds the metrics of a weir at work against what promtool wants
// of metrics, against the names that were promised, and against what the alerts,
// the dashboard and the documentation in docs say of them.
func TestMonitoring(t *testing.T) {
	promtool := tool(t, "promtool")
	w := startMonitored(t)
	text := w.metrics(t)
	metrics := parseMetrics(t, text)

	t.Run("promtool", func(t *testing.T) {
		cmd := exec.Command(promtool, "check", "metrics")
		cmd.Stdin = strings.NewReader(text)
		if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
			t.Errorf("promtool check metrics: %v\n%s", err, out)
		}
	})
	t.Run("names", func(t *testing.T) {
		for name, want := range promised {
			f := metrics[name]
			if f == nil {
				t.Errorf("%s is not there", name)
				continue
			}
			if got := labelsOf(f); got != want {
				t.Errorf("%s has the labels %q, want %q", name, got, want)
			}
		}
		for name := range metrics {
			if _, ok := promised[name]; !ok && strings.HasPrefix(name, "weir_") {
				t.Errorf("%s is there and not in the list of those that stay", name)
			}
		}
	})
	t.Run("documentation", func(t *testing.T) { documented(t, promtool, metrics) })

	rules := readRules(t)
	recorded := map[string]bool{"up": true}
	var exprs []expression
	for _, g := range rules.Groups {
		for _, r := range g.Rules {
			recorded[r.Record] = true
			exprs = append(exprs, expression{r.Record + r.Alert, r.Expr})
		}
	}
	board := readDashboard(t)
	t.Run("uses", func(t *testing.T) {
		for _, e := range append(exprs, board...) {
			for _, fault := range wrongUses(e, metrics, recorded) {
				t.Error(fault)
			}
		}
		for expr, want := range map[string]string{ // a check that finds nothing wrong is none
			`rate(weir_requets_total[5m])`:                      "no metric weir_requets_total",
			`weir_queue_seconds`:                                "no metric weir_queue_seconds",
			`weir_panic{pol="app"}`:                             "no label pol",
			`sum by (pol) (weir_panic)`:                         "groups by pol",
			`weir_upstream_seconds_sum{phase="conect"}`:         `phase="conect"`,
			`weir_requests_total{reason=~"ok|conect_refused"}`:  `reason="conect_refused"`,
			`weir_config_reloads_total{outcome="failed", a=""}`: "no label a",
		} {
			if got := strings.Join(wrongUses(expression{"planted", expr}, metrics, recorded), "\n"); !strings.Contains(got, want) {
				t.Errorf("%s: found %q, want %q", expr, got, want)
			}
		}
	})
	t.Run("syntax", func(t *testing.T) { checkSyntax(t, promtool, board) })
	t.Run("alerts fire", func(t *testing.T) {
		cmd := exec.Command(promtool, "test", "rules", "alerts_test.yml")
		cmd.Dir = "../docs/monitoring"
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("promtool test rules: %v\n%s", err, out)
		}
		tests, err := os.ReadFile("../docs/monitoring/alerts_test.yml")
		if err != nil {
			t.Fatal(err)
		}
		for _, g := range rules.Groups {
			for _, r := range g.Rules {
				if r.Alert != "" && !bytes.Contains(tests, fmt.Appendf(nil, "ALERTS{alertname=%q, alertstate=\"firing\"", r.Alert)) {
					t.Errorf("no test fires %s", r.Alert)
				}
			}
		}
	})
	t.Run("dashboard shows", func(t *testing.T) { checkShown(t, w, board) })
}

func labelsOf(f *family) string {
	seen := map[string]bool{}
	for _, s := range f.series {
		for l := range s.labels {
			if l != "le" {
				seen[l] = true
			}
		}
	}
	var out []string
	for l := range seen {
		out = append(out, l)
	}
	sort.Strings(out)
	return strings.Join(out, " ")
}

// documented holds docs/monitoring.md to have a row for each metric, with its
// labels, and a heading for each alert.
func documented(t *testing.T, promtool string, metrics map[string]*family) {
	text, err := os.ReadFile("../docs/monitoring.md")
	if err != nil {
		t.Fatal(err)
	}
	for name, f := range metrics {
		if !strings.HasPrefix(name, "weir_") {
			continue
		}
		row := regexp.MustCompile("(?m)^\\| `" + name + "(?:\\{([a-z_,]*)\\})?` \\| ([a-z]+) \\|").FindSubmatch(text)
		if row == nil {
			t.Errorf("%s has no row in docs/monitoring.md", name)
			continue
		}
		labels := strings.FieldsFunc(string(row[1]), func(r rune) bool { return r == ',' })
		sort.Strings(labels)
		if got := strings.Join(labels, " "); got != labelsOf(f) || string(row[2]) != f.kind {
			t.Errorf("docs/monitoring.md has %s as %s of %q; it is %s of %q", name, row[2], got, f.kind, labelsOf(f))
		}
	}
	for _, m := range regexp.MustCompile("`(weir_[a-z0-9_]+)").FindAllSubmatch(text, -1) {
		name := string(m[1])
		if metrics[name] == nil && familyOf(name, metrics) == nil {
			t.Errorf("docs/monitoring.md speaks of %s, which is not there", name)
		}
	}
	checkExamples(t, promtool, string(text))
	for _, g := range readRules(t).Groups {
		for _, r := range g.Rules {
			if r.Alert == "" {
				continue
			}
			if !bytes.Contains(text, []byte("\n### "+r.Alert+"\n")) {
				t.Errorf("alert %s has no section in docs/monitoring.md", r.Alert)
			}
			a := r.Annotations
			if a["summary"] == "" || a["description"] == "" || !strings.HasSuffix(a["runbook_url"], "docs/monitoring.md#"+strings.ToLower(r.Alert)) {
				t.Errorf("alert %s: annotations %v", r.Alert, a)
			}
			if s := r.Labels["severity"]; s != "page" && s != "ticket" {
				t.Errorf("alert %s: severity %q", r.Alert, s)
			}
		}
	}
}

// checkExamples holds the configurations of a document to weir check, those of
// Prometheus and its queries to promtool.
func checkExamples(t *testing.T, promtool, text string) {
	t.Helper()
	dir := t.TempDir()
	rules, err := os.ReadFile("../docs/monitoring/alerts.yml")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "alerts.yml"), rules, 0o600); err != nil {
		t.Fatal(err)
	}
	run := func(name, content, program string, args ...string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(program, append(args, name)...)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s %v: %v\n%s\n%s", program, args, err, content, out)
		}
	}
	blocks := regexp.MustCompile("(?s)```(yaml|promql)\n(.*?)```").FindAllStringSubmatch(text, -1)
	kinds := map[string]int{}
	for _, b := range blocks {
		kind := b[1]
		switch {
		case kind == "promql":
			run("query.yml", fmt.Sprintf("groups: [{name: q, rules: [{record: q, expr: %q}]}]", b[2]), promtool, "check", "rules")
		case strings.Contains(b[2], "scrape_configs"):
			kind = "prometheus"
			run("prometheus.yml", b[2], promtool, "check", "config")
		default:
			run("weir.yaml", strings.ReplaceAll(b[2], "/var/log/weir/", dir+"/"), binary, "check", "-c")
		}
		kinds[kind]++
	}
	if kinds["yaml"] < 3 || kinds["promql"] < 3 || kinds["prometheus"] != 1 {
		t.Errorf("examples: %v", kinds)
	}
}

type ruleFile struct {
	Groups []struct {
		Name  string `yaml:"name"`
		Rules []struct {
			Record      string            `yaml:"record"`
			Alert       string            `yaml:"alert"`
			Expr        string            `yaml:"expr"`
			Labels      map[string]string `yaml:"labels"`
			Annotations map[string]string `yaml:"annotations"`
		} `yaml:"rules"`
	} `yaml:"groups"`
}

func readRules(t *testing.T) *ruleFile {
	t.Helper()
	text, err := os.ReadFile("../docs/monitoring/alerts.yml")
	if err != nil {
		t.Fatal(err)
	}
	var f ruleFile
	if err := yaml.Unmarshal(text, &f); err != nil {
		t.Fatal(err)
	}
	if len(f.Groups) == 0 {
		t.Fatal("no rules")
	}
	return &f
}

// expression is a query and where it stands.
type expression struct{ where, text string }

// readDashboard returns the queries of the dashboard with its variables filled
// in as Grafana does for "All", and holds its form to what an import needs.
func readDashboard(t *testing.T) []expression {
	t.Helper()
	text, err := os.ReadFile("../docs/monitoring/grafana.json")
	if err != nil {
		t.Fatal(err)
	}
	type source struct{ Type, UID string }
	var d struct {
		UID, Title    string
		SchemaVersion int
		Templating    struct {
			List []struct {
				Name, Type, Definition string
				Datasource             *source
			}
		}
		Annotations struct{ List []struct{ Name, Expr string } }
		Panels      []struct {
			ID          int
			Type, Title string
			Datasource  *source
			GridPos     struct{ H, W, X, Y int }
			Targets     []struct {
				Expr       string
				Datasource *source
			}
		}
	}
	if err := json.Unmarshal(text, &d); err != nil {
		t.Fatal(err)
	}
	if len(d.Templating.List) == 0 || d.Templating.List[0].Name != "datasource" || d.Templating.List[0].Type != "datasource" {
		t.Error("the first variable is not the data source: an import could not choose one")
	}
	fill := strings.NewReplacer("$__rate_interval", "1m", "$job", ".*", "$instance", ".*", "$pool", ".*")
	var out []expression
	ids, taken := map[int]bool{}, map[[2]int]string{}
	for _, p := range d.Panels {
		if p.ID == 0 || ids[p.ID] {
			t.Errorf("panel %q: id %d is there already", p.Title, p.ID)
		}
		ids[p.ID] = true
		for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
			for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
				if other := taken[[2]int{x, y}]; other != "" || x >= 24 {
					t.Fatalf("panel %q lies over %q, or over the edge", p.Title, other)
				}
				taken[[2]int{x, y}] = p.Title
			}
		}
		if (p.Type == "row") != (len(p.Targets) == 0) {
			t.Errorf("panel %q has %d queries", p.Title, len(p.Targets))
		}
		for _, q := range p.Targets {
			if q.Datasource == nil || q.Datasource.UID != "${datasource}" {
				t.Errorf("panel %q asks another source than the one chosen", p.Title)
			}
			out = append(out, expression{"panel " + p.Title, fill.Replace(q.Expr)})
		}
	}
	for _, a := range d.Annotations.List {
		out = append(out, expression{"annotation " + a.Name, fill.Replace(a.Expr)})
	}
	for _, v := range d.Templating.List {
		if m := regexp.MustCompile(`^label_values\((.+), ([a-z]+)\)$`).FindStringSubmatch(v.Definition); m != nil {
			out = append(out, expression{"variable " + v.Name, "sum by (" + m[2] + ") (" + fill.Replace(m[1]) + ")"})
		}
	}
	return out
}

// vocabulary are the values that labels with a fixed set of them can have,
// beyond those that the test's own traffic brought about.
func vocabulary() map[string][]string {
	v := map[string][]string{
		"outcome": {"success", "failure", "no_budget", "not_replayable", "not_allowed", "too_late", "retried_below", "won", "lost", "refused", "ok", "partial", "empty", "failed", "done"},
		"code":    {"500", "599"},
	}
	for r := range message.Reasons {
		v["reason"] = append(v["reason"], r.String())
	}
	return v
}

// wrongUses says what an expression names that is not there: metrics, labels,
// and values that labels never have.
func wrongUses(e expression, metrics map[string]*family, recorded map[string]bool) (faults []string) {
	fault := func(format string, args ...any) { faults = append(faults, e.where+": "+fmt.Sprintf(format, args...)) }
	words := vocabulary()
	groups := map[string]bool{"job": true, "instance": true, "le": true}
	for _, u := range usesOf(e.text) {
		f := familyOf(u.metric, metrics)
		if f == nil {
			if !recorded[u.metric] {
				fault("there is no metric %s", u.metric)
			}
			continue
		}
		known := strings.Fields(labelsOf(f) + " job instance le")
		for _, l := range known {
			groups[l] = true
		}
		for _, m := range u.matchers {
			if !slices.Contains(known, m.label) {
				fault("%s has no label %s", u.metric, m.label)
				continue
			}
			for _, v := range m.values() {
				re := regexp.MustCompile("^(?:" + v + ")$")
				if v != "" && v != ".*" && !slices.ContainsFunc(words[m.label], re.MatchString) &&
					!slices.ContainsFunc(f.series, func(s series) bool { return re.MatchString(s.labels[m.label]) }) {
					fault("no %s has %s=%q", u.metric, m.label, v)
				}
			}
		}
	}
	for _, l := range groupingOf(e.text) {
		if !groups[l] {
			fault("groups by %s, which nothing in it has", l)
		}
	}
	return faults
}

// familyOf returns the metric that a series of that name belongs to: those of a
// histogram have a suffix.
func familyOf(name string, metrics map[string]*family) *family {
	for _, suffix := range []string{"", "_bucket", "_sum", "_count"} {
		base, ok := strings.CutSuffix(name, suffix)
		if f := metrics[base]; ok && f != nil && (f.kind == "histogram") == (suffix != "") {
			return f
		}
	}
	return nil
}

// checkSyntax lets promtool parse the rules, and the dashboard's queries as if
// they were rules.
func checkSyntax(t *testing.T, promtool string, board []expression) {
	var b strings.Builder
	b.WriteString("groups: [{name: board, rules: [\n")
	for i, e := range board {
		fmt.Fprintf(&b, "  {record: 'q%d', expr: %q},\n", i, e.text)
	}
	b.WriteString("]}]\n")
	file := filepath.Join(t.TempDir(), "board.yml")
	if err := os.WriteFile(file, []byte(b.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, f := range []string{"../docs/monitoring/alerts.yml", file} {
		if out, err := exec.Command(promtool, "check", "rules", f).CombinedOutput(); err != nil {
			t.Errorf("promtool check rules: %v\n%s", err, out)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
)

// row is one line of the table in README.md.
type row struct {
	what    string
	name    string // the case
	form    string // of a figure
	figures []string
}

var rows = []row{
	{what: "plain HTTP/1.1, CPU us per request", name: "plain", form: "%.1f", figures: []string{"cpu_us_per_request"}},
	{what: "the same, requests/s", name: "plain", form: "%.0f", figures: []string{"requests_per_s"}},
	{what: "the same, closed loop p50 / p99 ms", name: "plain", form: "%.2f", figures: []string{"p50_ms", "p99_ms"}},
	{what: "TLS 1.3, CPU us per request", name: "tls", form: "%.1f", figures: []string{"cpu_us_per_request"}},
	{what: "HTTP/2 over TLS in, HTTP/1.1 out, CPU us per request", name: "h2", form: "%.1f", figures: []string{"cpu_us_per_request"}},
	{what: "gRPC unary, HTTP/2 in and out, CPU us per call", name: "grpc", form: "%.1f", figures: []string{"cpu_us_per_request"}},
	{what: "full TLS 1.3 handshakes, CPU us each", name: "handshake", form: "%.0f", figures: []string{"cpu_us_per_handshake"}},
	{what: "1 MiB answers, CPU s per GiB", name: "bulk", form: "%.2f", figures: []string{"cpu_s_per_gib"}},
	{what: "access logs on, CPU us per request", name: "logs", form: "%.1f", figures: []string{"cpu_us_per_request"}},
	{what: "8,000 requests/s fixed, p50 / p99 ms", name: "rate", form: "%.2f", figures: []string{"p50_ms", "p99_ms"}},
	{what: "TCP passed on, kept sessions, CPU us per exchange", name: "l4", form: "%.1f", figures: []string{"cpu_us_per_request"}},
	{what: "TCP passed on, a session for each exchange, CPU us", name: "l4-new", form: "%.0f", figures: []string{"cpu_us_per_request"}},
	{what: "TCP passed on, 1 MiB answers, CPU s per GiB", name: "l4-bulk", form: "%.2f", figures: []string{"cpu_s_per_gib"}},
	{what: "TCP passed on, 1,000 at once, 1 MiB answers, GiB/s", name: "l4-many", form: "%.2f", figures: []string{"gib_per_s"}},
	{what: "UDP flows, CPU us per datagram", name: "udp", form: "%.1f", figures: []string{"cpu_us_per_packet"}},
	{what: "5,000 idle kept clients, KiB each", name: "idle", form: "%.1f", figures: []string{"kib_per_client"}},
	{what: "the same under TLS", name: "idle-tls", form: "%.1f", figures: []string{"kib_per_client"}},
	{what: "resident memory with 5,000 idle clients, MiB", name: "idle", form: "%.0f", figures: []string{"rss_mib"}},
	{what: "2,000 idle HTTP/2 clients over TLS, KiB each", name: "idle-h2", form: "%.1f", figures: []string{"kib_per_client"}},
	{what: "2,000 idle WebSockets, KiB each", name: "idle-ws", form: "%.1f", figures: []string{"kib_per_client"}},
	{what: "idle TCP sessions (weir 8,000, the others 2,000), KiB each", name: "l4-idle", form: "%.1f", figures: []string{"kib_per_client"}},
}

// table writes the table of README.md from a saved run.
func table(file string, w io.Writer) error {
	raw, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var rep report
	if err := json.Unmarshal(raw, &rep); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	fmt.Fprintln(w, "| | weir | nginx | HAProxy | Caddy | weir / nginx | weir / HAProxy |")
	fmt.Fprintln(w, "|---|---|---|---|---|---|---|")
	for _, r := range rows {
		cells := []string{r.what}
		for _, p := range []string{"weir", "nginx", "haproxy", "caddy"} {
			cells = append(cells, r.medians(&rep, p))
		}
		of := r.ratioOf(&rep)
		fmt.Fprintf(w, "| %s | %s | %s |\n", strings.Join(cells, " | "), of("nginx"), of("haproxy"))
	}
	return nil
}

// medians are the figures of a program, "-" where it has none.
func (r *row) medians(rep *report, program string) string {
	var out []string
	for _, f := range r.figures {
		s := rep.Figures[r.name][program][f]
		if len(s) == 0 {
			return "-"
		}
		mid, _, _ := s.median()
		out = append(out, fmt.Sprintf(r.form, mid))
	}
	return strings.Join(out, " / ")
}

// ratioOf says what weir's figure is of a peer's, for the last figure of the row.
func (r *row) ratioOf(rep *report) func(peer string) string {
	f := r.figures[len(r.figures)-1]
	return func(peer string) string {
		theirs := rep.Figures[r.name][peer][f]
		if len(theirs) == 0 {
			return "-"
		}
		mid, _, _ := ratio(rep.Figures[r.name]["weir"][f], theirs)
		return fmt.Sprintf("%.2f", mid)
	}
}

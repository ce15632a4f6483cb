// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"
)

type options struct {
	rounds   int
	seconds  time.Duration
	cases    string
	proxies  string
	rate     int
	idle     int
	sessions int
	out      string
}

// benchCase is one column of the table.
type benchCase struct {
	name   string
	what   string
	metric string // the figure that ratios are printed for
	logs   bool   // needs the lab with access logs on
	once   bool   // memory: one measurement, not one a round
	lacks  string // programs that cannot do it, between commas; they are left out
	also   string // a program that is measured beside weir, wherever weir is
	run    func(o *options, p *proxy) (result, error)
}

var cases = []benchCase{
	{name: "plain", what: "HTTP/1.1, 64 kept connections, 128 bytes", metric: "cpu_us_per_request",
		run: func(o *options, p *proxy) (result, error) {
			return closedLoop(p, fmt.Sprintf("http://127.0.0.1:%d/", p.ports.plain), 64, o.seconds)
		}},
	{name: "tls", what: "TLS 1.3, HTTP/1.1, 64 kept connections, 128 bytes", metric: "cpu_us_per_request",
		run: func(o *options, p *proxy) (result, error) {
			return closedLoop(p, fmt.Sprintf("https://127.0.0.1:%d/", p.ports.tls), 64, o.seconds)
		}},
	{name: "h2", what: "HTTP/2 over TLS 1.3 in, HTTP/1.1 out, 8 connections of 32 streams, 128 bytes", metric: "cpu_us_per_request",
		run: func(o *options, p *proxy) (result, error) {
			return multiplexed(p, fmt.Sprintf("https://127.0.0.1:%d/", p.ports.tls), 8, 32, o.seconds)
		}},
	{name: "grpc", what: "gRPC unary calls, HTTP/2 without TLS in and out, 8 connections of 32 streams", metric: "cpu_us_per_request",
		run: func(o *options, p *proxy) (result, error) { return unary(p, 8, 32, o.seconds) }},
	{name: "handshake", what: "full TLS 1.3 handshakes (P-256 certificate, X25519), no request", metric: "cpu_us_per_handshake",
		run: func(o *options, p *proxy) (result, error) {
			return handshakes(p, p.at(p.ports.tls), o.seconds)
		}},
	{name: "bulk", what: "HTTP/1.1, 16 kept connections, 1 MiB answers", metric: "cpu_s_per_gib",
		run: func(o *options, p *proxy) (result, error) {
			return closedLoop(p, fmt.Sprintf("http://127.0.0.1:%d/1m", p.ports.plain), 16, o.seconds)
		}},
	{name: "l4", what: "kept sessions of TCP, 64, of 128 bytes each way", metric: "cpu_us_per_request", lacks: "caddy",
		run: func(o *options, p *proxy) (result, error) {
			return closedLoop(p, fmt.Sprintf("http://127.0.0.1:%d/", p.ports.l4), 64, o.seconds)
		}},
	{name: "l4-new", what: "a session of TCP for each exchange, 64 at once", metric: "cpu_us_per_request", lacks: "caddy",
		run: func(o *options, p *proxy) (result, error) {
			return closedLoop(p, fmt.Sprintf("http://127.0.0.1:%d/", p.ports.l4), 64, o.seconds, "-H", "Connection: close")
		}},
	{name: "l4-bulk", what: "kept sessions of TCP, 16, answers of 1 MiB", metric: "cpu_s_per_gib", lacks: "caddy",
		run: func(o *options, p *proxy) (result, error) {
			return closedLoop(p, fmt.Sprintf("http://127.0.0.1:%d/1m", p.ports.l4), 16, o.seconds)
		}},
	{name: "l4-many", what: "kept sessions of TCP, 1,000, answers of 1 MiB: as an ordinary user (weir-user), and as root", metric: "gib_per_s", lacks: "caddy", also: "weir-user",
		run: func(o *options, p *proxy) (result, error) {
			return closedLoop(p, fmt.Sprintf("http://127.0.0.1:%d/1m", p.ports.l4), 1000, o.seconds, "--timeout", "30s")
		}},
	{name: "udp", what: "flows of UDP, 64, of 128 bytes each way", metric: "cpu_us_per_packet", lacks: "haproxy,caddy",
		run: func(o *options, p *proxy) (result, error) { return datagrams(p, 64, 128, false, o.seconds) }},
	{name: "udp-new", what: "a flow of UDP for each exchange, 64 at once", metric: "cpu_us_per_packet", lacks: "haproxy,caddy",
		run: func(o *options, p *proxy) (result, error) { return datagrams(p, 64, 128, true, o.seconds) }},
	{name: "rate", what: "HTTP/1.1 at a fixed rate over 64 connections", metric: "p99_ms",
		run: func(o *options, p *proxy) (result, error) {
			return openLoop(p, p.at(p.ports.plain), o.rate, 64, o.seconds)
		}},
	{name: "logs", what: "as plain, access logs on everywhere", metric: "cpu_us_per_request", logs: true,
		run: func(o *options, p *proxy) (result, error) {
			return closedLoop(p, fmt.Sprintf("http://127.0.0.1:%d/", p.ports.plain), 64, o.seconds)
		}},
	{name: "idle", what: "idle kept clients, plain", metric: "kib_per_client", once: true,
		run: func(o *options, p *proxy) (result, error) {
			return idle(p, func() (io.Closer, error) { return http1Client(dialPlain(p.at(p.ports.plain))) }, o.idle, 20*time.Second)
		}},
	{name: "idle-tls", what: "idle kept clients, TLS 1.3", metric: "kib_per_client", once: true,
		run: func(o *options, p *proxy) (result, error) {
			return idle(p, func() (io.Closer, error) { return http1Client(dialTLS(p.at(p.ports.tls))) }, o.idle, 20*time.Second)
		}},
	{name: "idle-h2", what: "idle clients, HTTP/2 over TLS 1.3, two fifths as many", metric: "kib_per_client", once: true,
		run: func(o *options, p *proxy) (result, error) {
			return idle(p, func() (io.Closer, error) { return http2Client(p.at(p.ports.tls)) }, o.idle*2/5, 20*time.Second)
		}},
	{name: "l4-idle", what: "idle sessions of TCP", metric: "kib_per_client", once: true, lacks: "caddy", also: "weir-user",
		run: func(o *options, p *proxy) (result, error) {
			n := o.sessions
			if p.name != "weir" && p.name != "weir-user" { // their limits of connections are those of the other cases
				n = 2000
			}
			return idle(p, func() (io.Closer, error) { return http1Client(dialPlain(p.at(p.ports.l4))) }, n, 20*time.Second)
		}},
	{name: "idle-ws", what: "idle WebSockets, plain, two fifths as many", metric: "kib_per_client", once: true,
		run: func(o *options, p *proxy) (result, error) {
			return idle(p, func() (io.Closer, error) { return webSocket(p.at(p.ports.plain)) }, o.idle*2/5, 20*time.Second)
		}},
}

func main() {
	var o options
	flag.IntVar(&o.rounds, "rounds", 9, "rounds of alternation")
	flag.DurationVar(&o.seconds, "seconds", 4*time.Second, "length of one measurement (whole seconds)")
	flag.StringVar(&o.cases, "cases", "plain,tls,h2,grpc,handshake,bulk,l4,l4-new,l4-bulk,l4-many,udp,udp-new,rate,logs,idle,idle-tls,idle-h2,idle-ws,l4-idle", "what to measure")
	flag.StringVar(&o.proxies, "proxies", "weir,nginx,haproxy,caddy", "which programs, each in the cases that it can do")
	flag.IntVar(&o.rate, "rate", 8000, "requests per second of the fixed-rate case")
	flag.IntVar(&o.idle, "idle", 5000, "clients of the idle case")
	flag.IntVar(&o.sessions, "sessions", 8000, "sessions of the l4-idle case")
	flag.StringVar(&o.out, "out", "bench/results/latest", "results are written to this name with .txt and .json")
	saved := flag.String("print", "", "print the tables of a saved run (the .json) and measure nothing")
	inReadme := flag.String("table", "", "print the table of README.md from a saved run (the .json) and measure nothing")
	backends := flag.String("grpc-backends", "", "serve gRPC calls on these addresses, and do nothing else")
	flag.Parse()
	if *backends != "" {
		fmt.Fprintln(os.Stderr, "bench:", grpcBackends(*backends))
		os.Exit(1)
	}
	err := error(nil)
	switch {
	case *saved != "":
		err = printSaved(*saved, os.Stdout)
	case *inReadme != "":
		err = table(*inReadme, os.Stdout)
	default:
		err = run(&o, os.Stdout)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// report is what is saved.
type report struct {
	Machine  string
	Versions map[string]string
	Rounds   int
	Seconds  float64
	Names    []string // of the programs that were asked for
	// Figures by case, proxy, figure: one value a round.
	Figures map[string]map[string]map[string]sample
	// Failed says, by case and proxy, why a peer has no figures.
	Failed map[string]map[string]string `json:",omitempty"`
}

// among returns the programs of a case, of those that are asked for.
func (c *benchCase) among(names []string) []string {
	out := slices.DeleteFunc(slices.Clone(names), func(n string) bool {
		return slices.Contains(strings.Split(c.lacks, ","), n)
	})
	if i := slices.Index(out, "weir"); i >= 0 && c.also != "" && !slices.Contains(out, c.also) {
		out = slices.Insert(out, i+1, c.also)
	}
	return out
}

func run(o *options, w io.Writer) error {
	rep := &report{
		Machine:  fmt.Sprintf("%s/%s, %d cores, %s", runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), kernel()),
		Versions: map[string]string{}, Rounds: o.rounds, Seconds: o.seconds.Seconds(),
		Figures: map[string]map[string]map[string]sample{},
	}
	rep.Names = strings.Split(o.proxies, ",")
	for _, logs := range []bool{false, true} {
		if err := o.lab(rep, rep.Names, logs, w); err != nil {
			return err
		}
	}
	rep.print(w)
	return nil
}

// save writes what has been measured so far.
func (rep *report) save(out string) error {
	if err := os.MkdirAll(filepath.Dir(out), 0o755); err != nil {
		return err
	}
	js, err := json.MarshalIndent(rep, "", " ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(out+".json", append(js, '\n'), 0o644); err != nil {
		return err
	}
	var b strings.Builder
	rep.print(&b)
	return os.WriteFile(out+".txt", []byte(b.String()), 0o644)
}

func printSaved(path string, w io.Writer) error {
	js, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var rep report
	if err := json.Unmarshal(js, &rep); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	rep.print(w)
	return nil
}

// lab runs all chosen cases that want access logs on (or off).
func (o *options) lab(rep *report, names []string, logs bool, w io.Writer) error {
	var todo []benchCase
	for _, c := range cases {
		if c.logs == logs && slices.Contains(strings.Split(o.cases, ","), c.name) {
			todo = append(todo, c)
		}
	}
	if len(todo) == 0 {
		return nil
	}
	l, err := newLab(logs)
	if err != nil {
		return err
	}
	defer l.close()
	for _, c := range todo {
		// Alternation round by round; a process is started once a case, so that a
		// case does not inherit another's memory.
		var ps []*proxy
		for _, n := range c.among(names) {
			p, err := l.start(n)
			if err != nil {
				return err
			}
			defer stop(p.cmd)
			rep.Versions[n] = p.version
			ps = append(ps, p)
		}
		rounds := o.rounds
		if c.once {
			rounds = 1
		}
		for r := range rounds {
			for i := range ps {
				p := ps[(i+r)%len(ps)] // nobody is always first
				if rep.Failed[c.name][p.name] != "" {
					continue
				}
				res, err := c.run(o, p)
				switch {
				case err != nil && strings.HasPrefix(p.name, "weir"):
					return fmt.Errorf("%s, %s: %w\n%s", c.name, p.name, err, p.errors)
				case err != nil: // what a peer cannot do is a result
					rep.fail(c.name, p.name, err)
					fmt.Fprintf(w, "round %d %-8s %-8s left out: %v\n", r+1, c.name, p.name, err)
					continue
				}
				rep.add(c.name, p.name, res)
				fmt.Fprintf(w, "round %d %-8s %-8s %s\n", r+1, c.name, p.name, brief(res))
			}
		}
		for _, p := range ps {
			stop(p.cmd)
		}
		if err := rep.save(o.out); err != nil {
			return err
		}
	}
	return nil
}

// fail leaves a program out of a case, with what it had before.
func (rep *report) fail(c, p string, err error) {
	if rep.Failed == nil {
		rep.Failed = map[string]map[string]string{}
	}
	if rep.Failed[c] == nil {
		rep.Failed[c] = map[string]string{}
	}
	rep.Failed[c][p] = strings.TrimSpace(err.Error())
	delete(rep.Figures[c], p)
}

func (rep *report) add(c, p string, res result) {
	if rep.Figures[c] == nil {
		rep.Figures[c] = map[string]map[string]sample{}
	}
	if rep.Figures[c][p] == nil {
		rep.Figures[c][p] = map[string]sample{}
	}
	for k, v := range res {
		rep.Figures[c][p][k] = append(rep.Figures[c][p][k], v)
	}
}

func (rep *report) print(w io.Writer) {
	fmt.Fprintf(w, "\n%s; %d rounds of %gs; medians [interval]; ratios are medians of round-by-round ratios\n", rep.Machine, rep.Rounds, rep.Seconds)
	for _, n := range rep.Names {
		fmt.Fprintf(w, "  %-8s %s\n", n, rep.Versions[n])
	}
	for _, c := range cases {
		figs := rep.Figures[c.name]
		if figs == nil {
			continue
		}
		fmt.Fprintf(w, "\n%s: %s\n", c.name, c.what)
		names := c.among(rep.Names)
		for _, n := range names {
			fmt.Fprintf(w, "  %-8s", n)
			if why := rep.Failed[c.name][n]; why != "" {
				fmt.Fprintf(w, "  left out: %s\n", why)
				continue
			}
			for _, k := range sortedKeys(figs[n]) {
				fmt.Fprintf(w, "  %s %s", k, interval(figs[n][k].median()))
			}
			fmt.Fprintln(w)
		}
		for _, n := range names {
			if n != "weir" && figs["weir"] != nil && figs[n] != nil {
				fmt.Fprintf(w, "  weir / %-8s %s = %s\n", n, c.metric, interval(ratio(figs["weir"][c.metric], figs[n][c.metric])))
			}
		}
	}
}

func sortedKeys(m map[string]sample) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

func brief(r result) string {
	var b strings.Builder
	for _, k := range []string{"cpu_us_per_request", "cpu_us_per_handshake", "cpu_us_per_packet", "user_us", "cpu_s_per_gib", "requests_per_s", "gib_per_s", "p50_ms", "p99_ms", "kib_per_client", "files_per_client"} {
		if v, ok := r[k]; ok {
			fmt.Fprintf(&b, " %s=%.4g", k, v)
		}
	}
	return b.String()
}

func kernel() string {
	text, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		return "unknown kernel"
	}
	release, _, _ := strings.Cut(strings.TrimSpace(string(text)), "-")
	return "Linux " + release
}

// SPDX-License-Identifier: Apache-2.0

package config

import (
	"slices"
	"strconv"
	"strings"
	"time"
)

var activeFields = []field[Active]{
	key("protocol", "auto", choice([]string{"tcp", "http", "grpc", "udp"}), func(a *Active) *string { return &a.Protocol }, "auto is http when path is given, grpc when service is, udp when send is and backends are udp://, else tcp; grpc is grpc.health.v1").
		decide(func(a *Active) string {
			if a.Path != "" {
				return "http"
			}
			if a.Service != "" {
				return "grpc"
			}
			return "tcp"
		}),
	key("path", "none", text("path", probePath), func(a *Active) *string { return &a.Path }, "what is asked for").off("none", ""),
	key("method", "GET", text("method", probeMethod), func(a *Active) *string { return &a.Method }, "how it is asked for"),
	key("interval", "5s", duration(10*tick, day), func(a *Active) *time.Duration { return &a.Interval }, "between the starts of two probes"),
	key("fast_interval", "1s", duration(10*tick, day), func(a *Active) *time.Duration { return &a.FastInterval }, "the same while the verdict is about to change"),
	key("jitter", "10%", share(0, 1), func(a *Active) *float64 { return &a.Jitter }, "by which intervals vary"),
	key("timeout", "auto", duration(tick, time.Hour), func(a *Active) *time.Duration { return &a.Timeout }, "of one probe, below interval; auto is 40 % of interval, at most 2s").
		decide(func(a *Active) time.Duration { return min(2*time.Second, a.Interval*2/5) }),
	key("fall", "3", integer(1, 100), func(a *Active) *int { return &a.Fall }, "failures in a row that take a backend out"),
	key("rise", "2", integer(1, 100), func(a *Active) *int { return &a.Rise }, "passes in a row that bring it back"),
	key("expect", "200-299", statusRanges, func(a *Active) *[]StatusRange { return &a.Expect }, "answers that pass"),
	key("port", "auto", integer(1, 65535), func(a *Active) *int { return &a.Port }, "auto is the backend's").word("auto", 0),
	key("host", "auto", text("host", rewriteHost), func(a *Active) *string { return &a.Host }, "Host and TLS name; auto is as for traffic").word("auto", ""),
	key("tls", "auto", choice([]string{"auto", "on", "off"}), func(a *Active) *string { return &a.TLS }, "auto is as for traffic; on verifies by the pool's tls"),
	key("body", "none", text("text or /pattern/", checkBody), func(a *Active) *string { return &a.Body }, "what the answer must contain in its first 64KiB, of a tcp check what comes in time, of a udp check one datagram: a text, or between slashes a regular expression, which of a udp check is about bytes").off("none", ""),
	key("send", "none", text("text with escapes", checkSend), func(a *Active) *string { return &a.Send }, "what a tcp or udp check says first, with escapes as in 'PING\\r\\n' and '\\x00'; it passes when body comes, or anything").off("none", ""),
	key[Active, string]("service", `""`, textCodec{name: "text", lines: true, check: checkService}, func(a *Active) *string { return &a.Service }, "gRPC service that is asked about; empty: the server as a whole"),
	key("initial", "down", initial, func(a *Active) *bool { return &a.InitialUp }, "whether backends added later take work before their first pass"),
}

var initial codec[bool] = simple[bool]{
	name: "up or down",
	parse: func(text string) (bool, string, string) {
		if text == "up" || text == "down" {
			return text == "up", "", ""
		}
		return false, quote(text) + " is not known here", "use up or down"
	},
	format: func(up bool) string {
		if up {
			return "up"
		}
		return "down"
	},
}

func probePath(s string) (what, fix string) {
	path, _, _ := strings.Cut(s, "?")
	if what, fix := rawPath(path); what != "" {
		return what, fix
	}
	if strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r > 0x7e || r == '#' }) {
		return quote(s) + " has characters that no request carries", "write them percent-encoded"
	}
	return "", ""
}

func probeMethod(s string) (what, fix string) {
	if what, fix := methodName.(textCodec).check(s); what != "" {
		return what, fix
	}
	if s != "GET" && s != "HEAD" && s != "OPTIONS" && s != "POST" {
		return quote(s) + " is not used for probes", "use GET, HEAD, OPTIONS or POST"
	}
	return "", ""
}

// statusRanges reads "200-299", "200,204" or a list of either.
var statusRanges codec[[]StatusRange] = listCodecOfRanges{}

type listCodecOfRanges struct{}

func (listCodecOfRanges) kind() string { return "status, range or list" }
func (listCodecOfRanges) rng() string  { return "100 to 599" }

func (listCodecOfRanges) scan(d *decoder, n *node, s *spec) ([]StatusRange, bool) {
	items := n.items
	switch {
	case n.kind == scalar:
		items = nil
		for part := range strings.SplitSeq(n.text, ",") {
			items = append(items, &node{kind: scalar, text: strings.TrimSpace(part), pos: n.pos, width: n.width})
		}
	case n.kind != list:
		d.fault(n, s.name+" is "+n.kind.String(), `write "200-299", or a list`)
		return nil, false
	}
	var out []StatusRange
	for _, i := range items {
		if i.kind == faulty {
			return nil, false
		}
		from, to, ranged := strings.Cut(i.text, "-")
		if !ranged {
			to = from
		}
		a, err1 := strconv.Atoi(from)
		b, err2 := strconv.Atoi(to)
		if i.kind != scalar || err1 != nil || err2 != nil || a < 100 || b > 599 || a > b || len(from) != 3 || len(to) != 3 {
			d.fault(i, quote(i.text)+" is not a status or a range of them", `write "200-299" or "200,204"`)
			return nil, false
		}
		out = append(out, StatusRange{a, b})
	}
	if len(out) == 0 {
		d.fault(n, "nothing is expected, so no probe could pass", `write "200-299"`)
		return nil, false
	}
	return out, true
}

func (listCodecOfRanges) show(v []StatusRange) *node {
	var parts []string
	for _, r := range v {
		if r.From == r.To {
			parts = append(parts, itoa(r.From))
		} else {
			parts = append(parts, itoa(r.From)+"-"+itoa(r.To))
		}
	}
	return &node{kind: scalar, text: strings.Join(parts, ","), quoted: true}
}

func checkActive(d *decoder, n *node, a *Active) {
	checkProtocol(d, n, a)
	if a.Timeout >= a.Interval {
		d.fault(n.at("timeout"), "the timeout ("+showDuration(a.Timeout)+") is not below the interval ("+showDuration(a.Interval)+")",
			"make it shorter, or leave it out: auto is "+showDuration(min(2*time.Second, a.Interval*2/5)))
	}
	if a.FastInterval > a.Interval {
		at, fix := n.at("fast_interval"), "write at most "+showDuration(a.Interval)
		if n.get("fast_interval") == nil {
			at, fix = n.at("interval"), "add fast_interval: "+showDuration(a.Interval)+" or less"
		}
		d.fault(at, "fast_interval ("+showDuration(a.FastInterval)+") is longer than interval ("+showDuration(a.Interval)+")", fix)
	}
	if a.Fall == 1 && !slices.Contains(d.plan.Check.Silence, "fall_1") {
		d.fault(n.at("fall"), "with fall: 1 one lost packet takes a backend out", "write fall: 2 or more, or list fall_1 in check.silence")
	}
}

var passiveFields = []field[Passive]{
	key("consecutive", "5", integer(1, 1_000_000), func(p *Passive) *int { return &p.Consecutive }, "bad answers in a row that eject").off("none", 0),
	key("consecutive_connect", "2", integer(1, 1_000_000), func(p *Passive) *int { return &p.ConsecutiveConnect }, "failed connections in a row that break"),
	key("eject", "30s", duration(10*tick, day), func(p *Passive) *time.Duration { return &p.Eject }, "first ejection; the second lasts twice as long, and so on"),
	key("max_eject", "300s", duration(10*tick, 7*day), func(p *Passive) *time.Duration { return &p.MaxEject }, "longest ejection"),
	key("max_ejected", "50%", share(0, 1), func(p *Passive) *float64 { return &p.MaxEjected }, "part of the pool that may be ejected by opinions"),
	keys("success_rate", "ejection of backends that fail far more often than the others", func(p *Passive) *SuccessRate { return &p.SuccessRate }, successRateFields).
		switched(func(s *SuccessRate) *bool { return &s.Off }),
	keys("latency", "ejection of backends that are far slower than the others", func(p *Passive) *Latency { return &p.Latency }, latencyFields).
		switched(func(l *Latency) *bool { return &l.Off }),
}

var successRateFields = []field[SuccessRate]{
	key("factor", "1.9", decimal(0.1, 100), func(s *SuccessRate) *float64 { return &s.Factor }, "standard deviations below the mean"),
	key("min_requests", "100", integer(1, 1_000_000), func(s *SuccessRate) *int { return &s.MinRequests }, "of a backend in the window, for its rate to count"),
	key("min_backends", "5", integer(2, 10_000), func(s *SuccessRate) *int { return &s.MinBackends }, "with so many requests; with fewer a backend is held against the rate of the others"),
}

var latencyFields = []field[Latency]{
	key("factor", "10", decimal(1.1, 1000), func(l *Latency) *float64 { return &l.Factor }, "times the median of the others"),
	key("above", "100ms", duration(tick, time.Hour), func(l *Latency) *time.Duration { return &l.Above }, "and at least so much more"),
	key("min_requests", "100", integer(1, 1_000_000), func(l *Latency) *int { return &l.MinRequests }, "of a backend in the window, for its latency to count"),
}

func checkPassive(d *decoder, n *node, p *Passive) {
	if p.Eject > p.MaxEject {
		d.fault(n.at("eject"), "eject ("+showDuration(p.Eject)+") is longer than max_eject ("+showDuration(p.MaxEject)+")", "make max_eject longer")
	}
}

var panicFields = []field[Panic]{
	key("threshold", "50%", share(0.0001, 1), func(p *Panic) *float64 { return &p.Threshold }, "part of a pool that must serve for health to be believed"),
	key("then", "serve", choice([]string{"serve", "shed", "failover"}), func(p *Panic) *string { return &p.Then }, "use all backends, refuse, or go to the backups"),
	key("floor", "1", integer(0, 10_000), func(p *Panic) *int { return &p.Floor }, "opinions never leave fewer serving backends than this").off("none", 0),
}

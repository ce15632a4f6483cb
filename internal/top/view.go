// SPDX-License-Identifier: Apache-2.0

package top

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/weirlb/weir/internal/admin"
)

// Style says what a line is, for a terminal that can show it. The text says all
// without.
type Style int

// The styles.
const (
	Plain  Style = iota
	Head         // names of columns
	Pool         // the line of a pool
	Chosen       // the row of the cursor
	Warn         // something is less than it should be
	Bad          // something is wrong
)

// Line is one line of the view, without an end of line.
type Line struct {
	Text  string
	Style Style
}

// headLines and footLines are around the table.
const (
	headLines = 3
	footLines = 1
)

// page is how many rows fit between head and foot.
func (m Model) page() int {
	if m.size.Height == 0 {
		return math.MaxInt32
	}
	return max(m.size.Height-headLines-footLines, 1)
}

// View returns the lines to show: with a size those that fit, each as wide as the
// terminal at most, else all.
func (m Model) View() []Line {
	out := m.head()
	if m.now != nil {
		rows := m.rows()
		name := m.nameWidth(rows)
		out = append(out, Line{m.columns(name), Head})
		last := m.lastEvents()
		end := min(len(rows), m.top+m.page())
		for i := m.top; i < end; i++ {
			l := m.rowLine(rows[i], name, last)
			if i == m.cursor && m.size.Height > 0 {
				l.Style = Chosen
			}
			out = append(out, l)
		}
		if len(rows) == 0 {
			out = append(out, Line{Text: "nothing here has " + strconv.Quote(m.filter)})
		}
	}
	if m.size.Height > 0 {
		for len(out) < m.size.Height-footLines {
			out = append(out, Line{})
		}
		out = append(out[:max(m.size.Height-footLines, 0)], m.foot())
	}
	for i := range out {
		out[i].Text = clipped(out[i].Text, m.size.Width)
	}
	return out
}

// head says who it is, and what is the matter with it.
func (m Model) head() []Line {
	second := Line{}
	if m.lost.Why != "" {
		second = Line{"DISCONNECTED: " + m.lost.Why + "; trying again", Bad}
		if d := m.lost.At.Sub(m.lostSince); d >= time.Second {
			second.Text = "DISCONNECTED for " + age(d) + ": " + m.lost.Why + "; trying again"
		}
	}
	if m.now == nil {
		first := Line{Text: "weir top: waiting for the first answer"}
		return []Line{first, second}
	}
	s := &m.now.Status
	ready := "ready"
	if !s.Ready {
		ready = "NOT READY: " + strings.Join(s.NotReady, "; ")
	}
	connections := int64(0)
	for i := range s.Listeners {
		connections += s.Listeners[i].Connections
	}
	first := Line{Text: fmt.Sprintf("weir %s  pid %d  %s for %s  %s  generation %d  %d connections  %s",
		s.Version, s.PID, s.State, age(time.Duration(s.UptimeS*float64(time.Second))), ready, s.Generation, connections,
		m.now.At.Format("15:04:05"))}
	if !s.Ready {
		first.Style = Warn
	}
	if second.Text == "" {
		second = m.news(s)
	}
	if second.Text == "" {
		second.Text = shareLegend
	}
	return []Line{first, second}
}

// shareLegend keeps a column from being read as parts of the traffic.
const shareLegend = "SHARE: how much a backend takes of what the policy offers it; of a pool: in flight of what it may have"

// news is the most important of what is not about one pool.
func (m Model) news(s *admin.Status) Line {
	var said []string
	if n := s.Successor; n != nil {
		said = append(said, fmt.Sprintf("process %d, version %s, has taken over", n.PID, n.Version))
	}
	if p := s.Predecessor; p != nil {
		said = append(said, fmt.Sprintf("process %d, version %s, drains with %d connections", p.PID, p.Version, p.Connections))
	}
	if len(said) == 0 && m.replaced != 0 {
		said = append(said, fmt.Sprintf("process %d is in the place of %d", s.PID, m.replaced))
	}
	said = append(said, s.Warnings...)
	if len(said) == 0 {
		return Line{}
	}
	return Line{strings.Join(said, "; "), Warn}
}

// nameWidth is how wide the first column is.
func (m Model) nameWidth(rows []row) int {
	w := len("POOL/BACKEND")
	for i := range rows {
		if rows[i].backend != nil {
			w = max(w, 2+utf8.RuneCountInString(rows[i].backend.ID))
		} else {
			w = max(w, utf8.RuneCountInString(poolName(rows[i].pool)))
		}
	}
	if m.size.Width > 0 {
		w = min(w, max(m.size.Width/3, 16))
	}
	return w
}

func poolName(p *admin.Pool) string { return p.Name + " (" + p.Balance + ")" }

const rowForm = "%s  %-11s %6s %9s %8s %7s %6s %8s %8s  %s"

func (m Model) columns(name int) string {
	return fmt.Sprintf(rowForm, padded("POOL/BACKEND", name), "STATE", "SHARE", "REQ/S", "ERR/S", "FLIGHT", "QUEUE", "P50", "P99", "LAST EVENT")
}

func (m Model) rowLine(r row, name int, last map[string]*admin.Event) Line {
	perS, errS := perSecond(m.rate(r, requests)), perSecond(m.rate(r, failures))
	if b := r.backend; b != nil {
		l := Line{Text: fmt.Sprintf(rowForm, padded("  "+b.ID, name), stateOf(b), percent(b.Share), perS, errS,
			strconv.FormatInt(b.InFlight, 10), "", millis(b.Latency.P50), millis(b.Latency.P99), m.event(last[r.pool.Name+"/"+b.ID]))}
		switch {
		case b.Health == "broken":
			l.Style = Bad
		case b.Health != "healthy" || b.Admin != "enabled" || b.Share < 1:
			l.Style = Warn
		}
		return l
	}
	p := r.pool
	state, style := fmt.Sprintf("%d/%d serve", p.Serving, len(p.Members)), Pool
	switch {
	case p.Panic:
		state, style = "PANIC", Bad
	case p.Serving == 0:
		style = Bad
	}
	share := ""
	if p.Saturation > 0 {
		share = percent(p.Saturation)
	}
	return Line{fmt.Sprintf(rowForm, padded(poolName(p), name), state, share, perS, errS,
		strconv.FormatInt(p.InFlight, 10), strconv.Itoa(p.QueueLength), "", "", m.event(last[p.Name])), style}
}

// stateOf is a backend's state in one word: the operator's, if that is what counts.
func stateOf(b *admin.Backend) string {
	switch {
	case b.Removed:
		return "removed"
	case b.Admin != "enabled":
		return b.Admin
	default:
		return b.Health
	}
}

// lastEvents are the last ones by pool, and pool/backend.
func (m Model) lastEvents() map[string]*admin.Event {
	out := map[string]*admin.Event{}
	for i := range m.now.Events {
		e := &m.now.Events[i]
		switch {
		case e.Pool == "":
		case e.Backend == "":
			out[e.Pool] = e
		default:
			out[e.Pool+"/"+e.Backend] = e
		}
	}
	return out
}

func (m Model) event(e *admin.Event) string {
	if e == nil {
		return ""
	}
	return age(m.now.At.Sub(e.At)) + " ago " + e.Text
}

// foot is what keys do.
func (m Model) foot() Line {
	if m.typing {
		return Line{Text: "filter: " + m.filter + "_   enter: keep it  esc: none"}
	}
	order := orderNames[m.order]
	if m.reversed {
		order += ", reversed"
	}
	text := "q quit  / filter  enter one pool  esc all  p pause  sort: n s r e f l (by " + order + ")"
	var state []string
	if m.paused {
		state = append(state, "PAUSED")
	}
	if m.pool != "" {
		state = append(state, "pool "+m.pool)
	}
	if m.filter != "" {
		state = append(state, "with "+strconv.Quote(m.filter))
	}
	if rows := len(m.rows()); rows > m.page() {
		state = append(state, fmt.Sprintf("%d-%d of %d", m.top+1, min(m.top+m.page(), rows), rows))
	}
	if len(state) > 0 {
		text = strings.Join(state, "  ") + "  |  " + text
	}
	if m.Every > 0 {
		text += "  every " + m.Every.String()
	}
	return Line{Text: text, Style: Head}
}

func perSecond(rate float64) string {
	switch {
	case rate < 0:
		return "-"
	case rate == 0:
		return "0"
	case rate < 10:
		return strconv.FormatFloat(rate, 'f', 1, 64)
	default:
		return strconv.FormatFloat(rate, 'f', 0, 64)
	}
}

func percent(share float64) string { return fmt.Sprintf("%.0f%%", share*100) }

func millis(ms float64) string {
	switch {
	case ms == 0:
		return "-"
	case ms < 100:
		return fmt.Sprintf("%.1fms", ms)
	case ms < 10000:
		return fmt.Sprintf("%.0fms", ms)
	default:
		return fmt.Sprintf("%.0fs", ms/1000)
	}
}

// age is a time in one number and a unit.
func age(d time.Duration) string {
	switch {
	case d < time.Second:
		return "0s"
	case d < time.Minute:
		return fmt.Sprintf("%ds", d/time.Second)
	case d < time.Hour:
		return fmt.Sprintf("%dm", d/time.Minute)
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", d/time.Hour)
	default:
		return fmt.Sprintf("%dd", d/(24*time.Hour))
	}
}

// padded is a text as wide as w; of a longer one the end is kept, where hosts and
// ports differ.
func padded(s string, w int) string {
	n := utf8.RuneCountInString(s)
	if n <= w {
		return s + strings.Repeat(" ", w-n)
	}
	r := []rune(s)
	lead := len(s) - len(strings.TrimLeft(s, " "))
	return string(r[:lead]) + "~" + string(r[n-w+lead+1:])
}

// clipped makes a line safe to show, and cuts what does not fit; w 0: nothing is
// cut. Texts hold what backends and files said.
func clipped(s string, w int) string {
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r >= 0x7f && r < 0xa0 {
			return '?'
		}
		return r
	}, s)
	if r := []rune(s); w > 0 && len(r) > w {
		return string(slices.Concat(r[:max(w-1, 0)], []rune(">")))
	}
	return strings.TrimRight(s, " ")
}

// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"bufio"
	"io"
	"strconv"
	"strings"

	"github.com/weirlb/weir/balance"
)

// WriteDoc writes what the scenario shows and the parameters it has with their
// defaults, in lines of at most so many columns. Errors are the writer's.
func (s *Scenario) WriteDoc(w io.Writer, columns int) error {
	t := &textWriter{w: bufio.NewWriter(w), TextOptions: TextOptions{Width: columns}}
	t.wrapped("", s.Name+": "+s.Title)
	for _, p := range s.Doc {
		t.line("")
		t.wrapped("", p)
	}
	t.line("")
	t.line("parameters")
	for _, p := range s.parameters() {
		t.line("  --" + p.Name + " " + p.Value)
	}
	return t.w.Flush()
}

// parameters are the defaults as they would be written on the command line.
func (s *Scenario) parameters() (out []Param) {
	d := &s.Defaults
	if len(d.Policies) > 0 {
		value := strings.Join(d.Policies, ",")
		if len(d.Policies) == len(balance.Names()) {
			value = "all of them"
		}
		out = append(out, Param{"policy", value})
	}
	for _, p := range params(d) {
		if p.Name == "requests" && s.counts != "" {
			p.Value += " (" + s.counts + ")"
			if s.perBackend > 0 {
				p.Value = strconv.Itoa(s.perBackend) + " (" + s.counts + ") for each backend"
			}
		}
		if p.Name != "policy" {
			out = append(out, p)
		}
	}
	return append(out, Param{"seed", "1"}, Param{"seeds", strconv.Itoa(1)})
}

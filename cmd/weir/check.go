// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/weirlb/weir/internal/config"
	"github.com/weirlb/weir/internal/engine"
)

// findings is what `weir check` has to say.
type findings struct {
	File     string          `json:"file"`
	OK       bool            `json:"ok"`
	Errors   []finding       `json:"errors"`
	Warnings []finding       `json:"warnings"`
	Pools    []poolDetection `json:"pools"`
}

// finding is one error or warning.
type finding struct {
	File string `json:"file,omitempty"`
	Line int    `json:"line,omitempty"`
	Col  int    `json:"col,omitempty"`
	Name string `json:"name,omitempty"` // what check.silence calls it
	Text string `json:"text"`
	Fix  string `json:"fix,omitempty"`

	shown string // for people, with the line of the text
}

// poolDetection says how fast a pool notices a backend that falls silent.
type poolDetection struct {
	Name      string  `json:"name"`
	Backends  int     `json:"backends"`
	Protocol  string  `json:"protocol"`               // http, tcp or off
	Detection float64 `json:"detection_s"`            // worst case; 0: nothing probes
	Together  int     `json:"hang_together,omitzero"` // so many may hang at once for it to hold; 0: all
}

func newCheck() *cobra.Command {
	var file string
	var strict, asJSON bool
	c := &cobra.Command{
		Use:   "check",
		Short: "Validate a configuration and say how fast it notices dead backends",
		Args:  noFileArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			f := check(file)
			if strict && len(f.Warnings) > 0 {
				f.OK = false
			}
			var err error
			if asJSON {
				err = printJSON(cmd.OutOrStdout(), f)
			} else {
				printFindings(cmd.OutOrStdout(), cmd.ErrOrStderr(), f)
			}
			if err == nil && !f.OK {
				err = errSaid
			}
			return err
		},
	}
	c.Flags().StringVarP(&file, "config", "c", "weir.yaml", "configuration file")
	c.Flags().BoolVar(&strict, "strict", false, "fail on warnings, too")
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

func check(file string) findings {
	f := findings{File: file, Errors: []finding{}, Warnings: []finding{}, Pools: []poolDetection{}}
	plan, err := config.Load(file)
	var faults *config.Errors
	switch {
	case errors.As(err, &faults):
		for _, x := range faults.Faults {
			f.Errors = append(f.Errors, finding{
				File: x.Pos.File, Line: x.Pos.Line, Col: x.Pos.Col, Text: x.What, Fix: x.Fix, shown: x.String(),
			})
		}
		if faults.More > 0 {
			text := fmt.Sprintf("and %d more", faults.More)
			f.Errors = append(f.Errors, finding{Text: text, shown: text})
		}
		return f
	case err != nil:
		f.Errors = append(f.Errors, finding{Text: err.Error(), shown: err.Error()})
		return f
	}
	for _, err := range engine.Verify(plan) {
		f.Errors = append(f.Errors, finding{Text: err.Error(), shown: err.Error()})
	}
	for _, text := range goals(plan) {
		f.Errors = append(f.Errors, finding{File: file, Text: text, shown: file + ": " + text})
	}
	for _, w := range plan.Warnings {
		f.Warnings = append(f.Warnings, finding{
			File: w.Pos.File, Line: w.Pos.Line, Col: w.Pos.Col, Name: w.Name, Text: w.Text, shown: w.String(),
		})
	}
	for i := range plan.Pools {
		f.Pools = append(f.Pools, detectionOf(&plan.Pools[i]))
	}
	f.OK = len(f.Errors) == 0
	return f
}

func detectionOf(p *config.Pool) poolDetection {
	out := poolDetection{Name: p.Name, Backends: len(p.Backends), Protocol: p.Active.Protocol}
	if p.Active.Off {
		out.Protocol = "off"
		return out
	}
	d := engine.DetectionOf(p)
	out.Detection, out.Together = d.Within.Seconds(), d.Together
	return out
}

// printFindings writes what is wrong to stderr and the rest to stdout.
func printFindings(stdout, stderr io.Writer, f findings) {
	for _, e := range f.Errors {
		_, _ = fmt.Fprintln(stderr, e.shown)
	}
	for _, w := range f.Warnings {
		_, _ = fmt.Fprintln(stderr, w.shown)
	}
	if len(f.Errors) > 0 {
		_, _ = fmt.Fprintf(stderr, "%s: %s\n", f.File, count(len(f.Errors), "error"))
		return
	}
	for i := range f.Pools {
		_, _ = fmt.Fprintln(stdout, f.Pools[i].String())
	}
	if f.OK {
		_, _ = fmt.Fprintf(stdout, "%s: fine\n", f.File)
		return
	}
	_, _ = fmt.Fprintf(stderr, "%s: %s\n", f.File, count(len(f.Warnings), "warning"))
}

// String is one line for people.
func (d poolDetection) String() string {
	head := fmt.Sprintf("pool %s, %s: ", d.Name, count(d.Backends, "backend"))
	switch d.Protocol {
	case "off":
		return head + "no active checks; only failing traffic takes a backend out"
	case "tcp":
		head += "detection time " + seconds(d.Detection) + " (tcp: a process that hangs but still accepts is not seen; health.active.path would see it)"
	default:
		head += "detection time " + seconds(d.Detection)
	}
	if d.Together > 0 {
		head += fmt.Sprintf(", while at most %d backends hang together", d.Together)
	}
	return head
}

// seconds prints a time rounded up, so that it is still a worst case.
func seconds(s float64) string {
	ms := time.Duration(math.Ceil(s*1000)) * time.Millisecond
	return strconv.FormatFloat(ms.Seconds(), 'f', -1, 64) + "s"
}

func count(n int, what string) string {
	if n != 1 {
		what += "s"
	}
	return strconv.Itoa(n) + " " + what
}

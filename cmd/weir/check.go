// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/weirlb/weir/internal/admin"
	"github.com/weirlb/weir/internal/config"
	"github.com/weirlb/weir/internal/engine"
	"github.com/weirlb/weir/internal/inputfile"
	"github.com/weirlb/weir/internal/lint"
)

// findings is what `weir check` has to say.
type findings struct {
	File     string          `json:"file"`
	OK       bool            `json:"ok"`
	Errors   []finding       `json:"errors"`
	Warnings []finding       `json:"warnings"`
	Notes    []finding       `json:"notes"`
	Pools    []poolDetection `json:"pools"`
}

// finding is one error, warning or note.
type finding struct {
	File   string   `json:"file,omitempty"`
	Line   int      `json:"line,omitempty"`
	Col    int      `json:"col,omitempty"`
	Name   string   `json:"name,omitempty"` // what check.silence calls it
	Text   string   `json:"text"`
	Why    string   `json:"why,omitempty"`
	Fix    string   `json:"fix,omitempty"`
	Write  string   `json:"write,omitempty"`  // the fix as a piece of configuration
	Remove []string `json:"remove,omitempty"` // keys that the fix removes
	Steps  []string `json:"steps,omitempty"`  // the fix key by key, where a piece would be too long
	Page   string   `json:"page,omitempty"`

	place string // file:line:col, for people
	shown string // the line of the text with a mark
}

// poolDetection says how fast a pool notices a backend that falls silent.
type poolDetection struct {
	Name      string  `json:"name"`
	Backends  int     `json:"backends"`
	Protocol  string  `json:"protocol"`               // http, tcp or off
	Detection float64 `json:"detection_s"`            // worst case; 0: nothing probes
	Together  int     `json:"hang_together,omitzero"` // so many may hang at once for it to hold; 0: all
	Discover  string  `json:"discover,omitempty"`     // where further backends are found
}

func newCheck() *cobra.Command {
	var file string
	var strict, asJSON, schema, noFiles bool
	var opt admin.ClientOptions
	c := &cobra.Command{
		Use:   "check",
		Short: "Validate a configuration, hold it to the production checklist, and say how fast it notices dead backends",
		Long: "Validates a configuration and holds it to the production checklist: each finding says why it matters and what to write instead.\n" +
			"Errors fail the check, warnings do with --strict, notes never do. docs/lints explains each finding; check.silence takes names that are not to be reported.",
		Args: noFileArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if schema {
				_, err := cmd.OutOrStdout().Write(config.JSONSchema())
				return err
			}
			var learned func(string) []lint.Idle
			if opt.Address != "" {
				var err error
				if learned, err = learnedBy(cmd.Context(), opt); err != nil {
					return err
				}
			}
			f := check(file, noFiles, learned)
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
	c.Flags().StringVarP(&file, "config", "c", "weir.yaml", "configuration file or folder")
	c.Flags().BoolVar(&strict, "strict", false, "fail on warnings, too")
	c.Flags().BoolVar(&noFiles, "no-files", false, "look at the text alone, where the files, certificates and addresses that it names are on another machine")
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	c.Flags().StringVar(&opt.Address, "admin", "", "also ask the running weir at this address when its backends were seen to close idle connections: host:port or unix:/path")
	c.Flags().StringVar(&opt.TokenFile, "token-file", "", "file that holds the admin token")
	c.Flags().BoolVar(&schema, "schema", false, "print the JSON Schema of configurations, for editors, and check nothing")
	return c
}

// learnedBy asks a running weir what it has learned of backends' idle timeouts.
func learnedBy(ctx context.Context, opt admin.ClientOptions) (func(pool string) []lint.Idle, error) {
	client, err := admin.NewClient(opt)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	pools, err := client.Pools(ctx)
	if err != nil {
		return nil, err
	}
	by := map[string][]lint.Idle{}
	for i := range pools {
		for _, b := range pools[i].Members {
			if b.LearnedIdleS > 0 {
				by[pools[i].Name] = append(by[pools[i].Name], lint.Idle{Backend: b.ID, After: time.Duration(b.LearnedIdleS * float64(time.Second))})
			}
		}
	}
	return func(pool string) []lint.Idle { return by[pool] }, nil
}

// check looks at a file, with noFiles at none that it names; learned is what a
// running weir knows of its backends, nil when none was asked.
func check(file string, noFiles bool, learned func(pool string) []lint.Idle) findings {
	f := findings{File: file, Errors: []finding{}, Warnings: []finding{}, Notes: []finding{}, Pools: []poolDetection{}}
	plan, outline, err := config.LoadOutlined(file)
	var faults *config.Errors
	switch {
	case errors.As(err, &faults):
		for _, x := range faults.Faults {
			f.Errors = append(f.Errors, finding{
				File: x.Pos.File, Line: x.Pos.Line, Col: x.Pos.Col, Text: x.What, Fix: x.Fix, place: x.String(),
			})
		}
		if faults.More > 0 {
			f.fail(fmt.Sprintf("and %d more", faults.More))
		}
		return f
	case err != nil:
		f.fail(err.Error())
		return f
	}
	verify, readFile := engine.Verify, func(name string) ([]byte, error) { return inputfile.Read(name, inputfile.Most) }
	if noFiles {
		verify, readFile = engine.VerifyText, nil
	}
	for _, err := range verify(plan) {
		f.fail(err.Error())
	}
	f.lint(plan, outline, readFile, learned)
	for i := range plan.Pools {
		f.Pools = append(f.Pools, detectionOf(&plan.Pools[i]))
	}
	f.OK = len(f.Errors) == 0
	return f
}

// fail adds an error that has no place of its own.
func (f *findings) fail(text string) {
	f.Errors = append(f.Errors, finding{Text: text, place: text})
}

// lint adds what the checklist finds.
func (f *findings) lint(plan *config.Plan, outline *config.Outline, readFile func(string) ([]byte, error), learned func(pool string) []lint.Idle) {
	found := lint.Run(lint.Input{
		Plan: plan, Outline: outline, Now: time.Now(),
		ReadFile:  readFile,
		Detection: func(p *config.Pool) time.Duration { return engine.DetectionOf(p).Within },
		Learned:   learned,
	})
	for i := range found {
		x := &found[i]
		pos := x.Place.Pos
		into := map[lint.Severity]*[]finding{lint.Error: &f.Errors, lint.Warning: &f.Warnings, lint.Note: &f.Notes}[x.Severity]
		*into = append(*into, finding{
			File: pos.File, Line: pos.Line, Col: pos.Col, Name: x.Rule.Name, Text: x.What, Why: x.Rule.Why,
			Fix: x.Rule.Fix, Write: x.Fragment, Remove: x.Remove, Steps: x.Steps, Page: x.Rule.Page(),
			place: pos.String(), shown: x.Place.Excerpt(),
		})
	}
}

func detectionOf(p *config.Pool) poolDetection {
	out := poolDetection{Name: p.Name, Backends: len(p.Backends), Protocol: p.Active.Protocol, Discover: p.Discover.String()}
	if p.Active.Off {
		out.Protocol = "off"
		return out
	}
	d := engine.DetectionOf(p)
	out.Detection, out.Together = d.Within.Seconds(), d.Together
	return out
}

// String is one line for people.
func (d poolDetection) String() string {
	head := fmt.Sprintf("pool %s, %s: ", d.Name, count(d.Backends, "backend"))
	switch {
	case d.Discover != "" && d.Backends == 0:
		head = fmt.Sprintf("pool %s, backends found by %s: ", d.Name, d.Discover)
	case d.Discover != "":
		head = fmt.Sprintf("pool %s, %s and those found by %s: ", d.Name, count(d.Backends, "backend"), d.Discover)
	}
	switch d.Protocol {
	case "off":
		return head + "no active checks; only failing traffic takes a backend out"
	case "tcp":
		head += "detection time " + seconds(d.Detection) + " (tcp)"
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

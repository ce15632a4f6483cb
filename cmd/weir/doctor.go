// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/spf13/cobra"

	"github.com/weirlb/weir/internal/config"
	"github.com/weirlb/weir/internal/doctor"
	"github.com/weirlb/weir/internal/engine"
)

func newDoctor() *cobra.Command {
	var file string
	var asJSON bool
	c := &cobra.Command{
		Use:   "doctor",
		Short: "Say what this machine lacks for a configuration",
		Long: "Holds this machine, the limits of this process and its control group against a configuration: open files,\n" +
			"local and low ports, the accept queue, memory, processors, connection tracking, IPv6, the clock, the kernel and\n" +
			"the files that are named. Run it as the user and in the unit or container that weir runs in. Without weir.yaml\n" +
			"it looks at the machine alone. The exit code is 1 when something would not work; warnings do not fail.",
		Args: noFileArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			in := doctor.Input{Facts: doctor.Look(), Mode: modeOf}
			plan, err := config.Load(file)
			switch {
			case err == nil:
				in.Plan, in.Faults = plan, engine.Verify(plan)
			case !cmd.Flags().Changed("config") && errors.Is(err, fs.ErrNotExist):
			default:
				return err
			}
			list := doctor.Examine(in)
			if asJSON {
				err = printJSON(cmd.OutOrStdout(), struct {
					OK       bool             `json:"ok"`
					Config   string           `json:"config,omitempty"`
					Machine  doctor.Facts     `json:"machine"`
					Findings []doctor.Finding `json:"findings"`
				}{!doctor.Failed(list), nameOf(in.Plan), in.Facts, list})
			} else {
				err = printDiagnosis(cmd.OutOrStdout(), in.Plan, list)
			}
			if err == nil && doctor.Failed(list) {
				err = errSaid
			}
			return err
		},
	}
	c.Flags().StringVarP(&file, "config", "c", "weir.yaml", "configuration file or folder")
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

func modeOf(name string) (fs.FileMode, error) {
	info, err := os.Stat(name)
	if err != nil {
		return 0, err
	}
	return info.Mode(), nil
}

func nameOf(plan *config.Plan) string {
	if plan == nil {
		return ""
	}
	return plan.File
}

func printDiagnosis(w io.Writer, plan *config.Plan, list []doctor.Finding) error {
	fails, warns := 0, 0
	for _, f := range list {
		switch f.Severity {
		case doctor.Fail:
			fails++
		case doctor.Warn:
			warns++
		}
		if _, err := fmt.Fprintf(w, "%-5s %s: %s\n", f.Severity, f.Name, f.Text); err != nil {
			return err
		}
		if f.Fix != "" {
			_, _ = fmt.Fprintf(w, "      fix: %s\n", f.Fix) // the next line tells
		}
	}
	what := "this machine"
	if plan != nil {
		what += " with " + plan.File
	}
	_, err := fmt.Fprintf(w, "%s: %s, %s\n", what, count(fails, "failure"), count(warns, "warning"))
	return err
}

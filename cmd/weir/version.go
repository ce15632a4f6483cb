// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
)

// buildFacts is what `weir version` knows about the binary it is.
type buildFacts struct {
	Version  string `json:"version"`
	Revision string `json:"revision,omitempty"`
	Time     string `json:"time,omitempty"`
	Modified bool   `json:"modified"`
	Go       string `json:"go"`
	OS       string `json:"os"`
	Arch     string `json:"arch"`
}

func readBuildFacts() buildFacts {
	f := buildFacts{Version: "devel", Go: runtime.Version(), OS: runtime.GOOS, Arch: runtime.GOARCH}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return f
	}
	if v := info.Main.Version; v != "" && v != "(devel)" {
		f.Version = v
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			f.Revision = s.Value
		case "vcs.time":
			f.Time = s.Value
		case "vcs.modified":
			f.Modified, _ = strconv.ParseBool(s.Value)
		}
	}
	return f
}

func newVersion() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "version",
		Short: "Print what this binary was built from",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			f := readBuildFacts()
			if asJSON {
				return printJSON(cmd.OutOrStdout(), f)
			}
			_, err := fmt.Fprintln(cmd.OutOrStdout(), f)
			return err
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

// String is the one line that a bug report needs.
func (f buildFacts) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "weir %s", f.Version)
	if f.Revision != "" {
		fmt.Fprintf(&b, " revision %.12s", f.Revision)
		if f.Modified {
			b.WriteString(" (modified)")
		}
	}
	if f.Time != "" {
		fmt.Fprintf(&b, " of %s", f.Time)
	}
	fmt.Fprintf(&b, ", %s %s/%s", f.Go, f.OS, f.Arch)
	return b.String()
}

func printJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

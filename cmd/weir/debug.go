// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/weirlb/weir/internal/admin"
	"github.com/weirlb/weir/internal/config"
	"github.com/weirlb/weir/internal/doctor"
)

func newDebug() *cobra.Command {
	c := &cobra.Command{
		Use:   "debug",
		Short: "Look into a running weir",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	c.AddCommand(newDump())
	return c
}

func newDump() *cobra.Command {
	var opt admin.ClientOptions
	var out, file string
	c := &cobra.Command{
		Use:   "dump",
		Short: "Save a support bundle of a running weir",
		Long: "Saves what somebody who helps wants to see, as a gzipped tar archive that only its owner can read: the configuration,\n" +
			"status, pools with their history, events, the last failures, metrics, the last lines of the log, build facts and\n" +
			"facts of the machine; with a token or on a unix socket goroutines and a heap profile, too. Secrets are masked; look\n" +
			"into it all the same before you pass it on: names of hosts, paths and backends are in it.\n" +
			"When weir does not answer, the bundle holds what can be told without it, and the exit code is 1.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			client, err := admin.NewClient(opt)
			if err != nil {
				return err
			}
			defer client.Close()
			if out == "" {
				out = "weir-dump-" + time.Now().UTC().Format("20060102T150405Z") + ".tar.gz"
			}
			dumped := saved(out, func(w io.Writer) error { return client.Dump(cmd.Context(), w) })
			if dumped == nil {
				_, err := fmt.Fprintln(cmd.OutOrStdout(), out)
				return err
			}
			var refused *admin.Problem
			if errors.As(dumped, &refused) || errors.Is(dumped, os.ErrExist) || errors.Is(dumped, os.ErrPermission) {
				return dumped // weir is well, or there is no place for a file
			}
			if err := saved(out, func(w io.Writer) error { return dumpWithout(w, file, dumped) }); err != nil {
				return errors.Join(dumped, err)
			}
			_, _ = fmt.Fprintf(cmd.ErrOrStderr(), "weir: %v\nweir: %s holds only what can be told without it\n", dumped, out)
			return errSaid
		},
	}
	addAdminFlags(c, &opt)
	c.Flags().StringVarP(&out, "output", "o", "", "file to write, which must not be there yet (default: weir-dump-TIME.tar.gz)")
	c.Flags().StringVarP(&file, "config", "c", "weir.yaml", "configuration to look at when weir does not answer")
	return c
}

// saved writes a file that did not exist, readable for its owner alone; after an
// error nothing is left of it.
func saved(name string, write func(io.Writer) error) error {
	f, err := os.OpenFile(filepath.Clean(name), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	if err = errors.Join(write(f), f.Close()); err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}

// dumpWithout makes a bundle of what is known without a running weir.
func dumpWithout(w io.Writer, file string, why error) error {
	zip := gzip.NewWriter(w)
	b := admin.NewBundle(zip, time.Now())
	b.Note("weir", why)
	facts := doctor.Look()
	var machine bytes.Buffer
	in := doctor.Input{Facts: facts}
	err := errors.Join(facts.Write(&machine), b.Add("version.txt", []byte(readBuildFacts().String()+"\n")), b.Add("machine.txt", machine.Bytes()))
	if plan, perr := config.Load(file); perr != nil {
		b.Note("config.yaml", perr)
	} else {
		in.Plan = plan
		err = errors.Join(err, b.Add("config.yaml", plan.Public()))
	}
	var findings bytes.Buffer
	err = errors.Join(err, printJSON(&findings, doctor.Examine(in)), b.Add("doctor.json", findings.Bytes()))
	return errors.Join(err, b.Close(), zip.Close())
}

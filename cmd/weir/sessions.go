// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"unicode"

	"github.com/spf13/cobra"

	"github.com/weirlb/weir/internal/admin"
)

func newSessions() *cobra.Command {
	var opt admin.ClientOptions
	var q admin.SessionQuery
	var client string
	var asJSON bool
	c := &cobra.Command{
		Use:   "sessions [--listener L] [--pool P] [--backend B] [--client ADDRESS]",
		Short: "Show who has what open: sessions, flows, tunnels, streams",
		Long: "Shows what lasts, the oldest first: sessions of tcp and sni listeners, flows of udp listeners, WebSockets (tunnel),\n" +
			"and answers without an end such as event streams (stream). Requests that are answered at once are not among them.",
		Example: "  weir sessions --pool db --backend 10.0.1.31:5432\n" +
			"  weir sessions --client 192.0.2.0/24 --limit 1000",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if client != "" {
				if q.Client, err = admin.ParseClients(client); err != nil {
					return wrongUse("--%w", err)
				}
			}
			if q.Limit < 1 || q.Limit > admin.MostSessions {
				return wrongUse("--limit is 1 to %d", admin.MostSessions)
			}
			api, err := admin.NewClient(opt)
			if err != nil {
				return err
			}
			defer api.Close()
			s, err := api.Sessions(cmd.Context(), q)
			if err != nil {
				return err
			}
			if asJSON {
				return printJSON(cmd.OutOrStdout(), s)
			}
			printSessions(cmd.OutOrStdout(), &s)
			return nil
		},
	}
	addAdminFlags(c, &opt)
	f := c.Flags()
	f.StringVar(&q.Listener, "listener", "", "of this listener only")
	f.StringVar(&q.Pool, "pool", "", "of this pool only")
	f.StringVar(&q.Backend, "backend", "", "to this backend only, as 'weir status' calls it")
	f.StringVar(&client, "client", "", "of this address only, or of a block such as 192.0.2.0/24")
	f.IntVar(&q.Limit, "limit", admin.DefaultSessions, "how many at most")
	f.BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

func printSessions(w io.Writer, s *admin.Sessions) {
	switch {
	case s.Total == 0:
		fmt.Fprintln(w, "Nothing that lasts is open.")
		return
	case s.Matched == 0:
		fmt.Fprintf(w, "None of the %d that are open.\n", s.Total)
		return
	case s.Matched < s.Total:
		fmt.Fprintf(w, "%d of the %d that are open", s.Matched, s.Total)
	default:
		fmt.Fprintf(w, "%d open", s.Total)
	}
	if n := len(s.Sessions); n < s.Matched {
		fmt.Fprintf(w, ", the oldest %d (--limit)", n)
	}
	fmt.Fprintln(w)
	named := slices.ContainsFunc(s.Sessions, func(x admin.Session) bool { return x.Name != "" })
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	head := "CLIENT\tLISTENER\tPOOL\tBACKEND\tKIND\tAGE"
	if named {
		head += "\tASKED FOR"
	}
	fmt.Fprintln(t, head)
	for i := range s.Sessions {
		x := &s.Sessions[i]
		age := since(x.AgeS)
		if x.Ending {
			age += ", ending"
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s", cmp.Or(x.Client, "-"), x.Listener, x.Pool, x.Backend, x.Kind, age)
		if named {
			fmt.Fprint(t, "\t"+harmless(x.Name))
		}
		fmt.Fprintln(t)
	}
	_ = t.Flush() // w is standard output; nothing more can be said if it is gone
}

// harmless is what a client has sent without what a terminal would obey.
func harmless(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return '?'
	}, s)
}

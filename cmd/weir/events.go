// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/weirlb/weir/internal/admin"
)

// feedAgain is how long a follower waits before it asks a weir that went away.
const feedAgain = time.Second

// eventFilter is which events are wanted.
type eventFilter struct {
	pool, backend string    // empty: any
	since         time.Time // zero: any
}

func (f *eventFilter) wants(e *admin.Event) bool {
	return (f.pool == "" || e.Pool == f.pool) && (f.backend == "" || e.Backend == f.backend) && !e.At.Before(f.since)
}

func newEvents() *cobra.Command {
	var opt admin.ClientOptions
	var want eventFilter
	var since string
	var last int
	var follow, asJSON bool
	c := &cobra.Command{
		Use:   "events",
		Short: "Show what happened in a running weir: health, membership, reloads, upgrades",
		Long: "Shows what a running weir remembers of what happened, the oldest first: changes of backends' states with their reasons, ejections,\n" +
			"panics, overrides and drains, reloads, upgrades. An upgrade hands them on; a restart forgets them (the log has them). What an\n" +
			"old process does while it drains is in its log alone. With --follow it goes on with what happens, over restarts and upgrades.\n" +
			"--json prints an object on a line for each.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if want.since, err = parseSince(since, time.Now()); err != nil {
				return err
			}
			limit := -1
			if cmd.Flags().Changed("last") {
				if limit = last; last < 0 {
					return wrongUse("--last is %d: use a number from 0 on", last)
				}
			}
			client, err := admin.NewClient(opt)
			if err != nil {
				return err
			}
			defer client.Close()
			v := eventView{w: cmd.OutOrStdout(), errs: cmd.ErrOrStderr(), want: want, json: asJSON}
			list, err := client.Events(cmd.Context(), -1)
			if err != nil {
				return err
			}
			if err := v.known(cmd.Context(), client, list); err != nil {
				return err
			}
			list, next := v.last(list, limit)
			if follow {
				return v.follow(cmd.Context(), client, next)
			}
			return v.list(list)
		},
	}
	addAdminFlags(c, &opt)
	f := c.Flags()
	f.BoolVarP(&follow, "follow", "f", false, "go on with what happens, until Ctrl-C")
	f.StringVar(&want.pool, "pool", "", "of this pool only")
	f.StringVar(&want.backend, "backend", "", "of this backend only, by its id")
	f.StringVar(&since, "since", "", "only what happened in the last 10m, or since a time: 15:04 (today), 2026-01-31T08:00:00Z")
	f.IntVar(&last, "last", 0, "at most so many of those that are remembered, the latest (default: all)")
	f.BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

// eventView shows events.
type eventView struct {
	w, errs io.Writer
	want    eventFilter
	json    bool
	shown   shownEvents
}

// shownEvents are the last events that were shown, as many as weir remembers: a
// process that took over from another one tells what that remembered, too.
type shownEvents struct {
	set   map[admin.Event]bool
	order []admin.Event
}

const shownKept = 1024

// again reports whether an event was shown before, by whatever number and process.
func (s *shownEvents) again(e admin.Event) bool {
	e.Seq, e.At = 0, e.At.UTC().Round(0)
	if s.set[e] {
		return true
	}
	if s.set == nil {
		s.set = map[admin.Event]bool{}
	}
	if len(s.order) == shownKept {
		delete(s.set, s.order[0])
		s.order = s.order[1:]
	}
	s.set[e], s.order = true, append(s.order, e)
	return false
}

// known says what is wrong with a pool that nothing is remembered of.
func (v *eventView) known(ctx context.Context, client *admin.Client, list []admin.Event) error {
	if v.want.pool == "" {
		return nil
	}
	for i := range list {
		if list[i].Pool == v.want.pool {
			return nil
		}
	}
	_, err := client.Pool(ctx, v.want.pool)
	return err
}

// last returns the last limit events of those that are wanted, all with a negative
// limit, and the number from which on a follower gets the same.
func (v *eventView) last(list []admin.Event, limit int) (wanted []admin.Event, from uint64) {
	for i := range list {
		if v.want.wants(&list[i]) {
			wanted = append(wanted, list[i])
		}
	}
	if limit < 0 || limit >= len(wanted) {
		return wanted, 0
	}
	if wanted = wanted[len(wanted)-limit:]; limit > 0 {
		return wanted, wanted[0].Seq
	}
	return nil, list[len(list)-1].Seq + 1
}

// list shows events in the order of their times: that in which they were noted is
// another one for what happens while a process starts.
func (v *eventView) list(list []admin.Event) error {
	slices.SortStableFunc(list, func(a, b admin.Event) int { return a.At.Compare(b.At) })
	for i := range list {
		if err := v.show(&list[i]); err != nil {
			return err
		}
	}
	if len(list) > 0 || v.json {
		return nil
	}
	_, err := fmt.Fprintln(v.errs, "Nothing of that kind is remembered.")
	return err
}

func (v *eventView) show(e *admin.Event) error {
	if v.json {
		enc := json.NewEncoder(v.w)
		enc.SetEscapeHTML(false)
		return enc.Encode(e)
	}
	_, err := fmt.Fprintln(v.w, eventLine(e))
	return err
}

// eventLine is an event in one line, in the time of this machine.
func eventLine(e *admin.Event) string {
	return e.At.Local().Format("2006-01-02 15:04:05.000") + "  " + eventPlace(e) + "  " + e.Text
}

// eventPlace is what an event is about.
func eventPlace(e *admin.Event) string {
	switch {
	case e.Pool == "":
		return "weir"
	case e.Backend == "":
		return e.Pool
	default:
		return e.Pool + "/" + e.Backend
	}
}

// follow shows events until it is stopped. What is away comes back: weir may be
// started anew, or another process may have taken its place. Of the process that
// is there at first it shows those from a number on.
func (v *eventView) follow(ctx context.Context, client *admin.Client, from uint64) error {
	var at admin.Following
	lost := false
	for {
		err := client.FollowEvents(ctx, &at, func(e admin.Event, missed uint64) error {
			if lost {
				lost = false
				_, _ = fmt.Fprintln(v.errs, "weir: there again")
			}
			if missed > 0 {
				_, _ = fmt.Fprintf(v.errs, "weir: %d events between these are forgotten\n", missed)
			}
			if e.Seq < from || !v.want.wants(&e) || v.shown.again(e) {
				return nil
			}
			if err := v.show(&e); err != nil {
				return &brokenOutput{err}
			}
			return nil
		})
		var broken *brokenOutput
		var refused *admin.Problem
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case errors.As(err, &broken):
			return broken.err
		case errors.As(err, &refused) && refused.Code != admin.CodeTooMany:
			return err
		}
		from = 0 // what comes next may be another process, whose numbers are others
		if !lost {
			lost = true
			_, _ = fmt.Fprintf(v.errs, "weir: %v; trying again until it is there\n", err)
		}
		t := time.NewTimer(feedAgain)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return context.Cause(ctx)
		}
	}
}

// brokenOutput says that nobody reads what is shown.
type brokenOutput struct{ err error }

func (b *brokenOutput) Error() string { return b.err.Error() }
func (b *brokenOutput) Unwrap() error { return b.err }

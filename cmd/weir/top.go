// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"io"
	"os"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/internal/admin"
	"github.com/weirlb/weir/internal/top"
)

// topEvents is how many of the last events are asked for: the latest of each
// backend is shown.
const topEvents = 512

func newTop() *cobra.Command {
	var opt admin.ClientOptions
	var every time.Duration
	var once bool
	var pool string
	c := &cobra.Command{
		Use:   "top",
		Short: "Watch a running weir: pools and backends with their rates, live",
		Long: "Shows each pool and backend of a running weir with state, share, requests and errors a second, requests in flight, queue, latency\n" +
			"and what happened last, again and again. Keys: n s r e f l sort (again: reversed), / filters, enter shows the pool of the row alone,\n" +
			"esc shows all again, p pauses, q quits. It stays over restarts and upgrades of weir. With --once, and where it is no terminal\n" +
			"that it writes to, it takes two samples and prints them as one page.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if every < 100*time.Millisecond {
				return wrongUse("--interval is %v: at least 100ms", every)
			}
			opt.Timeout = max(every, 5*time.Second)
			client, err := admin.NewClient(opt)
			if err != nil {
				return err
			}
			defer client.Close()
			s := sampler{client: client, pool: pool}
			if !once && terminal(cmd.OutOrStdout()) && terminal(os.Stdin) {
				return liveTop(cmd.Context(), s, every, cmd.OutOrStdout())
			}
			return onceTop(cmd.Context(), s, every, cmd.OutOrStdout())
		},
	}
	addAdminFlags(c, &opt)
	f := c.Flags()
	f.DurationVar(&every, "interval", 2*time.Second, "how long after each other samples are taken")
	f.BoolVar(&once, "once", false, "print one page and end")
	f.StringVar(&pool, "pool", "", "of this pool only")
	return c
}

// terminal reports whether something is a terminal.
func terminal(of any) bool {
	f, ok := of.(*os.File)
	if !ok {
		return false
	}
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

// sampler asks a running weir.
type sampler struct {
	client *admin.Client
	pool   string // empty: all
}

func (s sampler) take(ctx context.Context) (*top.Sample, error) {
	status, err := s.client.Status(ctx)
	if err != nil {
		return nil, err
	}
	out := &top.Sample{Status: status}
	if s.pool != "" {
		var p admin.Pool
		p, err = s.client.Pool(ctx, s.pool)
		out.Pools = []admin.Pool{p}
	} else {
		out.Pools, err = s.client.Pools(ctx)
	}
	if err != nil {
		return nil, err
	}
	out.At = time.Now() // of the counters: rates are taken from it
	out.Events, err = s.client.Events(ctx, topEvents)
	return out, err
}

// onceTop prints one page: what was counted between two samples.
func onceTop(ctx context.Context, s sampler, every time.Duration, w io.Writer) error {
	var m top.Model
	for i := range 2 {
		if i > 0 {
			t := time.NewTimer(every)
			select {
			case <-t.C:
			case <-ctx.Done():
				t.Stop()
				return context.Cause(ctx)
			}
		}
		sample, err := s.take(ctx)
		if err != nil {
			return err
		}
		m = m.Update(top.Got{Sample: sample})
	}
	out := bufio.NewWriter(w)
	for _, l := range m.View() {
		_, _ = out.WriteString(l.Text + "\n") // Flush has the error
	}
	return out.Flush()
}

// liveTop shows the view in a terminal until it is told to end.
func liveTop(ctx context.Context, s sampler, every time.Duration, w io.Writer) error {
	if ctx == nil {
		ctx = context.Background()
	}
	screen := topScreen{ctx: ctx, sampler: s, every: every, model: top.Model{Every: every}, plain: os.Getenv("NO_COLOR") != ""}
	_, err := tea.NewProgram(screen, tea.WithContext(ctx), tea.WithOutput(w)).Run()
	return err
}

// topScreen is the view in a terminal.
type topScreen struct {
	ctx     context.Context // of the command: a program's own Init and Update take none
	sampler sampler
	every   time.Duration
	model   top.Model
	plain   bool // no colours
}

// sampleDue says that it is time for the next sample.
type sampleDue struct{}

// Init implements tea.Model.
func (t topScreen) Init() tea.Cmd { return t.sample }

// sample takes one. It runs beside the view, which stays responsive while weir
// does not answer.
func (t topScreen) sample() tea.Msg {
	s, err := t.sampler.take(t.ctx)
	if err != nil {
		return top.Lost{At: time.Now(), Why: err.Error()}
	}
	return top.Got{Sample: s}
}

// Update implements tea.Model.
func (t topScreen) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case sampleDue:
		if t.model.Paused() {
			return t, t.later()
		}
		return t, t.sample
	case top.Got, top.Lost:
		t.model = t.model.Update(msg)
		return t, t.later()
	case tea.WindowSizeMsg:
		t.model = t.model.Update(top.Size{Width: msg.Width, Height: msg.Height})
	case tea.KeyPressMsg:
		t.model = t.model.Update(top.Key(msg.String()))
		if t.model.Done() {
			return t, tea.Quit
		}
	}
	return t, nil
}

func (t topScreen) later() tea.Cmd {
	return tea.Tick(t.every, func(time.Time) tea.Msg { return sampleDue{} })
}

// styles are SGR sequences by top.Style. What they say the text says, too.
var styles = map[top.Style]string{top.Head: "7", top.Pool: "1", top.Chosen: "7", top.Warn: "33", top.Bad: "31;1"}

// View implements tea.Model.
func (t topScreen) View() tea.View {
	var b strings.Builder
	for i, l := range t.model.View() {
		if i > 0 {
			b.WriteByte('\n')
		}
		style, styled := styles[l.Style]
		if t.plain && (l.Style == top.Warn || l.Style == top.Bad) {
			styled = false
		}
		if !styled || l.Text == "" {
			b.WriteString(l.Text)
			continue
		}
		b.WriteString("\x1b[" + style + "m" + l.Text + "\x1b[0m")
	}
	v := tea.NewView(b.String())
	v.AltScreen = true
	v.WindowTitle = "weir top"
	return v
}

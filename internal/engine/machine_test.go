// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"log/slog"
	"math"
	"runtime/debug"
	"strconv"
	"testing"
	"testing/fstest"
	"time"
)

func file(s string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(s)} }

func TestCgroupMemory(t *testing.T) {
	for _, c := range []struct {
		name string
		fs   fstest.MapFS
		want int64
	}{
		{"no cgroup file", fstest.MapFS{}, 0},
		{"version 2, own limit", fstest.MapFS{
			"proc/self/cgroup":               file("0::/a/b\n"),
			"sys/fs/cgroup/a/b/memory.max":   file("1048576\n"),
			"sys/fs/cgroup/a/memory.max":     file("max\n"),
			"sys/fs/cgroup/other/memory.max": file("1\n"),
		}, 1048576},
		{"version 2, an ancestor is tighter", fstest.MapFS{
			"proc/self/cgroup":             file("0::/a/b\n"),
			"sys/fs/cgroup/a/b/memory.max": file("1048576"),
			"sys/fs/cgroup/a/memory.max":   file("4096"),
		}, 4096},
		{"version 2, seen from inside a container", fstest.MapFS{
			"proc/self/cgroup":         file("0::/\n"),
			"sys/fs/cgroup/memory.max": file("2097152\n"),
		}, 2097152},
		{"version 1", fstest.MapFS{
			"proc/self/cgroup": file("5:cpu,cpuacct:/x\n4:hugetlb,memory:/x\n"),
			"sys/fs/cgroup/memory/x/memory.limit_in_bytes": file("8192\n"),
			"sys/fs/cgroup/memory/memory.limit_in_bytes":   file("9223372036854771712\n"),
		}, 8192},
		{"version 1 without a limit", fstest.MapFS{
			"proc/self/cgroup":                           file("4:memory:/\n"),
			"sys/fs/cgroup/memory/memory.limit_in_bytes": file("9223372036854771712\n"),
		}, 0},
		{"nonsense", fstest.MapFS{"proc/self/cgroup": file("hello\n\n::")}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := findMemoryGroup(c.fs).limit; got != c.want {
				t.Errorf("got %d, want %d", got, c.want)
			}
		})
	}
}

func TestMaxConnections(t *testing.T) {
	for _, c := range []struct {
		configured int64
		files      uint64
		want       int
	}{
		{configured: 7, files: 1024, want: 7},
		{files: 1024, want: 409},
		{files: 1 << 20, want: 419430},
		{files: 100, want: 18},      // the reserve binds
		{files: 10, want: 1},        // never nothing
		{files: 0, want: 858993458}, // unknown: no ceiling that anyone could reach
	} {
		if got := maxConnections(c.configured, c.files); got != c.want {
			t.Errorf("maxConnections(%d, %d) = %d, want %d", c.configured, c.files, got, c.want)
		}
	}
}

func newTestMemory(limit, group int64) (m *memory, set func(mapped, needed, group int64)) {
	use := memoryUse{}
	fs := fstest.MapFS{}
	m = &memory{log: slog.New(slog.DiscardHandler), read: func() memoryUse { return use }, said: func(bool) {}}
	m.limit.Store(limit)
	m.within = group // as of a group so large that usable takes nothing off
	m.group = memoryGroup{root: fs, limit: group, usage: "current", stat: "stat", caches: []string{"inactive_file"}}
	return m, func(mapped, needed, group int64) {
		use = memoryUse{mapped, needed}
		fs["current"] = file(strconv.FormatInt(group+500, 10))
		fs["stat"] = file("anon 7\ninactive_file 500\n")
	}
}

func TestMemoryPressure(t *testing.T) {
	m, set := newTestMemory(1000, 0)
	for _, c := range []struct {
		used int64
		want bool
	}{{999, false}, {1000, true}, {960, true}, {949, false}, {999, false}, {2000, true}} {
		set(c.used, 0, 0)
		if m.look(); m.pressed.Load() != c.want || m.closing() != c.want {
			t.Errorf("at %d of 1000: pressed %v, want %v", c.used, !c.want, c.want)
		}
	}
	if u := readMemory(); u.needed <= 0 || u.mapped < u.needed {
		t.Errorf("the runtime uses %+v", u)
	}
}

// TestBuffered: the budget is its part of the runtime's limit, follows it, is of
// the machine's memory where there is none, and changes by a reload.
func TestBuffered(t *testing.T) {
	m, _ := newTestMemory(1000, 0)
	m.setBuffered(0.2)
	if got := m.budget.Limit(); got != 200 {
		t.Errorf("a fifth of 1000 is %d", got)
	}
	m.limit.Store(500)
	if m.look(); m.budget.Limit() != 100 {
		t.Errorf("a fifth of 500 is %d", m.budget.Limit())
	}
	m.total = 4000
	m.limit.Store(math.MaxInt64)
	if m.setBuffered(0.1); m.budget.Limit() != 400 {
		t.Errorf("a tenth of a machine of 4000 is %d", m.budget.Limit())
	}

	a := backend(t, "a")
	r := start(t, simple("", a))
	tenth := r.memory.budget.Limit()
	if tenth < 1<<20 || tenth != r.memory.gauges().BufferedLimit {
		t.Fatalf("a tenth of this machine's memory is %d, said to be %d", tenth, r.memory.gauges().BufferedLimit)
	}
	if _, err := r.Reload(parse(t, simple("", a)+"\nlimits: {buffered: 20%}\n"), ReloadOptions{}); err != nil {
		t.Fatal(err)
	}
	if got := r.memory.budget.Limit(); max(got-2*tenth, 2*tenth-got) > 1 {
		t.Errorf("twice %d is %d", tenth, got)
	}
}

// TestMemoryShort: what a collection gives back refuses nobody, what it does not
// give back does, and so does what the kernel holds for the group.
func TestMemoryShort(t *testing.T) {
	m, set := newTestMemory(900, 1000)
	for i, c := range []struct {
		mapped, needed, group int64
		want                  bool
		next                  time.Duration
	}{
		{300, 100, 310, false, memoryEvery},
		{900, 300, 950, false, memoryOften}, // garbage, all of it
		{900, 809, 950, false, memoryOften},
		{900, 810, 950, true, memoryOften}, // nine tenths of the limit
		{900, 721, 950, true, memoryOften},
		{890, 719, 940, false, memoryOften},
		{300, 300, 960, true, memoryOften}, // the rest is the kernel's
		{300, 300, 910, true, memoryOften},
		{300, 300, 890, false, memoryOften},
		{240, 240, 990, false, memoryOften}, // whoever it is, it is not weir
		{900, 100, 970, true, memoryOften},  // garbage that the collector does not get at in time
		{890, 100, 940, false, memoryOften},
		{928, 100, 940, true, memoryOften},
		{901, 100, 940, true, memoryOften},
		{890, 100, 940, false, memoryOften},
	} {
		set(c.mapped, c.needed, c.group)
		if next := m.look(); m.short.Load() != c.want || next != c.next && c.next == memoryEvery {
			t.Errorf("%d: %+v: short %v, next look in %v", i, c, m.short.Load(), next)
		}
	}
}

// TestMemoryMakesRoom: the runtime's limit gives way to what else is in the group.
func TestMemoryMakesRoom(t *testing.T) {
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(900 << 20))
	m, set := newTestMemory(900<<20, 1000<<20)
	m.own = true
	for _, c := range []struct{ mapped, group, want int64 }{
		{100, 120, 900},
		{100, 250, 800},  // 150 are the kernel's, or another process's
		{100, 252, 800},  // not for so little
		{100, 1000, 250}, // a quarter is kept in any case
		{100, 110, 900},
	} {
		set(c.mapped<<20, 0, c.group<<20)
		m.look()
		if got := m.limit.Load(); got != c.want<<20 || debug.SetMemoryLimit(-1) != got {
			t.Errorf("%+v: %d", c, got>>20)
		}
	}
}

// TestMemoryGroupUse: what the kernel takes back by itself is not used.
func TestMemoryGroupUse(t *testing.T) {
	for name, c := range map[string]struct {
		fs   fstest.MapFS
		want int64
	}{
		"version 2": {fstest.MapFS{
			"proc/self/cgroup":               file("0::/a\n"),
			"sys/fs/cgroup/a/memory.max":     file("1000\n"),
			"sys/fs/cgroup/a/memory.current": file("900\n"),
			"sys/fs/cgroup/a/memory.stat":    file("anon 500\nfile 300\ninactive_file 100\nactive_file 150\nslab_reclaimable 30\nslab 40\n"),
		}, 620},
		"version 1": {fstest.MapFS{
			"proc/self/cgroup": file("4:memory:/x\n"),
			"sys/fs/cgroup/memory/x/memory.limit_in_bytes": file("1000\n"),
			"sys/fs/cgroup/memory/x/memory.usage_in_bytes": file("900\n"),
			"sys/fs/cgroup/memory/x/memory.stat":           file("cache 300\ninactive_file 1\ntotal_inactive_file 100\ntotal_active_file 150\n"),
		}, 650},
		"no limit":      {fstest.MapFS{"proc/self/cgroup": file("0::/a\n")}, 0},
		"no word of it": {fstest.MapFS{"proc/self/cgroup": file("0::/a\n"), "sys/fs/cgroup/a/memory.max": file("1000\n")}, 0},
	} {
		g := findMemoryGroup(c.fs)
		if got := g.used(); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"log/slog"
	"testing"
	"testing/fstest"
)

func TestCgroupMemory(t *testing.T) {
	file := func(s string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(s)} }
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
			if got := cgroupMemory(c.fs); got != c.want {
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

func TestMemoryPressure(t *testing.T) {
	used := int64(0)
	m := &memory{limit: 1000, log: slog.New(slog.DiscardHandler), used: func() int64 { return used }}
	for _, c := range []struct {
		used int64
		want bool
	}{{999, false}, {1000, true}, {960, true}, {949, false}, {999, false}, {2000, true}} {
		used = c.used
		if m.look(); m.pressed.Load() != c.want {
			t.Errorf("at %d of 1000: pressed %v, want %v", c.used, !c.want, c.want)
		}
	}
	if n := memoryUsed(); n <= 0 {
		t.Errorf("the runtime uses %d bytes", n)
	}
}

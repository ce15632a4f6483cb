// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"bufio"
	"bytes"
	"io/fs"
	"path"
	"strconv"
	"strings"
)

// memoryGroup is the control group, of the process's own and those above, whose
// memory limit is the smallest. Both versions of the hierarchy are understood
// (cgroups(7)). The zero value is none.
type memoryGroup struct {
	root   fs.FS // the file system
	limit  int64 // bytes; 0: none
	usage  string
	stat   string
	caches []string // lines of stat: what the kernel takes back before it kills
}

func findMemoryGroup(root fs.FS) (least memoryGroup) {
	text, err := fs.ReadFile(root, "proc/self/cgroup")
	if err != nil {
		return least
	}
	for line := range strings.Lines(string(text)) {
		// hierarchy-ID:controller-list:cgroup-path, see cgroups(7)
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) != 3 {
			continue
		}
		mount, file := "sys/fs/cgroup", "memory.max"
		g := memoryGroup{root: root, usage: "memory.current", caches: []string{"inactive_file", "active_file", "slab_reclaimable"}}
		if parts[0] != "0" || parts[1] != "" {
			if !strings.Contains(","+parts[1]+",", ",memory,") {
				continue
			}
			mount, file = "sys/fs/cgroup/memory", "memory.limit_in_bytes"
			g.usage, g.caches = "memory.usage_in_bytes", []string{"total_inactive_file", "total_active_file"}
		}
		for dir := path.Clean("/" + parts[2]); ; dir = path.Dir(dir) {
			if n := readLimit(root, path.Join(mount, dir, file)); n > 0 && (least.limit == 0 || n < least.limit) {
				least = g
				least.limit, least.usage, least.stat = n, path.Join(mount, dir, g.usage), path.Join(mount, dir, "memory.stat")
			}
			if dir == "/" {
				break
			}
		}
	}
	return least
}

// used returns the bytes that the group holds and the kernel cannot take back; 0
// when there is no limit, or no word of it.
func (g *memoryGroup) used() int64 {
	if g.limit == 0 {
		return 0
	}
	n := readLimit(g.root, g.usage)
	text, err := fs.ReadFile(g.root, g.stat)
	if err != nil {
		return n
	}
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
		name, value, _ := strings.Cut(lines.Text(), " ")
		for _, c := range g.caches {
			if name == c {
				v, _ := strconv.ParseInt(value, 10, 64) // no number: nothing to take off
				n -= v
			}
		}
	}
	return max(n, 0)
}

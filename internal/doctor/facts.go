// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Facts are what is known of a machine and of this process on it. A number of 0
// means that it could not be found out, unless its field says otherwise.
type Facts struct {
	Kernel       string `json:"kernel"` // as uname -r tells it
	OS           string `json:"os"`     // such as linux/amd64
	Distribution string `json:"distribution,omitempty"`
	CPUs         int    `json:"cpus"`
	Processors   int    `json:"gomaxprocs"` // that the runtime uses
	Memory       int64  `json:"memory"`     // bytes of the machine
	UID          int    `json:"uid"`
	BindLow      bool   `json:"cap_net_bind_service"` // this process may bind ports below LowPorts
	FilesSoft    uint64 `json:"files_soft"`           // RLIMIT_NOFILE
	FilesHard    uint64 `json:"files_hard"`           // to which weir raises it
	FilesOpen    int    `json:"files_open"`           // by this process

	CgroupMemory  int64   `json:"cgroup_memory"`  // smallest limit in bytes; 0: none
	CgroupCPU     float64 `json:"cgroup_cpu"`     // smallest quota in processors; 0: none
	MemoryLimit   int64   `json:"gomemlimit"`     // that the runtime obeys; 0: none
	MemoryFromEnv bool    `json:"gomemlimit_env"` // the environment sets it
	AcceptQueue   int     `json:"somaxconn"`      // net.core.somaxconn
	SynQueue      int     `json:"tcp_max_syn_backlog"`
	PortsFrom     int     `json:"port_range_from"` // net.ipv4.ip_local_port_range
	PortsTo       int     `json:"port_range_to"`
	LowPorts      int     `json:"unprivileged_port_start"` // ports below it need a right; -1: unknown
	Conntrack     int64   `json:"conntrack_max"`           // 0: connections are not tracked
	ConntrackUsed int64   `json:"conntrack_used"`
	IPv6          bool    `json:"ipv6"`
	ClockUnsynced bool    `json:"clock_unsynced"` // the kernel's clock is not disciplined by NTP or PTP
	ClockKnown    bool    `json:"clock_known"`
}

// system is what Look asks beside files.
type system struct {
	root  fs.FS
	files func() (soft, hard uint64)
	name  func() string
	clock func() (unsynced, known bool)
	env   func(string) string
	limit func() int64
	uid   int
	cpus  int
}

// Look gathers the facts of this machine and process.
func Look() Facts {
	return look(system{
		root: os.DirFS("/"), files: fileLimits, name: kernelName, clock: clockState, env: os.Getenv, uid: os.Geteuid(), cpus: runtime.NumCPU(),
		limit: func() int64 { return debug.SetMemoryLimit(-1) },
	})
}

func look(s system) Facts {
	f := Facts{
		Kernel: s.name(), OS: runtime.GOOS + "/" + runtime.GOARCH, CPUs: s.cpus, Processors: runtime.GOMAXPROCS(0), UID: s.uid,
		MemoryFromEnv: s.env("GOMEMLIMIT") != "",
		AcceptQueue:   s.number("proc/sys/net/core/somaxconn"), SynQueue: s.number("proc/sys/net/ipv4/tcp_max_syn_backlog"),
		LowPorts:  s.number("proc/sys/net/ipv4/ip_unprivileged_port_start"),
		Conntrack: int64(s.number("proc/sys/net/netfilter/nf_conntrack_max")), ConntrackUsed: int64(s.number("proc/sys/net/netfilter/nf_conntrack_count")),
		CgroupMemory: s.cgroupMemory(), CgroupCPU: s.cgroupCPU(),
	}
	f.FilesSoft, f.FilesHard = s.files()
	f.ClockUnsynced, f.ClockKnown = s.clock()
	if v := s.limit(); v != math.MaxInt64 {
		f.MemoryLimit = v
	}
	if !s.has("proc/sys/net/ipv4/ip_unprivileged_port_start") {
		f.LowPorts = -1
	}
	if ports := strings.Fields(s.text("proc/sys/net/ipv4/ip_local_port_range")); len(ports) == 2 {
		f.PortsFrom, _ = strconv.Atoi(ports[0]) // the kernel wrote them
		f.PortsTo, _ = strconv.Atoi(ports[1])
	}
	f.Memory = s.after("proc/meminfo", "MemTotal:") << 10
	f.IPv6 = s.has("proc/net/if_inet6") && s.number("proc/sys/net/ipv6/conf/all/disable_ipv6") != 1
	f.Distribution = strings.Trim(s.line("etc/os-release", "PRETTY_NAME="), `"`)
	const netBindService = 10 // capabilities(7)
	if caps, err := strconv.ParseUint(s.line("proc/self/status", "CapEff:"), 16, 64); err == nil {
		f.BindLow = caps&(1<<netBindService) != 0
	} else {
		f.BindLow = s.uid == 0
	}
	if open, err := fs.ReadDir(s.root, "proc/self/fd"); err == nil {
		f.FilesOpen = len(open)
	}
	return f
}

func (s system) text(name string) string {
	b, err := fs.ReadFile(s.root, name)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

func (s system) has(name string) bool {
	_, err := fs.Stat(s.root, name)
	return err == nil
}

// number reads a file with one number; 0 when there is none.
func (s system) number(name string) int {
	n, err := strconv.Atoi(s.text(name))
	if err != nil {
		return 0
	}
	return n
}

// line returns what follows a word at the beginning of a line.
func (s system) line(name, word string) string {
	for line := range strings.Lines(s.text(name)) {
		if v, ok := strings.CutPrefix(line, word); ok {
			return strings.TrimSpace(v)
		}
	}
	return ""
}

// after is line for a number with a unit behind it.
func (s system) after(name, word string) int64 {
	fields := strings.Fields(s.line(name, word))
	if len(fields) == 0 {
		return 0
	}
	n, err := strconv.ParseInt(fields[0], 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// groups returns the folders of the process's control group and of those above
// it, of the version that has the controller (cgroups(7)).
func (s system) groups(controller string) (dirs []string, second bool) {
	for line := range strings.Lines(s.text("proc/self/cgroup")) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) != 3 {
			continue
		}
		mount := "sys/fs/cgroup"
		second = parts[0] == "0" && parts[1] == ""
		if !second {
			if !slices.Contains(strings.Split(parts[1], ","), controller) {
				continue
			}
			mount = path.Join(mount, controller)
		}
		for dir := path.Clean("/" + parts[2]); ; dir = path.Dir(dir) {
			dirs = append(dirs, path.Join(mount, dir))
			if dir == "/" {
				break
			}
		}
		if !second {
			return dirs, false
		}
	}
	return dirs, true
}

// cgroupMemory is the smallest limit above the process; 0: none.
func (s system) cgroupMemory() (least int64) {
	dirs, second := s.groups("memory")
	file := "memory.max"
	if !second {
		file = "memory.limit_in_bytes"
	}
	for _, d := range dirs {
		n, err := strconv.ParseInt(s.text(path.Join(d, file)), 10, 64) // "max" is no number
		if err == nil && n > 0 && n < 1<<60 && (least == 0 || n < least) {
			least = n
		}
	}
	return least
}

// cgroupCPU is the smallest quota above the process, in processors; 0: none.
func (s system) cgroupCPU() (least float64) {
	dirs, second := s.groups("cpu")
	for _, d := range dirs {
		quota, period := s.text(path.Join(d, "cpu.cfs_quota_us")), s.text(path.Join(d, "cpu.cfs_period_us"))
		if second {
			quota, period, _ = strings.Cut(s.text(path.Join(d, "cpu.max")), " ")
		}
		q, err1 := strconv.ParseFloat(quota, 64)
		p, err2 := strconv.ParseFloat(period, 64)
		if err1 == nil && err2 == nil && q > 0 && p > 0 && (least == 0 || q/p < least) {
			least = q / p
		}
	}
	return least
}

func fileLimits() (soft, hard uint64) {
	var l unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &l) != nil {
		return 0, 0
	}
	return l.Cur, l.Max
}

func kernelName() string {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return ""
	}
	return unix.ByteSliceToString(u.Release[:])
}

// clockState asks what adjtimex(2) says of the clock.
func clockState() (unsynced, known bool) {
	var t unix.Timex
	state, err := unix.Adjtimex(&t) // reads only: no mode is set
	if err != nil {
		return false, false
	}
	const timeError = 5 // TIME_ERROR
	return state == timeError || t.Status&unix.STA_UNSYNC != 0, true
}

// Write prints the facts for people, one a line.
func (f Facts) Write(w io.Writer) error {
	for _, l := range []struct {
		name  string
		value any
	}{
		{"kernel", f.Kernel}, {"os", f.OS}, {"distribution", f.Distribution}, {"cpus", f.CPUs}, {"gomaxprocs", f.Processors}, {"memory", f.Memory}, {"uid", f.UID},
		{"cap_net_bind_service", f.BindLow}, {"files_soft", f.FilesSoft}, {"files_hard", f.FilesHard}, {"files_open", f.FilesOpen},
		{"cgroup_memory", f.CgroupMemory}, {"cgroup_cpu", f.CgroupCPU}, {"gomemlimit", f.MemoryLimit}, {"gomemlimit_env", f.MemoryFromEnv},
		{"net.core.somaxconn", f.AcceptQueue}, {"net.ipv4.tcp_max_syn_backlog", f.SynQueue},
		{"net.ipv4.ip_local_port_range", fmt.Sprint(f.PortsFrom, " ", f.PortsTo)}, {"net.ipv4.ip_unprivileged_port_start", f.LowPorts},
		{"nf_conntrack_max", f.Conntrack}, {"nf_conntrack_count", f.ConntrackUsed}, {"ipv6", f.IPv6}, {"clock_unsynced", f.ClockUnsynced},
	} {
		if _, err := fmt.Fprintf(w, "%s: %v\n", l.name, l.value); err != nil {
			return err
		}
	}
	return nil
}

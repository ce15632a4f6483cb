// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"errors"
	"io/fs"
	"math"
	"os"
	"runtime"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/weirlb/weir/internal/config"
)

func fsOf(files map[string]string) fs.FS {
	m := fstest.MapFS{}
	for name, text := range files {
		m[name] = &fstest.MapFile{Data: []byte(text)}
	}
	return m
}

func lookAt(files map[string]string) Facts {
	return look(system{
		root: fsOf(files), files: func() (uint64, uint64) { return 1024, 524288 }, name: func() string { return "6.1.0-18-amd64" },
		clock: func() (bool, bool) { return false, true }, env: func(string) string { return "" }, limit: func() int64 { return math.MaxInt64 }, uid: 1000, cpus: 4,
	})
}

func TestLook(t *testing.T) {
	f := lookAt(map[string]string{
		"proc/sys/net/core/somaxconn":                  "4096\n",
		"proc/sys/net/ipv4/ip_local_port_range":        "32768\t60999\n",
		"proc/sys/net/ipv4/ip_unprivileged_port_start": "1024\n",
		"proc/sys/net/netfilter/nf_conntrack_max":      "262144\n",
		"proc/sys/net/netfilter/nf_conntrack_count":    "17\n",
		"proc/meminfo":     "MemTotal:        2048 kB\nMemFree: 1 kB\n",
		"proc/self/status": "Name:\tweir\nCapEff:\t0000000000000400\n",
		"proc/self/cgroup": "0::/system.slice/weir.service\n",
		"sys/fs/cgroup/system.slice/weir.service/memory.max": "max\n",
		"sys/fs/cgroup/system.slice/memory.max":              "1073741824\n",
		"sys/fs/cgroup/system.slice/weir.service/cpu.max":    "150000 100000\n",
		"sys/fs/cgroup/system.slice/cpu.max":                 "max 100000\n",
		"proc/net/if_inet6":                                  "x",
		"proc/sys/net/ipv6/conf/all/disable_ipv6":            "0\n",
		"etc/os-release":                                     "NAME=x\nPRETTY_NAME=\"Debian GNU/Linux 13\"\n",
	})
	want := Facts{
		Kernel: "6.1.0-18-amd64", OS: runtime.GOOS + "/" + runtime.GOARCH, Distribution: "Debian GNU/Linux 13", CPUs: 4, Processors: runtime.GOMAXPROCS(0),
		Memory: 2 << 20, UID: 1000, BindLow: true, FilesSoft: 1024, FilesHard: 524288, CgroupMemory: 1 << 30, CgroupCPU: 1.5, AcceptQueue: 4096,
		PortsFrom: 32768, PortsTo: 60999, LowPorts: 1024, Conntrack: 262144, ConntrackUsed: 17, IPv6: true, ClockKnown: true,
	}
	if f != want {
		t.Errorf("got  %+v\nwant %+v", f, want)
	}
}

// The first version of control groups, and a machine that tells nothing.
func TestLookElsewhere(t *testing.T) {
	f := lookAt(map[string]string{
		"proc/self/cgroup": "9:memory:/docker/a\n8:cpu,cpuacct:/docker/a\n",
		"sys/fs/cgroup/memory/docker/a/memory.limit_in_bytes": "536870912\n",
		"sys/fs/cgroup/memory/memory.limit_in_bytes":          "9223372036854771712\n",
		"sys/fs/cgroup/cpu/docker/a/cpu.cfs_quota_us":         "50000\n",
		"sys/fs/cgroup/cpu/docker/a/cpu.cfs_period_us":        "100000\n",
	})
	if f.CgroupMemory != 512<<20 || f.CgroupCPU != 0.5 {
		t.Errorf("%+v", f)
	}
	if f := lookAt(nil); f.LowPorts != -1 || f.IPv6 || f.BindLow || f.CgroupMemory != 0 {
		t.Errorf("%+v", f)
	}
	if f := Look(); f.Kernel == "" || f.CPUs < 1 || f.FilesHard == 0 {
		t.Errorf("this machine: %+v", f)
	}
}

// good is a machine that lacks nothing.
var good = Facts{
	Kernel: "6.1.0", CPUs: 4, Processors: 4, Memory: 8 << 30, FilesSoft: 1024, FilesHard: 1 << 20, AcceptQueue: 4096, PortsFrom: 32768, PortsTo: 60999,
	LowPorts: 1024, IPv6: true, ClockKnown: true,
}

const plain = `listeners: {web: {bind: ":8080", pool: app}}
pools: {app: {backends: ["http://10.0.1.21:8080", "http://10.0.1.22:8080"]}}
`

func planOf(t *testing.T, text string) *config.Plan {
	t.Helper()
	p, err := config.Parse("weir.yaml", []byte(text), os.LookupEnv)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestExamine(t *testing.T) {
	with := func(change func(*Facts)) Facts {
		f := good
		change(&f)
		return f
	}
	for name, c := range map[string]struct {
		facts    Facts
		text     string // added to plain, or instead of it
		severity Severity
		find     string // name of the finding
		words    string // of its text or its fix
	}{
		"files for the limit":       {with(func(f *Facts) { f.FilesSoft, f.FilesHard = 4096, 4096 }), "limits: {max_connections: 10000}\n", Fail, "files", "20064 files"},
		"few files":                 {with(func(f *Facts) { f.FilesSoft, f.FilesHard = 1024, 1024 }), "", Warn, "files", "LimitNOFILE"},
		"a listener above all":      {good, "limits: {max_connections: 100}\nlisteners: {web: {bind: \":8080\", pool: app, limits: {max_connections: 500}}}\n", Warn, "files", "listener web"},
		"a short accept queue":      {with(func(f *Facts) { f.AcceptQueue = 128 }), "", Warn, "accept_queue", "128"},
		"few ports":                 {good, "check: {rate: 2000/s}\n", Warn, "local_ports", "28232"},
		"few ports and none kept":   {good, "check: {rate: 2000/s}\npools: {app: {backends: [\"http://10.0.1.21:8080\"], upstream: {max_idle: 0}}}\n", Fail, "local_ports", "keeps no connection"},
		"ports enough":              {good, "check: {rate: 100/s}\n", OK, "local_ports", "100"},
		"a low port":                {with(func(f *Facts) { f.UID = 1000 }), "listeners: {web: {bind: \":80\", pool: app}}\n", Fail, "low_ports", "CAP_NET_BIND_SERVICE"},
		"a low port with the right": {with(func(f *Facts) { f.BindLow = true }), "listeners: {web: {bind: \":80\", pool: app}}\n", OK, "low_ports", ":80"},
		"a low port by sysctl":      {with(func(f *Facts) { f.LowPorts = 80 }), "listeners: {web: {bind: \":80\", pool: app}}\n", "", "low_ports", ""},
		"GOMEMLIMIT above":          {with(func(f *Facts) { f.CgroupMemory, f.MemoryLimit, f.MemoryFromEnv = 1<<30, 2<<30, true }), "", Fail, "memory", "2.0 GiB"},
		"little memory":             {with(func(f *Facts) { f.CgroupMemory = 32 << 20 }), "", Warn, "memory", "32 MiB"},
		"memory for the limit":      {with(func(f *Facts) { f.CgroupMemory = 256 << 20 }), "limits: {max_connections: 100000}\n", Warn, "memory", "100000 client connections"},
		"half a processor":          {with(func(f *Facts) { f.CgroupCPU = 0.5 }), "", Warn, "processors", "0.5"},
		"conntrack full":            {with(func(f *Facts) { f.Conntrack, f.ConntrackUsed = 1000, 950 }), "", Warn, "conntrack", "950 of 1000"},
		"conntrack small":           {with(func(f *Facts) { f.Conntrack = 1000 }), "limits: {max_connections: 5000}\n", Warn, "conntrack", "10000"},
		"no IPv6":                   {with(func(f *Facts) { f.IPv6 = false }), "listeners: {web: {bind: \"[::1]:8080\", pool: app}}\n", Fail, "ipv6", "[::1]:8080"},
		"no IPv6 and none used":     {with(func(f *Facts) { f.IPv6 = false }), "", "", "ipv6", ""},
		"the clock":                 {with(func(f *Facts) { f.ClockUnsynced = true }), "", Warn, "clock", "chronyd"},
		"an old kernel":             {with(func(f *Facts) { f.Kernel = "4.19.0" }), "", Warn, "kernel", "4.19"},
		"a two-digit kernel":        {with(func(f *Facts) { f.Kernel = "5.15.0" }), "", OK, "kernel", "5.15"},
	} {
		t.Run(name, func(t *testing.T) {
			text := plain
			for block := range strings.Lines(c.text) {
				head, _, _ := strings.Cut(block, ":")
				var kept []string
				for line := range strings.Lines(text) {
					if !strings.HasPrefix(line, head+":") {
						kept = append(kept, line)
					}
				}
				text = strings.Join(kept, "") + block
			}
			list := Examine(Input{Facts: c.facts, Plan: planOf(t, text)})
			for _, f := range list {
				if (f.Severity == OK) != (f.Fix == "") || f.Text == "" {
					t.Errorf("half a finding: %+v", f)
				}
				if f.Name != c.find {
					if f.Severity == Fail {
						t.Errorf("beside: %+v", f)
					}
					continue
				}
				if c.severity == "" {
					t.Errorf("unexpected: %+v", f)
				}
				if f.Severity == c.severity && strings.Contains(f.Text+f.Fix, c.words) {
					return
				}
			}
			if c.severity != "" {
				t.Errorf("no %s of %s with %q in %+v", c.severity, c.find, c.words, list)
			}
		})
	}
}

// A machine that lacks nothing is all right, with and without a configuration,
// and one that tells nothing is not blamed.
func TestExamineGood(t *testing.T) {
	for _, in := range []Input{{Facts: good}, {Facts: good, Plan: planOf(t, plain)}, {}, {Facts: Facts{LowPorts: -1}, Plan: planOf(t, plain)}} {
		for _, f := range Examine(in) {
			if f.Severity != OK {
				t.Errorf("%+v", f)
			}
		}
	}
	list := Examine(Input{Facts: good, Plan: planOf(t, plain), Faults: []error{errors.New("cert x: no such file")}})
	if !Failed(list) || list[0].Severity != Fail || !strings.Contains(list[0].Text, "cert x") {
		t.Errorf("%+v", list)
	}
}

func TestExamineSecrets(t *testing.T) {
	plan := planOf(t, "admin: {token_file: /t}\n"+plain)
	for mode, want := range map[fs.FileMode]Severity{0o600: OK, 0o640: OK, 0o644: Warn, 0o666: Warn, 0o601: Warn} {
		list := Examine(Input{Facts: good, Plan: plan, Mode: func(string) (fs.FileMode, error) { return mode, nil }})
		found := false
		for _, f := range list {
			if f.Name == "secrets" {
				found = true
				if f.Severity != want {
					t.Errorf("%o: %+v", mode, f)
				}
			}
		}
		if !found {
			t.Errorf("%o: nothing", mode)
		}
	}
}

func TestWrite(t *testing.T) {
	var b strings.Builder
	if err := good.Write(&b); err != nil || !strings.Contains(b.String(), "net.core.somaxconn: 4096\n") {
		t.Errorf("%v\n%s", err, b.String())
	}
}

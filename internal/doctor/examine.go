// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"cmp"
	"fmt"
	"io/fs"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/weirlb/weir/internal/config"
)

// Severity says what a finding means for weir on this machine.
type Severity string

// The severities.
const (
	OK   Severity = "ok"
	Warn Severity = "warn" // will hurt under load or some day
	Fail Severity = "fail" // the configuration does not work here
)

// Finding is one thing that was looked at.
type Finding struct {
	Name     string   `json:"name"`
	Severity Severity `json:"severity"`
	Text     string   `json:"text"`
	Fix      string   `json:"fix,omitempty"` // empty when all is well
}

// Figures that findings are held against.
const (
	reserve     = 64   // descriptors beside connections (S17)
	fewFiles    = 4096 // below it a balancer soon refuses
	fewQueue    = 1024 // net.core.somaxconn: kernels since 5.4 have 4096
	littleRAM   = 64 << 20
	oldKernel   = "5.4"    // the oldest with the defaults that weir counts on
	lingerTime  = 60       // seconds of TIME_WAIT, which is fixed in Linux
	connMemory  = 40 << 10 // bytes per client connection in use, buffers of the kernel not counted
	memoryShare = 0.9      // of the control group that weir lets the runtime use
)

// Input is what Examine looks at. Plan nil: the machine alone.
type Input struct {
	Facts Facts
	Plan  *config.Plan
	// Faults are what else keeps the plan from running here, such as files that
	// cannot be read; the caller has tried.
	Faults []error
	// Mode returns the permissions of a file, nil to look at none.
	Mode func(name string) (fs.FileMode, error)
}

// Examine returns a finding for everything that was looked at, the worst first.
func Examine(in Input) []Finding {
	x := &examiner{Input: in, f: in.Facts}
	for _, look := range []func(*examiner){
		(*examiner).faults, (*examiner).files, (*examiner).memory, (*examiner).processors, (*examiner).queue,
		(*examiner).ports, (*examiner).lowPorts, (*examiner).tracking, (*examiner).ipv6, (*examiner).secrets, (*examiner).clock, (*examiner).kernel,
	} {
		look(x)
	}
	rank := map[Severity]int{Fail: 0, Warn: 1, OK: 2}
	slices.SortStableFunc(x.found, func(a, b Finding) int { return cmp.Compare(rank[a.Severity], rank[b.Severity]) })
	return x.found
}

type examiner struct {
	Input
	f     Facts
	found []Finding
}

func (x *examiner) add(name string, s Severity, fix, format string, args ...any) {
	x.found = append(x.found, Finding{Name: name, Severity: s, Fix: fix, Text: fmt.Sprintf(format, args...)})
}

func (x *examiner) ok(name, format string, args ...any) { x.add(name, OK, "", format, args...) }

// faults are what New or a file says no to.
func (x *examiner) faults() {
	for _, err := range x.Faults {
		x.add("configuration", Fail, "weir check says the same", "%v", err)
	}
	if x.Plan != nil && len(x.Faults) == 0 {
		x.ok("configuration", "the files that it names can be read, and its addresses are this machine's")
	}
}

// connections is how many client connections the configuration asks for; 0: as
// many as the machine gives.
func (x *examiner) connections() int64 {
	if x.Plan == nil {
		return 0
	}
	return x.Plan.Limits.MaxConnections
}

// capacity is how many client connections the descriptors are enough for: each
// may need one more toward a backend (S17).
func (x *examiner) capacity() int64 {
	files := min(max(x.f.FilesHard, x.f.FilesSoft), math.MaxInt32)
	return max((int64(files)-reserve)/2, 0)
}

func (x *examiner) files() {
	hard := max(x.f.FilesHard, x.f.FilesSoft)
	if hard == 0 {
		return
	}
	has, want := x.capacity(), x.connections()
	const fix = "raise RLIMIT_NOFILE: LimitNOFILE= in the systemd unit, --ulimit nofile= of the container"
	switch {
	case want > has:
		x.add("files", Fail, fix+", or lower limits.max_connections", "limits.max_connections is %d, which takes %d files (one toward the client, one toward a backend, %d beside); %d are allowed", want, 2*want+reserve, reserve, hard)
	case hard < fewFiles:
		x.add("files", Warn, fix, "%d open files are allowed, enough for %d client connections", hard, has)
	default:
		x.ok("files", "%d open files are allowed, enough for %d client connections", hard, has)
	}
	if x.Plan == nil {
		return
	}
	all := want
	if all == 0 {
		all = int64(min(hard, math.MaxInt32)) * 8 / 10 / 2
	}
	for i := range x.Plan.Listeners {
		if l := &x.Plan.Listeners[i]; l.MaxConnections > all {
			x.add("files", Warn, "raise RLIMIT_NOFILE and limits.max_connections, or lower the listener's", "listener %s allows %d connections, the process %d", l.Name, l.MaxConnections, all)
		}
	}
}

func (x *examiner) memory() {
	has := x.f.Memory
	if x.f.CgroupMemory > 0 && (has == 0 || x.f.CgroupMemory < has) {
		has = x.f.CgroupMemory
	}
	if has == 0 {
		return
	}
	if x.f.MemoryFromEnv && x.f.MemoryLimit > has {
		x.add("memory", Fail, "lower GOMEMLIMIT, or leave it out: weir sets 90 % of the control group's limit itself",
			"GOMEMLIMIT is %s, but only %s are allowed: the kernel kills weir before the collector is in a hurry", size(x.f.MemoryLimit), size(has))
		return
	}
	usable := int64(float64(has) * memoryShare)
	if want := x.connections() * connMemory; want > usable {
		x.add("memory", Warn, "allow more memory, or lower limits.max_connections", "%d client connections in use take about %s; %s are allowed", x.connections(), size(want), size(has))
		return
	}
	if has < littleRAM {
		x.add("memory", Warn, "allow 128 MiB or more", "only %s are allowed", size(has))
		return
	}
	x.ok("memory", "%s are allowed%s", size(has), x.limitSaid())
}

func (x *examiner) limitSaid() string {
	switch {
	case x.f.MemoryFromEnv:
		return ", GOMEMLIMIT is " + size(x.f.MemoryLimit)
	case x.f.CgroupMemory > 0:
		return ", of which weir lets the runtime use 90 %"
	default:
		return ", without a limit of the control group"
	}
}

func size(n int64) string {
	switch {
	case n >= 1<<30:
		return strconv.FormatFloat(float64(n)/(1<<30), 'f', 1, 64) + " GiB"
	default:
		return strconv.FormatInt(n>>20, 10) + " MiB"
	}
}

func (x *examiner) processors() {
	if q := x.f.CgroupCPU; q > 0 && q < 1 {
		x.add("processors", Warn, "allow at least one processor, or none at all: a quota stops weir for the rest of each period, which clients see as latency",
			"the control group allows %.2g of a processor", q)
		return
	}
	if x.f.CPUs > 0 {
		x.ok("processors", "%d, of which the runtime uses %d", x.f.CPUs, x.f.Processors)
	}
}

func (x *examiner) queue() {
	switch n := x.f.AcceptQueue; {
	case n == 0:
	case n < fewQueue:
		x.add("accept_queue", Warn, "sysctl -w net.core.somaxconn=4096", "net.core.somaxconn is %d: so many connections may wait to be accepted; a burst beyond it is dropped, and clients try again after a second", n)
	default:
		x.ok("accept_queue", "%d connections may wait to be accepted", n)
	}
}

// ports compares the local ports with what the expected rate would use if no
// connection were kept: one for each request, in TIME_WAIT for a minute.
func (x *examiner) ports() {
	n := x.f.PortsTo - x.f.PortsFrom + 1
	if x.f.PortsTo == 0 || x.Plan == nil {
		return
	}
	rate := x.Plan.Check.Rate
	if rate == 0 {
		x.ok("local_ports", "%d toward each backend, enough for %d new connections a second (check.rate says nothing)", n, n/lingerTime)
		return
	}
	for i := range x.Plan.Pools {
		p := &x.Plan.Pools[i]
		if len(p.Backends) == 0 {
			continue
		}
		each := rate / float64(len(p.Backends))
		if need := each * lingerTime; p.Upstream.MaxIdle == 0 && need > float64(n) {
			x.add("local_ports", Fail, "let connections be kept (upstream.max_idle), or widen net.ipv4.ip_local_port_range",
				"pool %s keeps no connection: %.0f requests a second to each backend take %.0f local ports, %d are there", p.Name, each, need, n)
			return
		} else if need > float64(n) {
			x.add("local_ports", Warn, "sysctl -w net.ipv4.ip_local_port_range='1024 65535', or more backends",
				"pool %s: if backends close their connections, %.0f requests a second to each take %.0f local ports, %d are there", p.Name, each, need, n)
			return
		}
	}
	x.ok("local_ports", "%d toward each backend, enough for the %g requests a second of check.rate", n, rate)
}

// lowPorts finds ports that only root, or who has the right, may bind.
func (x *examiner) lowPorts() {
	if x.Plan == nil || x.f.LowPorts < 0 {
		return
	}
	var low []string
	for _, bind := range x.binds() {
		if port := portOf(bind); port > 0 && port < x.f.LowPorts {
			low = append(low, bind)
		}
	}
	switch {
	case len(low) == 0:
	case x.f.BindLow:
		x.ok("low_ports", "%s: this process may bind ports below %d", strings.Join(low, ", "), x.f.LowPorts)
	default:
		x.add("low_ports", Fail, "AmbientCapabilities=CAP_NET_BIND_SERVICE in the systemd unit (or setcap cap_net_bind_service=+ep on the binary, or a systemd socket)",
			"%s: ports below %d need a right that this process (uid %d) has not", strings.Join(low, ", "), x.f.LowPorts, x.f.UID)
	}
}

// binds lists the addresses that weir itself would bind.
func (x *examiner) binds() []string {
	out := []string{x.Plan.Admin.Bind, x.Plan.Status.Bind}
	for i := range x.Plan.Listeners {
		out = append(out, x.Plan.Listeners[i].Bind...)
	}
	return slices.DeleteFunc(out, func(b string) bool {
		return b == "" || strings.HasPrefix(b, "unix:") || strings.HasPrefix(b, "systemd:")
	})
}

func portOf(bind string) int {
	n, err := strconv.Atoi(bind[strings.LastIndexByte(bind, ':')+1:])
	if err != nil {
		return 0
	}
	return n
}

func (x *examiner) tracking() {
	n := x.f.Conntrack
	if n == 0 {
		return
	}
	want := 2 * cmp.Or(x.connections(), min(x.capacity(), 10_000))
	switch {
	case x.f.ConntrackUsed > n*9/10:
		x.add("conntrack", Warn, "sysctl -w net.netfilter.nf_conntrack_max=...", "%d of %d tracked connections are in use: what comes beyond is dropped", x.f.ConntrackUsed, n)
	case want > n:
		x.add("conntrack", Warn, "raise net.netfilter.nf_conntrack_max, or exempt weir's ports from tracking (NOTRACK)", "the kernel tracks %d connections, %d may be there on both sides of weir: what comes beyond is dropped", n, want)
	default:
		x.ok("conntrack", "%d connections are tracked, %d are in use", n, x.f.ConntrackUsed)
	}
}

func (x *examiner) ipv6() {
	if x.Plan == nil {
		return
	}
	var six []string
	for _, b := range x.binds() {
		if isSix(b) {
			six = append(six, b)
		}
	}
	for i := range x.Plan.Pools {
		for j := range x.Plan.Pools[i].Backends {
			if a := x.Plan.Pools[i].Backends[j].Address; isSix(a) {
				six = append(six, a)
			}
		}
	}
	if len(six) > 3 {
		six = append(six[:3], "...")
	}
	switch {
	case len(six) == 0:
	case !x.f.IPv6:
		x.add("ipv6", Fail, "enable IPv6 (net.ipv6.conf.all.disable_ipv6=0), or use IPv4 addresses", "the configuration uses %s, and this machine has no IPv6", strings.Join(six, ", "))
	default:
		x.ok("ipv6", "is there, for %s", strings.Join(six, ", "))
	}
}

func isSix(address string) bool {
	a, err := netip.ParseAddrPort(address)
	return err == nil && a.Addr().Is6()
}

// secrets finds files with secrets that other users of the machine can read.
func (x *examiner) secrets() {
	if x.Plan == nil || x.Mode == nil {
		return
	}
	n := 0
	for _, name := range x.Plan.SecretFiles() {
		mode, err := x.Mode(name)
		if err != nil {
			continue // who needs it says so
		}
		n++
		if mode.Perm()&0o007 != 0 {
			x.add("secrets", Warn, fmt.Sprintf("chmod %04o %s", mode.Perm()&^0o007, name), "%s holds a secret and has mode %04o: every user of this machine gets at it", name, mode.Perm())
			n = math.MinInt32
		}
	}
	if n > 0 {
		x.ok("secrets", "%d files with secrets are closed to other users", n)
	}
}

func (x *examiner) clock() {
	switch {
	case !x.f.ClockKnown:
	case x.f.ClockUnsynced:
		x.add("clock", Warn, "run chronyd, systemd-timesyncd or ntpd", "the kernel's clock is not kept by NTP or PTP: certificates, logs and the times of a fleet depend on it")
	default:
		x.ok("clock", "is kept by NTP or PTP")
	}
}

func (x *examiner) kernel() {
	if x.f.Kernel == "" {
		return
	}
	if older(x.f.Kernel, oldKernel) {
		x.add("kernel", Warn, "run a kernel with long-term support", "%s is older than %s, whose defaults weir counts on", x.f.Kernel, oldKernel)
		return
	}
	x.ok("kernel", "%s", x.f.Kernel)
}

// older compares the first two numbers of versions.
func older(a, b string) bool {
	var x, y [2]int
	_, _ = fmt.Sscanf(a, "%d.%d", &x[0], &x[1]) // what is no number stays 0
	_, _ = fmt.Sscanf(b, "%d.%d", &y[0], &y[1])
	return x[0] > 0 && slices.Compare(x[:], y[:]) < 0
}

// Failed reports whether a finding says that the configuration does not work.
func Failed(list []Finding) bool {
	return slices.ContainsFunc(list, func(f Finding) bool { return f.Severity == Fail })
}

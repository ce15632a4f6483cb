// SPDX-License-Identifier: Apache-2.0

package test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// bootScript makes a machine of its own of the one it runs on: its own processes,
// mounts, control groups and network, on a copy of the root that is thrown away,
// with systemd as process 1 and no units but those it is given.
const bootScript = `set -eu
mount --make-rprivate /
mount -t tmpfs tmpfs "$SCRATCH"
mkdir "$SCRATCH/up" "$SCRATCH/work" "$SCRATCH/root"
cp -r "$FILES" "$SCRATCH/files"
cp "$WEIR" "$SCRATCH/weir"
mount -t overlay overlay -o "lowerdir=/,upperdir=$SCRATCH/up,workdir=$SCRATCH/work" "$SCRATCH/root"
FILES=$SCRATCH/files WEIR=$SCRATCH/weir
cd "$SCRATCH/root"
mount --rbind /dev dev
mount -t proc proc proc
mount -t sysfs sysfs sys
mount -t cgroup2 cgroup2 sys/fs/cgroup
mount -t tmpfs tmpfs run
mount -t tmpfs tmpfs tmp
rm -rf etc/systemd/system
mkdir -p etc/systemd/system etc/weir usr/local/bin mnt
cp "$WEIR" usr/local/bin/weir
cp "$FILES"/*.yaml etc/weir/
cp "$FILES"/*.service "$FILES"/*.socket etc/systemd/system/
mkdir etc/systemd/system/weir.service.d
printf '[Service]\nStandardError=append:/run/weir.log\nWatchdogSec=4s\n' > etc/systemd/system/weir.service.d/test.conf
for t in sysinit basic shutdown sockets multi-user network-online default; do
  printf '[Unit]\nDefaultDependencies=no\n' > "etc/systemd/system/$t.target"
done
ip link set lo up
pivot_root . mnt
umount -l mnt
exec env -i container=weir-test PATH=/usr/sbin:/usr/bin:/sbin:/bin SYSTEMD_UNIT_PATH=/etc/systemd/system \
  /usr/lib/systemd/systemd --system --unit=default.target --log-target=console --log-level=info --show-status=no
`

// machine is a systemd that runs.
type machine struct {
	t   *testing.T
	pid int // of its process 1, as seen from here
	out *output
}

// bootSystemd starts systemd with the packaged units and a configuration, or
// skips the test where this cannot be done, with the reason.
func bootSystemd(t *testing.T, yaml string) *machine {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("a systemd of its own needs root")
	}
	for _, path := range []string{"/usr/lib/systemd/systemd", "/usr/bin/systemctl", "/usr/bin/unshare", "/usr/bin/nsenter"} {
		if _, err := os.Stat(path); err != nil {
			t.Skipf("no systemd to run weir under: %v", err)
		}
	}
	group := ""
	for _, root := range []string{"/sys/fs/cgroup/unified", "/sys/fs/cgroup"} {
		var fs unix.Statfs_t
		if unix.Statfs(root, &fs) == nil && fs.Type == unix.CGROUP2_SUPER_MAGIC {
			group = filepath.Join(root, fmt.Sprintf("weir-test-%d-%d", os.Getpid(), time.Now().UnixNano()))
			break
		}
	}
	if group == "" {
		t.Skip("no control groups of version 2 for a systemd of its own")
	}
	if err := os.Mkdir(group, 0o755); err != nil {
		t.Skipf("no control group for a systemd of its own: %v", err)
	}
	t.Cleanup(func() { removeGroup(group) })
	files, scratch := t.TempDir(), t.TempDir()
	for _, name := range []string{"weir.service", "weir.socket", "weir-tls.socket"} {
		text, err := os.ReadFile("../packaging/systemd/" + name)
		if err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(files, name), string(text))
	}
	write(t, filepath.Join(files, "weir.yaml"), yaml)

	m := &machine{t: t, out: &output{}}
	script := "echo $$ > '" + group + "/cgroup.procs'; exec unshare --fork --pid --mount --uts --ipc --net --cgroup bash -c \"$BOOT\""
	cmd := exec.Command("bash", "-c", script)
	cmd.Env = append(os.Environ(), "SCRATCH="+scratch, "FILES="+files, "WEIR="+binary, "BOOT="+bootScript)
	cmd.Stdout, cmd.Stderr = m.out, m.out
	cmd.WaitDelay = 5 * time.Second
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() { _ = cmd.Wait(); close(done) }()
	t.Cleanup(func() {
		if t.Failed() && m.pid > 0 {
			log, _ := os.ReadFile(m.path("/run/weir.log")) // there is no journal
			t.Logf("--- weir\n%s", tail(string(log), 6000))
		}
		if m.pid > 0 {
			_ = syscall.Kill(m.pid, syscall.SIGKILL) // all of the machine goes with it
		}
		_ = cmd.Process.Kill()
		<-done
		if t.Failed() {
			t.Logf("--- systemd\n%s", tail(m.out.String(), 4000))
		}
	})
	limit := time.Now().Add(20 * time.Second)
	for {
		select {
		case <-done:
			t.Skipf("systemd does not run here: %s", tail(m.out.String(), 500))
		default:
		}
		if m.pid == 0 {
			m.pid = systemdBelow(cmd.Process.Pid)
		}
		if m.pid > 0 {
			if out, err := m.run("systemctl", "is-system-running"); err == nil {
				return m
			} else if time.Now().After(limit) {
				t.Skipf("systemd does not come up here: %s", out)
			}
		} else if time.Now().After(limit) {
			t.Skipf("systemd does not start here: %s", tail(m.out.String(), 500))
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// systemdBelow finds process 1 of the machine that a process started.
func systemdBelow(parent int) int {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", parent, parent))
	for _, f := range strings.Fields(string(text)) {
		pid, _ := strconv.Atoi(f)
		if name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid)); strings.TrimSpace(string(name)) == "systemd" {
			return pid
		}
	}
	return 0
}

// removeGroup removes a control group and those below it.
func removeGroup(dir string) {
	for range 100 {
		var below []string
		_ = filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				below = append([]string{path}, below...)
			}
			return nil
		})
		for _, d := range below {
			_ = syscall.Rmdir(d)
		}
		if _, err := os.Stat(dir); err != nil {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// run runs a command within the machine.
func (m *machine) run(args ...string) (string, error) {
	in := []string{"-t", strconv.Itoa(m.pid), "-m", "-u", "-i", "-n", "-p", "-C",
		"env", "-i", "PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "SYSTEMD_UNIT_PATH=/etc/systemd/system"}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, "nsenter", append(in, args...)...).CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

func (m *machine) must(args ...string) string {
	m.t.Helper()
	out, err := m.run(args...)
	if err != nil {
		m.t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

// show returns a property of weir.service.
func (m *machine) show(property string) string {
	m.t.Helper()
	return m.must("systemctl", "show", "-P", property, "weir.service")
}

// path returns where a file of the machine is from here.
func (m *machine) path(name string) string { return fmt.Sprintf("/proc/%d/root%s", m.pid, name) }

// client makes requests from within the machine's network.
func (m *machine) client() *http.Client {
	m.t.Helper()
	ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", m.pid))
	if err != nil {
		m.t.Fatal(err)
	}
	tr := &http.Transport{MaxIdleConnsPerHost: 1, DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
		return dialIn(ctx, ns, network, addr)
	}}
	m.t.Cleanup(func() { tr.CloseIdleConnections(); _ = ns.Close() })
	return &http.Client{Transport: tr, Timeout: 20 * time.Second}
}

// dialIn connects from another network namespace: a socket stays in the one in
// which it was made.
func dialIn(ctx context.Context, ns *os.File, network, addr string) (net.Conn, error) {
	type result struct {
		c   net.Conn
		err error
	}
	got := make(chan result, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
			got <- result{nil, err}
			return
		}
		c, err := (&net.Dialer{}).DialContext(ctx, network, addr)
		got <- result{c, err}
	}()
	r := <-got
	return r.c, r.err
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// SPDX-License-Identifier: Apache-2.0

package test

import (
	"debug/elf"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

// buildAsContainer builds weir with the very command of the Containerfile.
func buildAsContainer(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../packaging/container/Containerfile")
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`(?m)^RUN (CGO_ENABLED=0 go build .*)$`).FindSubmatch(text)
	if m == nil {
		t.Fatal("the Containerfile builds no static binary")
	}
	out := filepath.Join(t.TempDir(), "weir")
	cmd := exec.Command("sh", "-c", strings.Replace(string(m[1]), "-o /weir", "-o "+out, 1))
	cmd.Dir = ".."
	if said, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", m[1], err, said)
	}
	return out
}

// The binary of the image needs nothing of a system: it is static, and runs as an
// ordinary user where there is nothing but itself and its configuration, not even
// /proc, /dev, /tmp or certificates of authorities.
func TestContainer(t *testing.T) {
	t.Parallel()
	static := buildAsContainer(t)
	f, err := elf.Open(static)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP || p.Type == elf.PT_DYNAMIC {
			t.Errorf("the binary has a segment %v: it is not static", p.Type)
		}
	}
	if libs, err := f.ImportedLibraries(); err == nil && len(libs) > 0 {
		t.Errorf("the binary needs %q", libs)
	}
	if os.Getuid() != 0 {
		t.Skip("an empty root needs root")
	}

	secure := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprint(w, "secure") }))
	defer secure.Close()
	root := t.TempDir()
	text, err := os.ReadFile(static)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(root, "usr/local/bin"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, "usr/local/bin/weir"), text, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(root, "etc/weir"), 0o755); err != nil {
		t.Fatal(err)
	}
	ca := filepath.Join(root, "etc/weir/ca.crt")
	write(t, ca, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: secure.Certificate().Raw})))
	web, status := freeAddr(t), freeAddr(t)
	write(t, filepath.Join(root, "etc/weir/weir.yaml"), fmt.Sprintf(`status: {bind: %q}
admin: off
listeners: {web: {bind: %q, pool: app}}
pools: {app: {backends: [%q], tls: {ca: ca.crt, server_name: example.com}}}
shutdown: {delay: none, deadline: 5s}
`, status, web, secure.URL))

	p := &process{t: t, name: "weir", cmd: exec.Command("/usr/local/bin/weir", "run", "-c", "/etc/weir/weir.yaml"), out: &output{}, done: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = p.out, p.out
	p.cmd.Dir, p.cmd.Env = "/etc/weir", []string{}
	p.cmd.SysProcAttr = &syscall.SysProcAttr{
		Chroot: root, Credential: &syscall.Credential{Uid: 65532, Gid: 65532}, Setpgid: true,
	}
	p.cmd.WaitDelay = 2 * time.Second
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { p.err = p.cmd.Wait(); close(p.done) }()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		<-p.done
		if t.Failed() {
			t.Logf("--- output\n%s", p.out)
		}
	})
	waitListening(t, p, web)
	for _, url := range []string{"http://" + web + "/", "http://" + status + "/livez", "http://" + status + "/metrics"} {
		if got := bodyOf(t, url); got != "200" {
			t.Errorf("%s: %s", url, got)
		}
	}
	eventually(t, 10*time.Second, "weir is ready", func() bool { return bodyOf(t, "http://"+status+"/readyz") == "200" })
	p.signal(syscall.SIGTERM)
	if code := p.wait(20 * time.Second); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

// The image is what docs and orchestrators rely on.
func TestContainerfile(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../packaging/container/Containerfile")
	if err != nil {
		t.Fatal(err)
	}
	_, final, _ := strings.Cut(string(text), "FROM scratch\n")
	for _, want := range []string{"USER 65532:65532", "STOPSIGNAL SIGTERM", "WORKDIR /etc/weir", `ENTRYPOINT ["/usr/local/bin/weir"]`, `CMD ["run", "-c", "/etc/weir/weir.yaml"]`, "EXPOSE "} {
		if !strings.Contains(final, "\n"+want) {
			t.Errorf("the image has no %s", want)
		}
	}
	if strings.Contains(final, "\nHEALTHCHECK") {
		t.Error("the image has a HEALTHCHECK")
	}
	// Whoever names the program without a path finds it in PATH, or not at all.
	copied := regexp.MustCompile(`(?m)^COPY --from=build /weir (/.*/)weir$`).FindStringSubmatch(final)
	path := regexp.MustCompile(`(?m)^ENV PATH=(.*)$`).FindStringSubmatch(final)
	manifest, err := os.ReadFile("../packaging/kubernetes/weir.yaml")
	if err != nil {
		t.Fatal(err)
	}
	switch {
	case copied == nil:
		t.Error("the image has no weir")
	case path == nil || path[1]+"/" != copied[1]:
		t.Errorf("weir is in %s, PATH is %q", copied[1], path)
	case !strings.Contains(string(manifest), "\n          command: [weir]\n"):
		t.Error("the manifest starts something else")
	}
}

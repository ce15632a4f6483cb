// SPDX-License-Identifier: Apache-2.0

package test

import (
	"context"
	wire "encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/weirlb/weir/internal/weirtest"
)

// installed is a program that make e2e installs under bin; INTEROP and CONFORMANCE
// name other folders.
func installed(t *testing.T, folder, name string) string {
	t.Helper()
	dir := os.Getenv(strings.ToUpper(folder))
	if dir == "" {
		dir, _ = filepath.Abs("../bin/" + folder)
	}
	path := filepath.Join(dir, name)
	if _, err := os.Stat(path); err != nil {
		t.Skipf("%s is not here: make e2e installs it", path)
	}
	return path
}

// interopCases are the cases of gRPC's interoperability tests that need no
// account of a cloud. Those with a configuration of the client follow.
var interopCases = []string{
	"empty_unary", "large_unary", "client_streaming", "server_streaming", "ping_pong", "empty_stream",
	"cancel_after_begin", "cancel_after_first_response", "timeout_on_sleeping_server", "status_code_and_message",
	"special_status_message", "custom_metadata", "unimplemented_method", "unimplemented_service",
	"orca_per_rpc", "orca_oob",
}

// TestGRPCInterop runs gRPC's own client against its own server through weir, in
// clear text and over TLS.
func TestGRPCInterop(t *testing.T) {
	client := installed(t, "interop", "client")
	backend := freeAddr(t)
	server := spawn(t, installed(t, "interop", "server"), "-port", port(backend))
	waitListening(t, server, backend)
	ca := weirtest.NewAuthority(t)
	dir := t.TempDir()
	cert, key := ca.Write(dir, "site", ca.Issue("localhost", "127.0.0.1"))
	secure := freeAddr(t)
	w := startRun(t, fmt.Sprintf(`
admin: {bind: "${ADMIN}"}
log: {access: {path: %q}}
listeners:
  plain: {bind: "${LISTEN}", pool: app}
  secure: {bind: %q, pool: app, tls: {certificates: [{cert: %q, key: %q}]}}
pools:
  app: {backends: ["grpc://%s"], health: {active: {initial: up}}}
`, filepath.Join(dir, "access.log"), secure, cert, key, backend))
	waitListening(t, w.process, secure)
	for name, args := range map[string][]string{
		"plain": {"-server_host", "127.0.0.1", "-server_port", port(w.addr)},
		"tls": {
			"-server_host", "127.0.0.1", "-server_port", port(secure),
			"-use_tls", "-use_test_ca", "-ca_file", ca.WritePool(dir), "-server_host_override", "localhost",
		},
	} {
		for _, c := range interopCases {
			t.Run(name+"/"+c, func(t *testing.T) {
				t.Parallel()
				args := append(args[:len(args):len(args)], "-test_case", c)
				if strings.HasPrefix(c, "orca") {
					args = append(args, "-service_config_json", `{"loadBalancingConfig":[{"test_backend_metrics_load_balancer":{}}]}`)
				}
				ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
				defer cancel()
				if out, err := exec.CommandContext(ctx, client, args...).CombinedOutput(); err != nil {
					t.Errorf("%v\n%s", err, tail(string(out), 2000))
				}
			})
		}
	}
}

// conformanceRun is one run of connectconformance.
type conformanceRun struct {
	server, features string
	only             []string // patterns of cases; none: all
	known            []string // fail directly, too
}

// run runs the cases through weirs that are started for them, by this binary in a
// role, and returns what the runner said.
func (c conformanceRun) run(t *testing.T) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	conf := filepath.Join(t.TempDir(), "features.yaml")
	if err := os.WriteFile(conf, []byte(c.features), 0o600); err != nil {
		t.Fatal(err)
	}
	args := []string{"--mode", "server", "--conf", conf, "-p", "4", "--max-servers", "2"}
	for _, p := range c.only {
		args = append(args, "--run", p)
	}
	for _, p := range c.known {
		args = append(args, "--known-flaky", p)
	}
	runner := installed(t, "conformance", "connectconformance")
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, runner, append(args, "--", self)...)
	cmd.Env = append(os.Environ(), roleEnv+"=conform", roleEnv+"_ARGS="+binary+"\n"+installed(t, "conformance", c.server))
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s", err, tail(string(out), 6000))
	}
	return string(out)
}

const (
	conformPlain = `
features:
  versions: [HTTP_VERSION_1, HTTP_VERSION_2]
  codecs: [CODEC_PROTO]
  compressions: [COMPRESSION_IDENTITY, COMPRESSION_GZIP]
  supportsTls: false
  supportsH2c: true
  supportsHalfDuplexBidiOverHttp1: true
`
	conformTLS = `
features:
  versions: [HTTP_VERSION_1, HTTP_VERSION_2]
  codecs: [CODEC_PROTO]
  compressions: [COMPRESSION_IDENTITY]
  supportsTls: true
  supportsH2c: false
  supportsHalfDuplexBidiOverHttp1: true
`
	conformGRPC = `
features:
  versions: [HTTP_VERSION_2]
  protocols: [PROTOCOL_GRPC]
  codecs: [CODEC_PROTO]
  compressions: [COMPRESSION_IDENTITY, COMPRESSION_GZIP]
  supportsTls: false
  supportsH2c: true
`
)

// TestGRPCConformance runs a part of the cases of gRPC, gRPC-Web and Connect: those
// in which a proxy is most easily wrong.
func TestGRPCConformance(t *testing.T) {
	out := conformanceRun{server: "referenceserver", features: conformPlain, only: []string{"Basic/**", "Timeouts/**", "Duplicate Metadata/**"}}.run(t)
	t.Log(tail(out, 200))
}

// conform is the server under test, as the runner sees it: the one that is named,
// behind a weir. It passes on what it is told, but for TLS, which ends at weir.
func conform(weirBinary, server string) error {
	request, err := readDelimited(os.Stdin)
	if err != nil {
		return err
	}
	version, secure, cert, key := uint64(0), false, []byte(nil), []byte(nil)
	plain := eachField(request, func(number, value uint64, b []byte) bool {
		switch number {
		case 2:
			version = value
		case 4:
			secure = value != 0
			return false
		case 7:
			eachField(b, func(number, _ uint64, b []byte) bool {
				if number == 1 {
					cert = b
				} else {
					key = b
				}
				return true
			})
			return false
		}
		return true
	})
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	var all sync.WaitGroup
	defer all.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()

	backend := exec.CommandContext(ctx, server)
	backend.Stderr = os.Stderr
	in, err1 := backend.StdinPipe()
	said, err2 := backend.StdoutPipe()
	if err := errors.Join(err1, err2, backend.Start()); err != nil {
		return err
	}
	all.Go(func() { _ = backend.Wait() })
	if err := writeDelimited(in, plain); err != nil {
		return err
	}
	answer, err := readDelimited(said)
	if err != nil {
		return err
	}
	behind := 0
	eachField(answer, func(number, value uint64, _ []byte) bool {
		if number == 2 {
			behind = int(value)
		}
		return true
	})

	dir, err := os.MkdirTemp("", "weir-conform-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	front := "127.0.0.1:" + port(weirtest.FreeAddr())
	scheme, tls := "http", ""
	if version == 2 {
		scheme = "h2c"
	}
	if secure {
		tls = fmt.Sprintf(", tls: {certificates: [{cert: %q, key: %q}]}", filepath.Join(dir, "cert"), filepath.Join(dir, "key"))
	}
	yaml := fmt.Sprintf(`
admin: {bind: "unix:%s"}
log: {level: error, access: {path: off}}
listeners: {web: {bind: %q, pool: app%s}}
pools: {app: {backends: ["%s://127.0.0.1:%d"], health: {active: {initial: up}}}}
`, filepath.Join(dir, "admin"), front, tls, scheme, behind)
	for name, text := range map[string][]byte{"cert": cert, "key": key, "weir.yaml": []byte(yaml)} {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			return err
		}
	}
	weir := exec.CommandContext(ctx, weirBinary, "run", "-c", filepath.Join(dir, "weir.yaml"))
	weir.Stderr = os.Stderr
	if err := weir.Start(); err != nil {
		return err
	}
	over := make(chan error, 1)
	all.Go(func() { over <- weir.Wait() })
	for {
		c, err := net.DialTimeout("tcp", front, time.Second)
		if err == nil {
			_ = c.Close()
			break
		}
		select {
		case err := <-over:
			return fmt.Errorf("weir: %w", err)
		case <-time.After(5 * time.Millisecond):
		}
	}
	n, _ := strconv.Atoi(port(front))
	reply := appendField(nil, 1, []byte("127.0.0.1"))
	reply = wire.AppendUvarint(append(reply, 2<<3), uint64(n))
	if secure {
		reply = appendField(reply, 3, cert)
	}
	if err := writeDelimited(os.Stdout, reply); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

func readDelimited(r io.Reader) ([]byte, error) {
	var size [4]byte
	if _, err := io.ReadFull(r, size[:]); err != nil {
		return nil, err
	}
	b := make([]byte, wire.BigEndian.Uint32(size[:]))
	_, err := io.ReadFull(r, b)
	return b, err
}

func writeDelimited(w io.Writer, b []byte) error {
	_, err := w.Write(append(wire.BigEndian.AppendUint32(nil, uint32(len(b))), b...))
	return err
}

// eachField calls f for the fields of a protocol buffers message, numbers with
// their value and others with their bytes, and returns those that f keeps.
func eachField(b []byte, f func(number, value uint64, b []byte) bool) (kept []byte) {
	for len(b) > 0 {
		tag, n := wire.Uvarint(b)
		value, m := wire.Uvarint(b[max(n, 0):])
		if n <= 0 || m <= 0 {
			return kept
		}
		end, piece := n+m, []byte(nil)
		if tag&7 == 2 {
			if value > uint64(len(b)-end) {
				return kept
			}
			piece = b[end : end+int(value)]
			end += int(value)
		}
		if f(tag>>3, value, piece) {
			kept = append(kept, b[:end]...)
		}
		b = b[end:]
	}
	return kept
}

func appendField(b []byte, number byte, v []byte) []byte {
	return append(wire.AppendUvarint(append(b, number<<3|2), uint64(len(v))), v...)
}

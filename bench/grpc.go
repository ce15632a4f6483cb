// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// A unary call with an empty message, as gRPC frames it: not compressed, of no
// length. Answers carry 16 bytes and the status.
var (
	emptyMessage = make([]byte, 5)
	smallMessage = append([]byte{0, 0, 0, 0, 16}, "0123456789abcdef"...)
)

// grpcBackends serves unary calls over HTTP/2 without TLS, and WebSockets over
// HTTP/1.1, on several addresses, separated by commas, until it is killed. It is a process of its own, so that its
// CPU is nobody's.
func grpcBackends(addrs string) error {
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") != "" {
			echo(w, r)
			return
		}
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "application/grpc")
		w.Header().Set("Trailer", "Grpc-Status")
		_, _ = w.Write(smallMessage)
		w.Header().Set("Grpc-Status", "0")
	})
	failed := make(chan error)
	for _, a := range strings.Split(addrs, ",") {
		s := &http.Server{Addr: a, Handler: h, Protocols: new(http.Protocols)}
		s.Protocols.SetUnencryptedHTTP2(true)
		s.Protocols.SetHTTP1(true)
		go func() { failed <- s.ListenAndServe() }()
	}
	return <-failed
}

// startGRPC runs grpcBackends beside the lab.
func (l *lab) startGRPC() error {
	var addrs []string
	for i := range l.grpc {
		l.grpc[i] = freePort()
		addrs = append(addrs, "127.0.0.1:"+strconv.Itoa(l.grpc[i]))
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	l.grpcBackend = exec.Command(self, "-grpc-backends", strings.Join(addrs, ","))
	l.grpcBackend.Stderr = os.Stderr
	if err := l.grpcBackend.Start(); err != nil {
		return fmt.Errorf("start the gRPC backends: %w", err)
	}
	if err := os.WriteFile(filepath.Join(l.dir, "empty.bin"), emptyMessage, 0o644); err != nil {
		return err
	}
	return waitPort(l.grpc[2])
}

// unary is multiplexed with gRPC calls, HTTP/2 without TLS on both sides.
func unary(p *proxy, conns, streams int, d time.Duration) (result, error) {
	return multiplexed(p, fmt.Sprintf("http://127.0.0.1:%d/bench.Echo/Call", p.ports.grpc), conns, streams, d,
		"-d", filepath.Join(p.dir, "empty.bin"), "-H", "content-type: application/grpc", "-H", "te: trailers")
}

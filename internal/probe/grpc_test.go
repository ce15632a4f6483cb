// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	grpchealth "google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/weirlb/weir/health"
)

// grpcServer serves on loopback what register says.
func grpcServer(t *testing.T, register func(*grpc.Server), opt ...grpc.ServerOption) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer(opt...)
	if register != nil {
		register(s)
	}
	over := make(chan struct{})
	go func() {
		defer close(over)
		_ = s.Serve(l)
	}()
	t.Cleanup(func() {
		s.Stop()
		<-over
	})
	return l.Addr().String()
}

// answering is a health service with an answer of its own.
type answering struct {
	healthpb.UnimplementedHealthServer
	check func(context.Context, *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error)
}

func (a answering) Check(ctx context.Context, r *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error) {
	return a.check(ctx, r)
}

// TestGRPCHealth asks grpc-go's own health server.
func TestGRPCHealth(t *testing.T) {
	p := newProber(t, Options{})
	state := grpchealth.NewServer()
	state.SetServingStatus("shop.v1.Cart", healthpb.HealthCheckResponse_NOT_SERVING)
	address := grpcServer(t, func(s *grpc.Server) { healthpb.RegisterHealthServer(s, state) })
	ask := func(service string) health.ProbeResult {
		return one(t, p, Target{Address: address, GRPC: &GRPC{Service: service, Host: "app.example"}}, long)
	}
	for _, c := range []struct {
		service string
		want    health.ProbeOutcome
		said    string
	}{
		{"", health.Pass, ""},
		{"shop.v1.Cart", health.NotReady, "status: NOT_SERVING"},
		{"shop.v1.Nobody", health.NotReady, `NOT_FOUND: the server does not know the service "shop.v1.Nobody"`},
	} {
		if r := ask(c.service); r.Outcome != c.want || !strings.Contains(r.Error, c.said) || r.Retry {
			t.Errorf("%q: %v, %s", c.service, r.Outcome, r.Error)
		}
	}
	state.SetServingStatus("shop.v1.Cart", healthpb.HealthCheckResponse_SERVING)
	if r := ask("shop.v1.Cart"); r.Outcome != health.Pass || r.Status != 200 {
		t.Errorf("serving again: %v, %s", r.Outcome, r.Error)
	}
	state.Shutdown()
	if r := ask(""); r.Outcome != health.NotReady || r.Cause != health.CauseStatus {
		t.Errorf("a server that shuts down: %v, %s", r.Outcome, r.Error)
	}
}

// TestGRPCOverTLS shakes hands with ALPN h2, and tells a server without it from one
// that fails.
func TestGRPCOverTLS(t *testing.T) {
	p := newProber(t, Options{})
	plain := httptest.NewTLSServer(http.NotFoundHandler()) // offers HTTP/1.1 alone
	t.Cleanup(plain.Close)
	pool := x509.NewCertPool()
	pool.AddCert(plain.Certificate())
	address := grpcServer(t, func(s *grpc.Server) { healthpb.RegisterHealthServer(s, grpchealth.NewServer()) },
		grpc.Creds(credentials.NewTLS(&tls.Config{Certificates: plain.TLS.Certificates, MinVersion: tls.VersionTLS12})))
	secure := &tls.Config{RootCAs: pool, ServerName: "example.com", NextProtos: []string{"h2"}, MinVersion: tls.VersionTLS12}
	if r := one(t, p, Target{Address: address, TLS: secure, GRPC: &GRPC{Host: "example.com"}}, long); r.Outcome != health.Pass {
		t.Errorf("over TLS: %v, %s", r.Outcome, r.Error)
	}
	if r := one(t, p, Target{Address: plain.Listener.Addr().String(), TLS: secure, GRPC: &GRPC{Host: "example.com"}}, long); r.Cause != health.CauseTLS || r.Outcome != health.NoAnswer {
		t.Errorf("without h2: %v, %s", r.Outcome, r.Error)
	}
	if r := one(t, p, Target{Address: address, GRPC: &GRPC{Host: "example.com"}}, long); r.Outcome != health.NoAnswer {
		t.Errorf("without TLS where TLS is spoken: %v, %s", r.Outcome, r.Error)
	}
	if r := one(t, p, Target{Address: address, TLS: &tls.Config{ServerName: "example.com", NextProtos: []string{"h2"}}, GRPC: &GRPC{Host: "example.com"}}, long); r.Cause != health.CauseTLS {
		t.Errorf("an unknown authority: %v, %s", r.Outcome, r.Error)
	}
}

// TestGRPCAnswers: whatever a server says is sorted into the outcomes, in words
// that say what to do.
func TestGRPCAnswers(t *testing.T) {
	p := newProber(t, Options{Version: "1.2"})
	var agent string
	serve := func(check func(context.Context, *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error)) string {
		return grpcServer(t, func(s *grpc.Server) { healthpb.RegisterHealthServer(s, answering{check: check}) })
	}
	fails := func(c codes.Code, text string) string {
		return serve(func(context.Context, *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error) {
			return nil, status.Error(c, text)
		})
	}
	web := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(web.Close)
	for name, c := range map[string]struct {
		address string
		want    health.ProbeOutcome
		cause   health.Cause
		said    string
		hangs   bool
	}{
		"no such service": {address: grpcServer(t, nil), want: health.NotReady, cause: health.CauseStatus, said: "UNIMPLEMENTED: the server has no grpc.health.v1.Health"},
		"unavailable":     {address: fails(codes.Unavailable, "the cache is cold: 10%\x1b"), want: health.NotReady, cause: health.CauseStatus, said: "UNAVAILABLE: the cache is cold: 10% "},
		"too late":        {address: fails(codes.DeadlineExceeded, ""), want: health.NoAnswer, cause: health.CauseTimeout, said: "DEADLINE_EXCEEDED"},
		"strange code":    {address: fails(codes.Code(77), "x"), want: health.NotReady, cause: health.CauseStatus, said: "code 77"},
		"hangs": {address: serve(func(ctx context.Context, _ *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}), want: health.NoAnswer, cause: health.CauseTimeout, hangs: true},
		"load": {address: serve(func(ctx context.Context, _ *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error) {
			in, _ := metadata.FromIncomingContext(ctx)
			agent = strings.Join(in.Get("user-agent"), "")
			_ = grpc.SetTrailer(ctx, metadata.Pairs("endpoint-load-metrics-bin", "\x09\x33\x33\x33\x33\x33\x33\xd3\x3f"))
			return &healthpb.HealthCheckResponse{Status: healthpb.HealthCheckResponse_SERVING}, nil
		})},
		"HTTP/1.1":        {address: web.Listener.Addr().String(), want: health.NoAnswer, cause: health.CauseMalformed, said: "this is no HTTP/2"},
		"nobody":          {address: refusedAddress(t), want: health.NoAnswer, cause: health.CauseRefused},
		"closes":          {address: scripted(t, func(c net.Conn) { _, _ = io.ReadFull(c, make([]byte, len(http2.ClientPreface))) }), want: health.NoAnswer, cause: health.CauseReset},
		"silence":         {address: scripted(t, silent), want: health.NoAnswer, cause: health.CauseTimeout, hangs: true},
		"goaway":          {address: scripted(t, frames(func(f *http2.Framer) { _ = f.WriteGoAway(0, http2.ErrCodeEnhanceYourCalm, nil) })), want: health.NoAnswer, cause: health.CauseReset, said: "ENHANCE_YOUR_CALM"},
		"reset":           {address: scripted(t, frames(func(f *http2.Framer) { _ = f.WriteRSTStream(1, http2.ErrCodeRefusedStream) })), want: health.NoAnswer, cause: health.CauseReset, said: "REFUSED_STREAM"},
		"data without it": {address: scripted(t, frames(func(f *http2.Framer) { _ = f.WriteData(1, true, nil) })), want: health.NotReady, cause: health.CauseStatus, said: "no gRPC answer"},
		"a flood": {address: scripted(t, frames(func(f *http2.Framer) {
			for f.WritePing(true, [8]byte{}) == nil { //nolint:revive // until the probe has had enough
			}
		})), want: health.NoAnswer, cause: health.CauseMalformed, said: "too many frames"},
	} {
		t.Run(name, func(t *testing.T) {
			timeout := long
			if c.hangs {
				timeout = short
			}
			r := one(t, p, Target{Address: c.address, GRPC: &GRPC{Host: "app.example", LoadReports: true}}, timeout)
			if r.Outcome != c.want || r.Cause != c.cause || !strings.Contains(r.Error, c.said) {
				t.Errorf("%v, %v: %s; want %v, %v, %q", r.Outcome, r.Cause, r.Error, c.want, c.cause, c.said)
			}
			if name == "load" && (!r.HasLoad || r.Load != 0.3 || agent != "weir-probe/1.2") {
				t.Errorf("load %v %v, asked as %q", r.HasLoad, r.Load, agent)
			}
		})
	}
}

// frames is a server that greets and then writes what it is told.
func frames(write func(*http2.Framer)) func(net.Conn) {
	return func(c net.Conn) {
		if _, err := io.ReadFull(c, make([]byte, len(http2.ClientPreface))); err != nil {
			return
		}
		f := http2.NewFramer(c, c)
		_ = f.WriteSettings()
		write(f)
		silent(c)
	}
}

// FuzzServingStatus reads any message without a panic, and the answers that the
// generated code would write for what they say.
func FuzzServingStatus(f *testing.F) {
	f.Add([]byte{0, 0, 0, 0, 0})
	f.Add([]byte{0, 0, 0, 0, 2, 8, 1})
	f.Add([]byte{0, 0, 0, 0, 8, 8, 2, 0x12, 1, 'x', 0x1d, 0, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		got, ok := servingStatus(b)
		if len(b) == 7 && string(b[:6]) == "\x00\x00\x00\x00\x02\x08" && b[6] < 0x80 && (!ok || got != uint64(b[6])) {
			t.Fatalf("% x: %d, %v", b, got, ok)
		}
		if ok && len(b) < 5 {
			t.Fatalf("% x has no length and is taken", b)
		}
	})
}

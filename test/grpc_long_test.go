// SPDX-License-Identifier: Apache-2.0

//go:build long

package test

import (
	"regexp"
	"strconv"
	"testing"
)

// TestGRPCConformanceWhole runs all cases of gRPC, gRPC-Web and Connect through
// weir: no fewer may pass than directly.
func TestGRPCConformanceWhole(t *testing.T) {
	for name, c := range map[string]struct {
		run   conformanceRun
		cases int
	}{
		"plain": {conformanceRun{server: "referenceserver", features: conformPlain}, 1182},
		"tls":   {conformanceRun{server: "referenceserver", features: conformTLS}, 751},
		// Of these four fail directly, too: this server is lenient about how many
		// messages a call has.
		"grpc": {conformanceRun{server: "grpcserver", features: conformGRPC, known: []string{"**/multiple-requests", "**/no-request"}}, 374},
	} {
		t.Run(name, func(t *testing.T) {
			out := c.run.run(t)
			m := regexp.MustCompile(`Total cases: (\d+)`).FindStringSubmatch(out)
			if m == nil {
				t.Fatalf("no total:\n%s", tail(out, 2000))
			}
			if n, _ := strconv.Atoi(m[1]); n < c.cases {
				t.Errorf("%d cases ran, of %d", n, c.cases)
			}
			t.Log(tail(out, 120))
		})
	}
}

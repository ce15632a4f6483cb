// SPDX-License-Identifier: Apache-2.0

package netconn

import (
	"io"
	"testing"
)

// TestTruncated: an end without the closing alert is told from one with it.
func TestTruncated(t *testing.T) {
	for _, alert := range []bool{true, false} {
		client, server := tlsPair(t)
		mustWrite(t, server, "x")
		if alert {
			_ = server.Close()
		} else {
			_ = server.nc.Close()
		}
		got, err := io.ReadAll(client)
		if string(got) != "x" || err != nil || client.Truncated() == alert {
			t.Errorf("alert %v: %q, %v, truncated %v", alert, got, err, client.Truncated())
		}
		_ = client.Close()
	}
}

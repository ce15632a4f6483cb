// SPDX-License-Identifier: Apache-2.0

//go:build long

package test

import (
	"os/exec"
	"strings"
	"testing"
	"time"
)

// TestChromiumByName: a browser, with its post-quantum hello of 2 kB and its
// meaningless ECH, is routed by the name in clear.
func TestChromiumByName(t *testing.T) {
	n := startNamed(t)
	out, err := exec.Command("timeout", "60", tool(t, "chromium"), "--headless", "--no-sandbox", "--disable-gpu", "--user-data-dir="+t.TempDir(),
		"--host-resolver-rules=MAP nginx.test 127.0.0.1", "--ignore-certificate-errors", "--dump-dom", "https://nginx.test:"+n.port+"/").CombinedOutput()
	if !strings.Contains(string(out), "nginx nginx.test nginx.test") {
		t.Errorf("%v: %s", err, tail(string(out), 800))
	}
	eventually(t, 5*time.Second, "the log notices ECH", func() bool { return strings.Contains(string(read(t, n.log)), `"ech":true`) })
}

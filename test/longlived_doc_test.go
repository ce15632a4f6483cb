// SPDX-License-Identifier: Apache-2.0

package test

import "testing"

// docs/long-lived.md runs as it stands.
func TestLongLivedDocument(t *testing.T) {
	t.Parallel()
	runDocument(t, "../docs/long-lived.md", 1, "ip link set lo up\n")
}

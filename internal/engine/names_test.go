// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/weirlb/weir/internal/admin"
)

// TestNameWithoutAddress: a backend whose name does not exist is taken out by
// its first probe. No server has this name (RFC 6761 section 6.4); a machine
// without servers cannot say so.
func TestNameWithoutAddress(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	var said *net.DNSError
	if _, err := (&net.Resolver{PreferGo: true}).LookupHost(ctx, "nobody.invalid"); !errors.As(err, &said) || !said.IsNotFound {
		t.Skipf("no name server answers: %v", err)
	}
	a := backend(t, "a")
	r := start(t, fmt.Sprintf(`admin: {bind: "127.0.0.1:0"}
listeners: {web: {bind: "127.0.0.1:0", pool: app}}
pools: {app: {backends: [%q, "http://nobody.invalid:8080"]}}
`, a.URL))
	var got admin.Backend
	eventually(t, "the first probe", func() bool {
		var err error
		if got, err = r.admin.Backend(t.Context(), "app", "nobody.invalid:8080"); err != nil {
			t.Fatal(err)
		}
		return got.LastCheck != nil
	})
	if got.Health != "broken" || got.Share != 0 || !strings.Contains(got.Why, "nobody.invalid has no address") {
		t.Errorf("%+v", got)
	}
}

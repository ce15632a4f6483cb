// SPDX-License-Identifier: Apache-2.0

package lint

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"

	"github.com/weirlb/weir/internal/config"
)

var sourceRules = []Rule{
	{
		Name: "discover_file", Severity: Warning,
		Title: "The list of backends cannot be used as it is",
		Why: "A running weir goes on with the last good list, and says so; one that starts has no list to go on with. " +
			"Whoever writes the file finds out at the next restart, which is when nobody has time for it.",
		Fix:  "Write the list, readable for weir's user, as a list of URLs or `backends: [...]`; replace it by a rename, never in place. The fix lies outside the configuration.",
		find: findSourceFile,
	},
	{
		Name: "tls_server_name", Severity: Warning,
		Title: "Backends with TLS are addresses, and no name is set",
		Why: "weir asks for the name that it verifies: of `https://10.0.1.21` that is the address. Public authorities issue no certificates for the addresses of a data centre, so every handshake fails, probes included, and the pool has nobody. " +
			"With an authority of your own, whose certificates name addresses, this is a note.",
		Fix:  "Set tls.server_name to the name that the backends' certificates hold; it is also what they get as SNI.",
		find: findServerName,
	},
}

func findSourceFile(v *view) {
	if v.ReadFile == nil {
		return
	}
	v.pools(func(p *config.Pool, at []string) {
		if p.Discover == nil || p.Discover.File == "" {
			return
		}
		file := p.Discover.File
		wrong := ""
		text, err := v.ReadFile(file)
		list, faults := []config.Backend(nil), error(nil)
		if err == nil {
			list, faults = config.ParseBackends(file, text)
		}
		var all *config.Errors
		switch {
		case errors.Is(err, fs.ErrNotExist):
			wrong = "does not exist"
		case errors.Is(err, fs.ErrPermission):
			wrong = "cannot be read by the user that runs this"
		case err != nil:
			wrong = "cannot be read"
		case errors.As(faults, &all) && len(all.Faults) > 0:
			x := &all.Faults[0]
			wrong = fmt.Sprintf("cannot be used: %s%s: %s", x.Pos, x.What, x.Fix)
			if n := len(all.Faults) - 1 + all.More; n > 0 {
				wrong += fmt.Sprintf(" (and %d more)", n)
			}
		case len(list) == 0:
			wrong = "lists nobody"
		default:
			return
		}
		left := "a weir that starts now has nobody in pool " + p.Name
		if len(p.Backends) > 0 {
			left = "a weir that starts now has nobody in pool " + p.Name + " but those of the configuration"
		}
		v.found(path(at, "discover", "file"), file+" "+wrong+": "+left)
	})
}

func findServerName(v *view) {
	v.pools(func(p *config.Pool, at []string) {
		if p.TLS.ServerName != "" || p.TLS.InsecureSkipVerify {
			return
		}
		i := slices.IndexFunc(p.Backends, func(b config.Backend) bool { return b.TLS && isAddress(b.Address) })
		if i < 0 {
			return
		}
		severity := Warning
		if p.TLS.CA != "" {
			severity = Note
		}
		v.foundAs(severity, path(at, "backends", i), "pool "+p.Name+": "+p.Backends[i].URL+" is verified as an address, which its certificate has to name",
			write(path(at, "tls", "server_name"), "app.example.com"))
	})
}

// isAddress reports whether the host of host:port is an IP address.
func isAddress(hostport string) bool {
	_, err := netip.ParseAddrPort(hostport)
	return err == nil
}

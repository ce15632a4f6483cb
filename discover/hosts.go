// SPDX-License-Identifier: Apache-2.0

package discover

import (
	"io"
	"net/netip"
	"os"
	"strings"
)

// hostsMost bounds what is read of a hosts file.
const hostsMost = 4 << 20

// readHosts returns the addresses that a hosts file (hosts(5)) gives to names.
// A file that cannot be read gives none, as everywhere.
func readHosts(path string) map[string][]netip.Addr {
	f, err := os.Open(path)
	if err != nil {
		return nil
	}
	defer func() { _ = f.Close() }() // only read from
	text, err := io.ReadAll(io.LimitReader(f, hostsMost))
	if err != nil {
		return nil
	}
	return parseHosts(string(text))
}

func parseHosts(text string) map[string][]netip.Addr {
	out := make(map[string][]netip.Addr)
	for line := range strings.Lines(text) {
		line, _, _ = strings.Cut(line, "#")
		fields := strings.Fields(line)
		if len(fields) < 2 {
			continue
		}
		a, err := netip.ParseAddr(fields[0])
		if err != nil {
			continue
		}
		for _, name := range fields[1:] {
			name = hostsName(name)
			out[name] = append(out[name], a.Unmap())
		}
	}
	return out
}

// hostsName is a name as hosts files are searched for it.
func hostsName(name string) string { return strings.ToLower(strings.TrimSuffix(name, ".")) }

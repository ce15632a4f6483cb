// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"
	"time"

	"github.com/weirlb/weir/internal/admin"
)

func TestHostInWords(t *testing.T) {
	cert := func(d time.Duration) []admin.Certificate {
		return []admin.Certificate{{Name: "a.example.com", NotAfter: time.Now().Add(d)}}
	}
	var b strings.Builder
	for _, l := range []admin.Listener{
		{Name: "web", Bind: []string{":80", "unix:/x"}, Connections: 3, AcceptQueueLimit: 4096, Certificates: cert(31 * 24 * time.Hour)},
		{Name: "web", Bind: []string{":80"}, AcceptQueue: 7, AcceptQueueLimit: 4096, Certificates: cert(-2*time.Hour - time.Minute)},
		{Name: "web", Bind: []string{":80"}, Certificates: cert(50*time.Hour + time.Minute)},
	} {
		printListener(&b, &l)
	}
	printHost(&b, nil)
	printHost(&b, &admin.Host{TimeWait: 12})
	printHost(&b, &admin.Host{TimeWait: 12, Destination: "10.0.1.21:8080", PortsFree: 28000, AcceptOverflows: 3})
	printMemory(&b, &admin.Memory{Needed: 30 << 20})
	printMemory(&b, &admin.Memory{Limit: 86 << 20, Needed: 30 << 20})
	printMemory(&b, &admin.Memory{Limit: 86 << 20, Needed: 84 << 20, Short: true})
	want := `listener web on :80, unix:/x: 3 connections
listener web on :80: 0 connections, 7 more wait to be accepted, of at most 4096
  certificate a.example.com ENDED 2h ago
listener web on :80: 0 connections
  certificate a.example.com ends in 50h, on ` + time.Now().Add(50*time.Hour+time.Minute).UTC().Format("2006-01-02") + `
host: 12 connections in TIME_WAIT
host: 12 connections in TIME_WAIT, 28000 local ports left towards 10.0.1.21:8080, 3 connections lost to full accept queues since the machine started
memory: 30 MiB needed, of 86 MiB
memory: 84 MiB needed, of 86 MiB, OUT OF MEMORY: new connections and requests are refused
`
	if b.String() != want {
		t.Errorf("got:\n%s\nwant:\n%s", b.String(), want)
	}
}

// SPDX-License-Identifier: Apache-2.0

package config

import (
	"reflect"
	"strings"
	"testing"
	"time"
)

func TestFromProxy(t *testing.T) {
	plan, err := FromProxy(ProxyOptions{
		Listen: "127.0.0.1:8080", Admin: "none", Balance: "random", HealthPath: "/readyz", HealthInterval: 500 * time.Millisecond,
		Retries: 0, TLSCert: "/c.pem", TLSKey: "/k.pem", URLs: []string{"http://a:1", "https://b"},
	})
	if err != nil {
		t.Fatal(err)
	}
	roundTrip(t, plan)
	p, l := &plan.Pools[0], &plan.Listeners[0]
	if p.Active.Path != "/readyz" || p.Active.Protocol != "http" || p.Active.Timeout != 200*time.Millisecond || p.Retry.Attempts != 1 ||
		l.Routes[0].Retry.Attempts != 1 || plan.Admin.Bind != "" || l.TLS.Certificates[0].Key != "/k.pem" || p.Backends[1].URL != "https://b:443" || p.Balance != "random" {
		t.Errorf("%s", plan.YAML(false))
	}
	const want = `admin: {bind: none}
listeners:
  web:
    bind: "127.0.0.1:8080"
    tls:
      certificates:
        - {cert: /c.pem, key: /k.pem}
    pool: app
pools:
  app:
    balance: random
    backends: ["http://a:1", "https://b:443"]
    health:
      active: {path: /readyz, interval: 500ms, fast_interval: 500ms}
    retry: {attempts: 1}
`
	if got := string(plan.YAML(true)); got != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
}

// The flags' defaults are the configuration's.
func TestFromProxyDefaults(t *testing.T) {
	plan, err := FromProxy(ProxyOptions{Retries: 1, URLs: []string{"http://10.0.1.21:8080", "http://10.0.1.22:8080"}})
	if err != nil {
		t.Fatal(err)
	}
	five, err := Parse("five", []byte(`
listeners:
  web: {bind: ":8080", pool: app}
pools:
  app: {backends: ["http://10.0.1.21:8080", "http://10.0.1.22:8080"]}
`), lookup)
	if err != nil {
		t.Fatal(err)
	}
	if a, b := barePlan(plan), barePlan(five); !reflect.DeepEqual(a, b) {
		t.Errorf("%s", difference(reflect.ValueOf(a).Elem(), reflect.ValueOf(b).Elem(), ""))
	}
}

// Faults name the flag, and the shell has expanded what it wanted to.
func TestFromProxyFaults(t *testing.T) {
	_, err := FromProxy(ProxyOptions{
		Listen: "8080", Admin: "0.0.0.0:1", Balance: "p3c", HealthPath: "readyz", HealthInterval: time.Nanosecond, Retries: 10,
		TLSCert: "/c.pem", URLs: []string{"a:1", "http://${X}"},
	})
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{
		`--listen: "8080" is only a port`, `--admin: the admin API on`, `--balance: "p3c" is not known`, `--health-path: "readyz" is not a path`,
		"--health-interval: 1ns is too short", "--retries: 10 retries", "--tls-cert and --tls-key: a certificate has no key",
		`backend a:1: "a:1" has no scheme`, `backend http://${X}: "${x}" is not a host name`,
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is missing in:\n%v", want, err)
		}
	}
	if _, err := FromProxy(ProxyOptions{}); err == nil || !strings.Contains(err.Error(), "has no backends") {
		t.Error(err)
	}
}

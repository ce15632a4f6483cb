// SPDX-License-Identifier: Apache-2.0

package test

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
)

// Some parts of a test must be processes of their own: those that get killed,
// and those that attack. The test binary plays them when WEIR_TEST_ROLE says so.
var roles = map[string]func(args []string) error{
	"ledger":  func(a []string) error { return ledger(a[0], a[1]) },
	"bigfile": func(a []string) error { return bigfile(a[0]) },
	"sink":    func(a []string) error { return sink(a[0]) },
	"conform": func(a []string) error { return conform(a[0], a[1]) },
	"attack": func(a []string) error {
		n, err := strconv.Atoi(a[2])
		if err != nil {
			return err
		}
		return attack(a[0], a[1], n)
	},
}

const roleEnv = "WEIR_TEST_ROLE"

// playRole runs the role named in the environment; it returns false when there
// is none.
func playRole() bool {
	role := os.Getenv(roleEnv)
	if role == "" {
		return false
	}
	f, ok := roles[role]
	if !ok {
		fmt.Fprintf(os.Stderr, "no role %q\n", role)
		os.Exit(2)
	}
	if err := f(strings.Split(os.Getenv(roleEnv+"_ARGS"), "\n")); err != nil {
		fmt.Fprintln(os.Stderr, role+":", err)
		os.Exit(1)
	}
	return true
}

// spawnRole starts the test binary in a role.
func spawnRole(t *testing.T, role string, args ...string) *process {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return spawnEnv(t, []string{roleEnv + "=" + role, roleEnv + "_ARGS=" + strings.Join(args, "\n")}, self)
}

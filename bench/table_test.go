// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"strings"
	"testing"
)

// The figures of README.md are those of the saved run, all of them.
func TestReadmeTable(t *testing.T) {
	readme, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	var want strings.Builder
	if err := table("results/latest.json", &want); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(readme), "\n"+want.String()+"\n") {
		t.Errorf("README.md holds another table than that of results/latest.json, which go run ./bench -table bench/results/latest.json prints:\n%s", want.String())
	}
}

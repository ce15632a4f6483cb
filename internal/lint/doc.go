// SPDX-License-Identifier: Apache-2.0

// Package lint is the production checklist as rules: each looks at a checked
// Plan and says what will hurt, why, and what to write instead. A rule is data
// and a pure function; files and the time are passed in, nothing running is
// reached, and no traffic depends on what is found.
//
// The rules are in rules_*.go, in the order of the checklist. docs/lints is
// made of them and of testdata, where every rule has a configuration that
// triggers it (NAME.bad.yaml), what is said of it (NAME.txt) and the same
// configuration with the fix made (NAME.good.yaml).
package lint

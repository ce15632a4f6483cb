// SPDX-License-Identifier: Apache-2.0

// Package config turns the text of a configuration into a checked, immutable
// Plan. Nothing running is reachable from here: it opens no socket and reads
// no file but the configuration itself, so that `weir check` needs no more
// rights than reading it.
//
// One table (schema.go and its neighbours) describes every key: its type,
// default, range and what switches it off. Parsing, defaults, suggestions for
// misspelt keys, printing and docs/configuration.md all come from that table.
//
// The text decides, not the value a YAML library reads out of it: `010`,
// `1_000` and a bare `key:` are refused, with the way to write what was meant.
// All faults of a file are reported at once, each with its place.
package config

// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"strings"
)

// Reference returns the table of all keys as Markdown: docs/configuration.md is
// made of it. It comes from the same table as the parser.
//
//go:generate go test . -run "TestReference|TestFleetReference|TestJSONSchemaGolden" -rewrite
func Reference() []byte {
	var b strings.Builder
	b.WriteString(referenceHead)
	section(&b, "", schema, "At the top")
	b.WriteString(referenceTail)
	for _, name := range findingNames {
		fmt.Fprintf(&b, "- [`%s`](lints/%s.md)\n", name, name)
	}
	return []byte(b.String())
}

const referenceHead = `# Configuration

<!-- Generated from internal/config; do not edit. "go generate ./internal/config" writes it anew. -->

A configuration is a YAML document, ` + "`weir.yaml`" + ` in the working directory unless ` + "`-c`" + ` says otherwise. Five lines are enough:

` + "```yaml" + `
listeners:
  web: {bind: ":8080", pool: app}
pools:
  app: {backends: ["http://10.0.1.21:8080", "http://10.0.1.22:8080"]}
` + "```" + `

Everything else is optional. A block that is absent has its defaults; a block with some keys has the defaults for the rest: without a word about it ` + "`p2c`" + ` balances, backends are probed by TCP every 5 s, bad answers and outliers eject, backends that come back or say that they are overloaded get less for a while, requests are retried within a budget and the access log goes to standard output. ` + "`off`" + ` turns such a block off where the column *off* says so. ` + "`weir check`" + ` reports every mistake at once, with its place and a fix. A configuration with TLS, hosts and paths is in [operations.md](operations.md), which ` + "`balance`" + ` is for what in [policies.md](policies.md).

**File names** are relative to the working directory of weir, except those in ` + "`include`" + `.

**Several files.** ` + "`include: [conf.d/*.yaml]`" + ` reads further files; names and patterns are relative to the file that says so, and what a pattern matches is read in the order of the names, without those that begin with a dot. A pattern may match nothing; a file that is named must be there. ` + "`listeners` and `pools`" + ` of all files go together by name, and a name that is defined twice is an error that tells both places; every other block stands in one of the files. Routes stay with their listener. Included files may include, at most eight in a row; one that several patterns match is read once; one that includes itself is an error. Anchors (` + "`&name`" + `) end with their file. ` + "`-c DIR`" + ` reads every ` + "`*.yaml` and `*.yml`" + ` of a folder as one configuration. Everything that reads a configuration follows ` + "`include`" + `, and a reload reads all files anew; a text posted to the admin API is no file and cannot include.

**How values are written.** Durations are Go's (` + "`250ms`, `5s`, `1h30m`" + `), shares are percentages (` + "`20%`" + `), sizes are ` + "`64KiB`" + `, rates ` + "`240B/s`" + `. ` +
	"`none` (also `off`, `false`, `no`) means no limit, or off, where the column *off* has a word; `0` means nothing is allowed and is refused where that is senseless. " +
	"The text as written counts, not what YAML makes of it: `010`, `1_000` and a bare `key:` are refused with the way to write what was meant.\n\n" +
	"**Environment.** `${NAME}` and `${NAME:-default}` are expanded inside values, `$${` is a literal `${`. Inside `{ }` and `[ ]` put them in quotes. Secrets are read from files.\n\n" +
	"**Quotes.** Put `\"*.example.com\"`, `\"[::]:443\"`, `\":8080\"` and, inside `{ }` and `[ ]`, URLs in quotes.\n\n" +
	"Keys marked *later* are known but not built in this version: only their default is accepted.\n"

const referenceTail = "\n## Findings that `check.silence` may name\n\n"

// section writes the table of one block, then those of the blocks below it.
func section(b *strings.Builder, path string, list []*spec, title string) {
	fmt.Fprintf(b, "\n## %s\n\n| key | type | default | off | range | |\n|---|---|---|---|---|---|\n", title)
	for _, s := range list {
		doc := s.doc
		if s.later {
			doc = "*later.* " + doc
		}
		kind := s.kind
		if len(s.subs) > 0 {
			kind = "see below"
		}
		def := code(s.def)
		if s.def == "" {
			def = ""
		}
		fmt.Fprintf(b, "| `%s` | %s | %s | %s | %s | %s |\n", s.name, cell(kind), def, code(s.off), cell(s.rng), cell(doc))
	}
	for _, s := range list {
		if len(s.subs) == 0 {
			continue
		}
		below := s.name
		if path != "" {
			below = path + "." + s.name
		}
		switch s.kind {
		case "list":
			section(b, below+"[]", s.subs, "`"+below+"[]`")
		case "mapping":
			section(b, below, s.subs, "`"+below+"`")
		default:
			section(b, below+".NAME", s.subs, "`"+below+".NAME`")
		}
	}
}

func code(s string) string {
	if s == "" {
		return ""
	}
	return "`" + cell(s) + "`"
}

// cell protects a table's cell.
func cell(s string) string { return strings.ReplaceAll(s, "|", `\|`) }

// SPDX-License-Identifier: Apache-2.0

package lint

import (
	"fmt"
	"slices"
	"strings"
)

// Example is what testdata holds of a rule.
type Example struct {
	Bad  string // a configuration that triggers it
	Said string // what is found there
	Good string // the same with the fix made
}

// Page returns the rule's page in Markdown: docs/lints is made of them.
//
//go:generate go test . -run TestPages -rewrite
func Page(r *Rule, e Example) string {
	var b strings.Builder
	fmt.Fprintf(&b, "# %s\n\n%s\n\n**%s.** %s.\n\n%s\n\n**Fix.** %s\n", r.Name, generated, titled(r.Severity.String()), r.Title, r.Why, r.Fix)
	fmt.Fprintf(&b, "\n## A configuration with it\n\n```yaml\n%s```\n\n`weir check` says:\n\n```text\n%s```\n", e.Bad, e.Said)
	fmt.Fprintf(&b, "\n## Without it\n\n```yaml\n%s```\n\n## If it is meant\n\n```yaml\ncheck: {silence: [%s]}\n```\n", e.Good, r.Name)
	return b.String()
}

const generated = `<!-- Generated from internal/lint; do not edit. "go generate ./internal/lint" writes it anew. -->`

// Index returns the list of all pages.
func Index() string {
	var b strings.Builder
	b.WriteString("# What `weir check` looks for\n\n" + generated + "\n\n" +
		"The production checklist. Each finding has a severity, a place, a reason and what to write instead; its page shows a configuration with it and one without.\n\n" +
		"**Errors** fail the check: goals that the configuration states itself (`check:`) and misses, and certificates that clients refuse. **Warnings** fail it with `--strict`. **Notes** never do. " +
		"`weir run` serves whatever is found here, except `fall_1`, which is refused unless silenced. `check: {silence: [NAME]}` says that something is meant.\n\n" +
		"What `check:` states is compared, and changes no traffic: `front` (the idle timeout, check interval and fall of the balancer in front), `grace` (the orchestrator's grace period), `slo.detection`, `layers` (what else retries) and `rate` (requests per second at the peak).\n")
	for _, g := range []struct {
		title string
		rules []Rule
	}{
		{"Times", timeoutRules}, {"Around weir", frontRules}, {"Probes", checkRules}, {"Health and its consequences", healthRules},
		{"Retries and connections", retryRules}, {"Limits", limitRules}, {"Balancing", balanceRules}, {"How backends are spoken to", schemeRules}, {"Sessions", stickyRules}, {"Routes", routeRules}, {"TLS by name", nameRules}, {"Where backends are found", sourceRules}, {"Trust", trustRules}, {"PROXY protocol", proxyRules}, {"Certificates", slices.Concat(certificateRules, acmeRules)},
	} {
		fmt.Fprintf(&b, "\n## %s\n\n| name | severity | |\n|---|---|---|\n", g.title)
		for i := range g.rules {
			r := &g.rules[i]
			fmt.Fprintf(&b, "| [`%s`](%s.md) | %s | %s |\n", r.Name, r.Name, r.Severity, r.Title)
		}
	}
	return b.String()
}

func titled(word string) string { return strings.ToUpper(word[:1]) + word[1:] }

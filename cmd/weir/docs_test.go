// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/weirlb/weir/internal/config"
)

// documents are what operators read.
func documents(t *testing.T) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, pattern := range []string{"../../*.md", "../../docs/*.md", "../../docs/*/*.md", "../../packaging/*.md", "../../packaging/*/*.md"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			text, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			out[strings.TrimPrefix(f, "../../")] = string(text)
		}
	}
	if len(out) < 20 {
		t.Fatalf("only %d documents", len(out))
	}
	return out
}

// block is a fenced block of a document.
type block struct {
	where  string // file:line
	lang   string
	marker string // the HTML comment right before it, without its dashes
	text   string
}

var fence = regexp.MustCompile("(?m)(?:^ *<!-- (.*?) -->\n)?^( *)```([a-z]+)\n((?s).*?)\n? *```$")

func blocksOf(file, text string) (out []block) {
	for _, m := range fence.FindAllStringSubmatchIndex(text, -1) {
		part := func(i int) string {
			if m[2*i] < 0 {
				return ""
			}
			return text[m[2*i]:m[2*i+1]]
		}
		body := part(4)
		if indent := part(2); indent != "" {
			body = strings.ReplaceAll("\n"+body, "\n"+indent, "\n")[1:]
		}
		line := strings.Count(text[:m[8]], "\n") + 1
		out = append(out, block{file + ":" + strconv.Itoa(line), part(3), part(1), body + "\n"})
	}
	return out
}

// around is what a piece of a configuration is completed with.
const around = `listeners:
  web: {bind: ":8080", pool: app}
pools:
  app: {backends: ["http://10.0.1.21:8080"]}
`

// foreignKeys begin YAML that is not weir's: of Kubernetes, Prometheus, Compose.
var foreignKeys = regexp.MustCompile(`(?m)^(apiVersion|spec|metadata|containers|[a-z]+Probe|lifecycle|[a-z]+[A-Z][A-Za-z]*|volumes|env|ports|scrape_configs|groups|rule_files|services|global):`)

func docEnv(string) (string, bool) { return "10.0.0.1", true }

// TestDocumentedConfigurations reads every block of YAML in every document. It is
// a configuration, a piece of one (which is completed), the description of a fleet
// or a file of backends, and correct; or the comment <!-- bad: WORDS --> before it
// says what weir says of it. Of one that is whole weir check has no warning, but for
// those that the comment <!-- found: RULE, RULE --> names.
func TestDocumentedConfigurations(t *testing.T) {
	n := 0
	for file, text := range documents(t) {
		for _, b := range blocksOf(file, text) {
			switch b.lang {
			case "yaml", "yml":
				n++
				checkYAML(t, b)
			case "sh":
				for _, m := range heredoc.FindAllStringSubmatch(b.text, -1) {
					n++
					checkYAML(t, block{b.where, "yaml", b.marker, m[1] + "\n"})
				}
			}
		}
	}
	if n < 100 {
		t.Errorf("only %d blocks", n)
	}
}

var heredoc = regexp.MustCompile(`(?s)cat >+ ?[a-z.]+\.yaml <<'?END'?\n(.*?)\nEND\n`)

func checkYAML(t *testing.T, b block) {
	t.Helper()
	if foreignKeys.MatchString(b.text) {
		return
	}
	words, bad := strings.CutPrefix(b.marker, "bad: ")
	_, err := config.Parse("weir.yaml", []byte(b.text), docEnv)
	if bad {
		if err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("%s: %q is not said of it: %v", b.where, words, err)
		}
		return
	}
	if err == nil && !strings.HasPrefix(b.where, "docs/lints/") { // whose pages show what is found
		foundIn(t, b)
	}
	if err == nil || strings.HasSuffix(strings.Split(b.where, ":")[0], "lints/fall_1.md") && strings.Contains(err.Error(), "fall: 1") {
		return
	}
	if _, ferr := config.ParseFleet("fleet.yaml", []byte(b.text), docEnv); ferr == nil {
		return
	}
	if _, ferr := config.ParseBackends("backends.yaml", []byte(b.text)); ferr == nil {
		return
	}
	whole, oerr := config.Overlay(around, b.text)
	if oerr != nil {
		t.Errorf("%s: %v", b.where, oerr)
		return
	}
	if rest, ok := withoutInclude(whole); ok {
		whole = rest
	}
	if _, err = config.Parse("weir.yaml", []byte(whole), docEnv); err != nil {
		t.Errorf("%s is no configuration and no piece of one:\n%v", b.where, err)
	}
}

// foundIn holds a configuration to the checklist: readers copy what they see.
func foundIn(t *testing.T, b block) {
	t.Helper()
	name := filepath.Join(t.TempDir(), "weir.yaml")
	if err := os.WriteFile(name, []byte(b.text), 0o600); err != nil {
		t.Fatal(err)
	}
	meant, _ := strings.CutPrefix(b.marker, "found: ")
	f := check(name, true, nil)
	for _, x := range slices.Concat(f.Errors, f.Warnings) {
		if !slices.Contains(strings.Split(meant, ", "), x.Name) {
			t.Errorf("%s: %s: %s", b.where, x.Name, x.Text)
		}
	}
}

// withoutInclude removes what a text that is no file cannot do.
func withoutInclude(text string) (string, bool) {
	lines := strings.SplitAfter(text, "\n")
	rest := slices.DeleteFunc(slices.Clone(lines), func(l string) bool { return strings.HasPrefix(l, "include: ") })
	return strings.Join(rest, ""), len(rest) < len(lines)
}

// TestDocumentedCommands holds every command line of weir in a block of shell, and
// every one that is quoted in a sentence, to the commands and flags that exist.
func TestDocumentedCommands(t *testing.T) {
	quoted := regexp.MustCompile("`((?:\\./)?weir [a-z][^`\n]*)`")
	n := 0
	for file, text := range documents(t) {
		if file == "CHANGELOG.md" || strings.HasPrefix(file, "docs/adr/") {
			continue // which tell of what was
		}
		for _, b := range blocksOf(file, text) {
			if b.lang != "sh" {
				continue
			}
			body := regexp.MustCompile(`(?s)<<-?'?([A-Z]+)'?\n.*?\n[A-Z]+\n`).ReplaceAllString(b.text, "\n")
			body = strings.ReplaceAll(body, "\\\n", " ")
			for line := range strings.Lines(body) {
				for _, words := range commandsIn(line) {
					n++
					if err := known(words, true); err != nil {
						t.Errorf("%s: %s: %v", b.where, strings.Join(words, " "), err)
					}
				}
			}
		}
		for _, m := range quoted.FindAllStringSubmatch(text, -1) {
			for _, words := range commandsIn(m[1]) {
				n++
				if err := known(words, false); err != nil {
					t.Errorf("%s: `%s`: %v", file, m[1], err)
				}
			}
		}
	}
	if n < 100 {
		t.Errorf("only %d command lines", n)
	}
}

// commandsIn returns the words of each call of weir in a line of shell.
func commandsIn(line string) (out [][]string) {
	var words []string
	take := func() {
		for i, w := range words {
			if filepath.Base(w) == "weir" && !strings.Contains(w, "=") && (i == 0 || !strings.HasPrefix(words[i-1], "-")) && plainBefore(words[:i]) {
				out = append(out, words[i:])
				break
			}
		}
		words = nil
	}
	word, in, quote := "", false, rune(0)
	flush := func() {
		if in {
			words = append(words, word)
		}
		word, in = "", false
	}
	for _, r := range strings.TrimSuffix(line, "\n") {
		switch {
		case quote != 0:
			if r == quote {
				quote = 0
			} else {
				word += string(r)
			}
		case r == '\'' || r == '"':
			quote, in = r, true
		case r == ' ' || r == '\t':
			flush()
		case r == '#' && !in:
			take()
			return out
		case strings.ContainsRune("|;&()", r):
			flush()
			take()
		case r == '>' || r == '<':
			if strings.Trim(word, "0123456789") == "" {
				word, in = "", false
			}
			flush()
			take()
			words = append(words, "(redirected)") // what follows is a file, no command
		default:
			word, in = word+string(r), true
		}
	}
	flush()
	take()
	return out
}

// plainBefore reports whether what stands before weir in a command runs it.
func plainBefore(words []string) bool {
	for _, w := range words {
		if strings.Contains(w, "=") {
			continue
		}
		if !slices.Contains([]string{"sudo", "exec", "time", "watch", "nohup", "if", "!", "then", "do", "while", "until", "env"}, w) {
			return false
		}
	}
	return true
}

// known says what is wrong with a command line; whole says that its arguments are
// complete.
func known(words []string, whole bool) error {
	root := newRoot()
	args := words[1:]
	for i, a := range args {
		if strings.ContainsAny(a, "[]…") || strings.HasPrefix(a, "...") { // a synopsis
			args, whole = args[:i], false
			break
		}
	}
	if len(args) == 0 {
		return nil
	}
	cmd, rest, err := root.Find(args)
	switch {
	case err != nil:
		return err
	case cmd == root && !strings.HasPrefix(args[0], "-"):
		return errors.New("there is no such command")
	case slices.ContainsFunc(args, func(a string) bool { return a == "--help" || a == "-h" }):
		return nil
	}
	if !whole && len(rest) > 0 && strings.HasPrefix(rest[len(rest)-1], "-") {
		// The value of the last flag is left out in a sentence.
		name, _, valued := strings.Cut(strings.TrimLeft(rest[len(rest)-1], "-"), "=")
		f := cmd.Flags().Lookup(name)
		if len(name) == 1 {
			f = cmd.Flags().ShorthandLookup(name)
		}
		if f != nil && f.NoOptDefVal == "" && !valued {
			rest = rest[:len(rest)-1]
		}
	}
	if err := cmd.ParseFlags(rest); err != nil {
		if !whole && strings.Contains(err.Error(), "invalid argument") {
			return nil // a placeholder
		}
		return err
	}
	if whole {
		return cmd.ValidateArgs(cmd.Flags().Args())
	}
	return nil
}

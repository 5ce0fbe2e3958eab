package agent

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"go.yaml.in/yaml/v4"

	"github.com/anima-run/anima/pkg/api/catalog"
)

func known() Known {
	return Known{
		Tools: []string{"exec", "read_file", "write_file", "sleep", "transfer_credits"},
		Basic: []string{"exec", "read_file", "sleep"},
	}
}

const full = `---
# who it is
name: ada-1
description: >
  Watches the ledger
  and says so.
version: 1.0
model: gpt-5.2
creator: 0x52908400098527886E0F7030069857D2E4169EE7
message: |
  Welcome.
  Earn your keep.
autonomy: true
tools: [exec, transfer_credits, mcp_files_read, "mcp_*"]
schedule:
  - name: morning
    cron: "0  8 * * MON-FRI"
    reason: "Read: the news"
  - {name: leap, cron: 0 0 29 2 *}
limits:
  max_turns: 5
  timeout_seconds: 60
  queue_timeout_seconds: 5
context:
  window: 64000
  flush: 9000
sandbox:
  network: true
---

# You are Ada

Spend little.
---
This rule belongs to the Markdown.
`

func TestParse(t *testing.T) {
	t.Parallel()
	want := Definition{
		Name: "ada-1", Description: "Watches the ledger and says so.", Version: "1.0", Model: "gpt-5.2",
		Creator: "0x52908400098527886E0F7030069857D2E4169EE7",
		Message: "Welcome.\nEarn your keep.", Autonomy: true,
		Tools: []string{"exec", "transfer_credits", "mcp_files_read", "mcp_*"},
		Schedule: []Schedule{
			{Name: "morning", Cron: "0 8 * * MON-FRI", Reason: "Read: the news"},
			{Name: "leap", Cron: "0 0 29 2 *"},
		},
		Limits:  Limits{MaxTurns: 5, MaxToolCalls: 10, Timeout: time.Minute, QueueTimeout: 5 * time.Second},
		Context: Context{Window: 64_000, Reserve: 4_000, Flush: 9_000},
		Sandbox: Sandbox{Network: true, Timeout: 30 * time.Second},
		Body:    "# You are Ada\n\nSpend little.\n---\nThis rule belongs to the Markdown.",
	}
	for name, src := range map[string]string{
		"as written":        full,
		"with CRLF":         strings.ReplaceAll(full, "\n", "\r\n"),
		"with a byte order": "\ufeff" + full,
	} {
		got, faults := Parse([]byte(src), known())
		if len(faults) > 0 {
			t.Errorf("%s: faults %v, want none", name, faults)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: definition (-want +got):\n%s", name, diff)
		}
	}
}

func TestParseDefaults(t *testing.T) {
	t.Parallel()
	got, faults := Parse([]byte("---\nname: ada\nmodel:\n---\nbe"), known())
	want := Definition{
		Name: "ada", Tools: known().Basic, Body: "be",
		Limits:  Limits{MaxTurns: 25, MaxToolCalls: 10, Timeout: 600 * time.Second, QueueTimeout: 30 * time.Second},
		Context: Context{Reserve: 4_000, Flush: 8_000},
		Sandbox: Sandbox{Timeout: 30 * time.Second},
	}
	if diff := cmp.Diff(want, got); diff != "" || len(faults) > 0 {
		t.Errorf("faults %v, definition (-want +got):\n%s", faults, diff)
	}

	got, faults = Parse([]byte("---\nname: ada\ntools: []\n---\nbe"), known())
	if len(got.Tools) != 0 || len(faults) > 0 {
		t.Errorf("an empty list of tools gave %v with faults %v, want no tools", got.Tools, faults)
	}
}

func TestFaults(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		src  string
		want []string
	}{
		"empty file":        {"", []string{"line 1: missing frontmatter: the first line must be ---"}},
		"no frontmatter":    {"# Ada\nhello\n", []string{"line 1: missing frontmatter: the first line must be ---"}},
		"blank line first":  {"\n---\nname: a\n---\nbe", []string{"line 1: missing frontmatter: the first line must be ---"}},
		"unclosed":          {"---\nname: a\n\nbe", []string{"line 1: the frontmatter opened here is not closed; add a line --- before the Markdown"}},
		"empty frontmatter": {"---\n# todo\n---\nbe", []string{"line 1: name is missing"}},
		"empty body":        {"---\nname: a\n---\n \n\n", []string{"line 3: the Markdown after the frontmatter is empty; write the genesis prompt there"}},
		"body too long":     {"---\nname: a\n---\n" + strings.Repeat("é", MaxBody+1), []string{"line 4: the genesis prompt has 16001 characters; at most 16000 are allowed"}},
		"file too large":    {"---\nname: a\n---\n" + strings.Repeat("x", MaxFile), []string{"line 1: the file has 65552 bytes; at most 65536 are allowed"}},
		"not UTF-8":         {"---\nname: a\n---\nbe\xff\nok\x00\n", []string{"line 4: not valid UTF-8; save the file as UTF-8", "line 5: a NUL byte; remove it"}},
		"control character": {"---\nname: a\nmodel: \x01\n---\nbe", []string{"line 3: a control character; remove it"}},
		"frontmatter is a list": {
			"---\n- name\n---\nbe",
			[]string{"line 2: the frontmatter must be keys and values, got a list"},
		},
		"everything at once": {
			`---
name: Ada Lovelace
descripton: typo
model: [a]
creator: 0x1234
tools:
  - exec
  - reed_file
  - exec
  - teleport
schedule:
  - name: m
    cron: "61 * * * *"
  - name: m
    cron: "* * *"
    when: now
  - reason: x
limits:
  max_turns: 0
  max_tool_calls: ten
  timeout_seconds: 1.5
sandbox:
  network: yes
  timeout_seconds: 601
name: twice
---
`, []string{
				`line 2: name may have only letters, digits and -, got "Ada Lovelace"`,
				`line 3: unknown key "descripton"; did you mean "description"?`,
				`line 4: model must be text, got a list`,
				`line 5: creator must be an address of 0x and 40 hexadecimal digits, got "0x1234"`,
				`line 8: unknown tool "reed_file"; did you mean "read_file"?`,
				`line 9: tool "exec" is listed twice; it is already on line 7`,
				`line 10: unknown tool "teleport"; known are exec, read_file, write_file, sleep, transfer_credits`,
				`line 13: schedule[0].cron: minute: 61 is out of range 0 to 59`,
				`line 14: schedule[1].name "m" is used twice; it is already on line 12`,
				`line 15: schedule[1].cron: has 3 fields, wants 5: minute, hour, day of month, month, day of week`,
				`line 16: unknown key "when"; known are name, cron, reason`,
				`line 17: schedule[2].name is missing`,
				`line 17: schedule[2].cron is missing`,
				`line 19: limits.max_turns must be from 1 to 100, got 0`,
				`line 20: limits.max_tool_calls must be a whole number from 1 to 10, got the text "ten"`,
				`line 21: limits.timeout_seconds must be a whole number from 1 to 3600, got the number 1.5`,
				`line 23: sandbox.network must be true or false, got the text "yes"`,
				`line 24: sandbox.timeout_seconds must be from 1 to 600, got 601`,
				`line 25: name is given twice; it is already on line 2`,
				`line 26: the Markdown after the frontmatter is empty; write the genesis prompt there`,
			},
		},
		"wrong kinds": {
			"---\nname: 007\ndescription: {a: b}\nversion: 2024-01-01\nmodel: true\ntools: exec\nschedule: daily\nlimits: 3\nsandbox:\n  - network\n? [a]\n: b\n---\nbe",
			[]string{
				`line 2: name must be text, got the number 007; put it in quotes`,
				`line 3: description must be text, got keys and values`,
				`line 4: version must be text, got the date 2024-01-01; put it in quotes`,
				`line 5: model must be text, got the truth value true; put it in quotes`,
				`line 6: tools must be a list, got the text "exec"`,
				`line 7: schedule must be a list, got the text "daily"`,
				`line 8: limits must be keys and values, got the number 3`,
				`line 10: sandbox must be keys and values, got a list`,
				`line 11: a key must be text, got a list`,
			},
		},
		"life": {
			"---\nname: a\nmessage: [hi]\nautonomy: sometimes\ntools: [mcp_, mcp_my-files, 'mcp_*a', 'mcp_Files_*', 'mcp_*', 'mcp_*']\nlimits: {queue_timeout_seconds: 3601}\n" +
				"context:\n  window: 999\n  reserve: 0\n  flush: many\n  max: 1\n---\nbe",
			[]string{
				`line 3: message must be text, got a list`,
				`line 4: autonomy must be true or false, got the text "sometimes"`,
				`line 5: unknown tool "mcp_"; known are exec, read_file, write_file, sleep, transfer_credits`,
				`line 5: unknown tool "mcp_my-files"; known are exec, read_file, write_file, sleep, transfer_credits`,
				`line 5: unknown tool "mcp_*a"; known are exec, read_file, write_file, sleep, transfer_credits`,
				`line 5: tool "mcp_*" is listed twice; it is already on line 5`,
				`line 6: limits.queue_timeout_seconds must be from 1 to 3600, got 3601`,
				`line 8: context.window must be from 1000 to 10000000, got 999`,
				`line 9: context.reserve must be from 1 to 10000000, got 0`,
				`line 10: context.flush must be a whole number from 1 to 10000000, got the text "many"`,
				`line 11: unknown key "max"; known are window, reserve, flush`,
			},
		},
		"context that leaves nothing": {
			"---\nname: a\ncontext:\n  window: 8000\n  reserve: 9000\n---\nbe",
			[]string{
				`line 4: context.window is 8000 and context.flush 8000: nothing is left for the conversation; window must be more`,
				`line 5: context.flush is 8000 and context.reserve 9000: memories are written before the context is compacted, so flush must not be less`,
			},
		},
		"long message":     {"---\nname: a\nmessage: " + strings.Repeat("a", 2001) + "\n---\nbe", []string{"line 3: message has 2001 characters; at most 2000 are allowed"}},
		"empty name":       {"---\nname:\n---\nbe", []string{"line 2: name is empty"}},
		"quoted empty":     {"---\nname: ' '\n---\nbe", []string{"line 2: name is empty"}},
		"long name":        {"---\nname: " + strings.Repeat("a", 65) + "\n---\nbe", []string{"line 2: name has 65 characters; at most 64 are allowed"}},
		"long description": {"---\nname: a\ndescription: " + strings.Repeat("a", 501) + "\n---\nbe", []string{"line 3: description has 501 characters; at most 500 are allowed"}},
		"line break":       {"---\nname: a\nmodel: \"b\\nc\"\n---\nbe", []string{"line 3: model has a line break or control character (U+000A); remove it"}},
		"alias":            {"---\nname: &x a\nmodel: *x\n---\nbe", []string{"line 3: model must be text, got an alias (*x); write the value out"}},
		"own tag":          {"---\nname: !secret a\n---\nbe", []string{`line 2: name must be text, got a value tagged !secret; put it in quotes`}},

		"tabs":             {"---\nname: a\nlimits:\n\tmax_turns: 3\n  \ttimeout_seconds: 3\n---\nbe", []string{"line 4: a tab in the indentation; YAML requires spaces", "line 5: a tab in the indentation; YAML requires spaces"}},
		"colon in text":    {"---\nname: a\nversion: \"1\"\ndescription: one: two\n---\nbe", []string{`line 4: the frontmatter is not YAML: mapping values are not allowed in this context; put text that has ": " in it in quotes, and check the indentation`}},
		"open quote":       {"---\nname: a\ndescription: \"one\nversion: 1\n---\nbe", []string{"line 3: the frontmatter is not YAML: found unexpected end of stream; close the quotes opened here"}},
		"open bracket":     {"---\nname: a\ntools: [exec\nversion: 1\n---\nbe", []string{"line 3: the frontmatter is not YAML: did not find expected ',' or ']'; close the bracket opened here"}},
		"text without key": {"---\nname: a\njust text\nversion: 1\n---\nbe", []string{"line 3: the frontmatter is not YAML: could not find expected ':'; each line is a key, a colon and a value"}},
		"indentation":      {"---\nname: a\nlimits:\n  max_turns: 1\n max_tool_calls: 2\n---\nbe", []string{"line 5: the frontmatter is not YAML: did not find expected key; check the indentation"}},
		"reserved sign":    {"---\nname: a\nmodel: @b\n---\nbe", []string{"line 3: the frontmatter is not YAML: found character that cannot start any token; put text that starts with a sign in quotes"}},
		"unknown anchor":   {"---\nname: a\nmodel: *b\n---\nbe", []string{"line 3: the frontmatter is not YAML: unknown anchor 'b' referenced"}},
		"two documents":    {"---\nname: a\n...\nb: 1\n---\nbe", []string{"line 1: the frontmatter is not YAML: expected single document, found multiple; remove the line ..."}},
		"syntax and body":  {"---\nname: [\n---\n", []string{"line 2: the frontmatter is not YAML: did not find expected node content", "line 3: the Markdown after the frontmatter is empty; write the genesis prompt there"}},
		"too many schedules": {
			"---\nname: a\nschedule:\n" + strings.Repeat("  - {name: a, cron: '* * * * *'}\n", 33) + "---\nbe",
			[]string{"line 4: schedule has 33 entries; at most 32 are allowed"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			def, faults := Parse([]byte(tt.src), known())
			got := make([]string, len(faults))
			for i, f := range faults {
				got[i] = f.String()
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("faults (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(Definition{}, def); diff != "" {
				t.Errorf("a faulty file gave a definition:\n%s", diff)
			}
		})
	}
}

func TestFaultsAreCut(t *testing.T) {
	t.Parallel()
	var src strings.Builder
	src.WriteString("---\nname: a\n")
	for i := range 500 {
		fmt.Fprintf(&src, "k%d: 1\n", i)
	}
	src.WriteString("---\nbe\n")
	_, faults := Parse([]byte(src.String()), known())
	if len(faults) != 101 {
		t.Fatalf("got %d faults, want 100 and one that counts the rest", len(faults))
	}
	if got, want := faults[100].String(), "line 102: 400 more faults follow; fix these first"; got != want {
		t.Errorf("the last fault is %q, want %q", got, want)
	}
}

func TestCron(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"* * * * *":                 "",
		"*/5 0-23/2 1,15 jan-mar ?": "",
		"0 0 * * SUN,3,fri-sat":     "",
		"5/10 * * * *":              "",
		"":                          "has 0 fields, wants 5: minute, hour, day of month, month, day of week",
		"@daily":                    "has 1 fields, wants 5: minute, hour, day of month, month, day of week",
		"0 0 0 * * *":               "has 6 fields, wants 5: minute, hour, day of month, month, day of week",
		"TZ=UTC 0 * * *":            `minute: "TZ=UTC" is not a number`,
		"60 * * * *":                "minute: 60 is out of range 0 to 59",
		"* 24 * * *":                "hour: 24 is out of range 0 to 23",
		"* * 0 * *":                 "day of month: 0 is out of range 1 to 31",
		"* * * 13 *":                "month: 13 is out of range 1 to 12",
		"* * * foo *":               `month: "foo" is not a number`,
		"* * * * 7":                 "day of week: 7 is out of range 0 to 6 (Sunday is 0)",
		"* * * * mon-":              `day of week: "" is not a number`,
		"1,,2 * * * *":              `minute: "" is not a number`,
		"+1 * * * *":                `minute: "+1" is not a number`,
		"-1 * * * *":                `minute: "" is not a number`,
		"30-10 * * * *":             `minute: range "30-10" runs backwards`,
		"*/0 * * * *":               `minute: step "0" must be from 1 to 59`,
		"*/x * * * *":               `minute: step "x" must be from 1 to 59`,
		"* */25 * * *":              `hour: step "25" must be from 1 to 23`,
		"0 0 31 2 *":                `"0 0 31 2 *" never occurs; check day of month and month`,
	} {
		_, err := parseCron(text)
		got := ""
		if err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("parseCron(%q) says %q, want %q", text, got, want)
		}
	}
}

func TestRender(t *testing.T) {
	t.Parallel()
	def, faults := Parse([]byte(full), known())
	if len(faults) > 0 {
		t.Fatal(faults)
	}
	want := `---
name: ada-1
description: Watches the ledger and says so.
version: '1.0'
model: gpt-5.2
creator: 0x52908400098527886E0F7030069857D2E4169EE7
message: |-
  Welcome.
  Earn your keep.
autonomy: true
tools:
- exec
- transfer_credits
- mcp_files_read
- mcp_*
schedule:
- name: morning
  cron: 0 8 * * MON-FRI
  reason: 'Read: the news'
- name: leap
  cron: 0 0 29 2 *
limits:
  max_turns: 5
  max_tool_calls: 10
  timeout_seconds: 60
  queue_timeout_seconds: 5
context:
  window: 64000
  reserve: 4000
  flush: 9000
sandbox:
  network: true
  timeout_seconds: 30
---

# You are Ada

Spend little.
---
This rule belongs to the Markdown.
`
	if diff := cmp.Diff(want, string(Render(def))); diff != "" {
		t.Errorf("rendered (-want +got):\n%s", diff)
	}
}

// TestStored tests that a definition that an older release stored has defaults for
// missing fields.
func TestStored(t *testing.T) {
	t.Parallel()
	var got Definition
	if err := json.Unmarshal([]byte(`{"name":"ada","limits":{"maxTurns":7},"sandbox":{"network":true},"body":"be"}`), &got); err != nil {
		t.Fatal(err)
	}
	want := Definition{Name: "ada", Limits: DefaultLimits(), Context: DefaultContext(), Sandbox: DefaultSandbox(), Body: "be"}
	want.Limits.MaxTurns, want.Sandbox.Network = 7, true
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	full, faults := Parse([]byte(full), known())
	data, err := json.Marshal(full)
	if err != nil || len(faults) > 0 {
		t.Fatal(err, faults)
	}
	if err := json.Unmarshal(data, &got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(full, got); diff != "" {
		t.Errorf("stored and read (-want +got):\n%s", diff)
	}
}

// TestDocumented tests that the documentation contains every key and a valid example.
func TestDocumented(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile("../../../../docs/agent.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(data), "```markdown\n")
	example, table, ok := strings.Cut(rest, "```\n")
	if _, faults := Parse([]byte(example), Known{Tools: catalog.Names()}); !ok || len(faults) > 0 {
		t.Errorf("the example of docs/agent.md has faults: %v", faults)
	}
	def, faults := Parse([]byte(full), known())
	if len(faults) > 0 {
		t.Fatal(faults)
	}
	_, head, _ := strings.Cut(string(Render(def)), "---\n")
	head, _, _ = strings.Cut(head, "---")
	var keys map[string]any
	if err := yaml.Load([]byte(head), &keys); err != nil {
		t.Fatal(err)
	}
	if len(keys) < 12 {
		t.Errorf("the example renders to the keys %v, want all there are", keys)
	}
	for key, value := range keys {
		names := []string{key}
		if below, ok := value.(map[string]any); ok {
			names = nil
			for k := range below {
				names = append(names, key+"."+k)
			}
		}
		for _, name := range names {
			if !strings.Contains(table, "\n| `"+name+"` |") {
				t.Errorf("docs/agent.md does not have the key %s", name)
			}
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(full))
	f.Add([]byte("---\nname: a\ndescription: |\n  one\n\n  two: \"x\"\n---\nbe\r\nme"))
	f.Add([]byte("---\nname: &x a\nmodel: *x\n<<: {tools: []}\n---\nbe"))
	f.Add([]byte("---\nname: !!int x\n? a\n: b\n...\n---\n---\n"))
	f.Add([]byte("---\nname: '0x1'\nversion: !!float 1e3\ncreator: ~\nschedule: [{name: '1', cron: '*/2 1-3 * * 0'}]\n---\n# x"))
	f.Fuzz(func(t *testing.T, src []byte) {
		def, faults := Parse(src, known())
		for _, fault := range faults {
			if fault.Line < 1 || fault.Message == "" {
				t.Errorf("fault %+v, want a line from 1 and a message", fault)
			}
		}
		if len(faults) > 0 {
			return
		}
		again := Render(def)
		if len(again) > MaxFile {
			return
		}
		back, faults := Parse(again, known())
		if len(faults) > 0 {
			t.Fatalf("rendered file has faults %v:\n%s", faults, again)
		}
		if diff := cmp.Diff(def, back, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("rendered definition differs (-parsed +back):\n%s", diff)
		}
	})
}

package main

import (
	"bytes"
	"context"
	"encoding/csv"
	"encoding/json"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	kongcompletion "github.com/jotaen/kong-completion"
	"github.com/posener/complete"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/host"
)

func TestAgentCommands(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.up()

	file := filepath.Join(t.TempDir(), "AGENT.md")
	write(t, file, "---\nname: Nova\ndescription: a neighbour\n---\nBe useful.\n")
	if out := m.cli("agent", "apply", file); !strings.Contains(out, "agent nova applied (version 1)") || !strings.Contains(out, "0x") {
		t.Errorf("apply says %q", out)
	}
	if g := asked[api.Agent](m, "agent", "apply", file); g.Version != 1 {
		t.Errorf("applied again: version %d, want 1", g.Version)
	}
	said := m.run("---\nname: Piped\n---\nBe.\n", "agent", "apply", "-")
	if said.code != exitOK || !strings.Contains(said.out, "agent piped applied") {
		t.Errorf("from standard input: %+v", said)
	}

	broken := "---\nname: no name\nflavour: sweet\ntools: [read_file, fly]\nlimits: {max_turns: 1000}\n---\n"
	write(t, file, broken)
	args := []string{"agent", "apply", file}
	m.fails(exitUsage, "", args, "line 2", "line 3", "flavour", "line 4", "fly", "line 5", "nothing was changed")
	var wire struct{ Error api.Error }
	one(t, m.fails(exitUsage, "", append(args, "-o", "json")), &wire)
	if wire.Error.Code != api.Invalid || len(wire.Error.Details) < 4 {
		t.Errorf("the error as JSON is %+v", wire.Error)
	}
	write(t, file, "---\nname: Nova\nflavour: sweet\n---\nBe wicked.\n")
	m.fails(exitUsage, "", args, "line 3", "flavour")
	if got := ids(asked[api.Agents](m, "agent", "list")); got != "lucky nova piped" {
		t.Errorf("agents are %q after the broken files", got)
	}
	if g := asked[agentView](m, "agent", "get", "Nova"); g.Version != 1 || g.Description != "a neighbour" {
		t.Errorf("the broken file has changed the agent: %+v", g)
	}

	write(t, file, "---\nname: Nova\n---\nBe \xff wicked.\n")
	m.fails(exitUsage, "", args, file, "not valid UTF-8")
	m.fails(exitUsage, "be \xff wicked", []string{"session", "send", "nova", "-"}, "not UTF-8")
	m.fails(exitUsage, "", []string{"agent", "apply", filepath.Join(t.TempDir(), "none.md")}, "none.md", "AGENT.md")
	m.fails(exitUsage, "", []string{"agent", "apply", t.TempDir()}, "is a directory")
	m.fails(exitUsage, strings.Repeat("x", maxSource+1), []string{"agent", "apply", "-"}, "larger than")
	m.fails(exitUsage, "", []string{"agent", "apply", "-"}, "fault")

	if out := m.cli("agent", "list"); !strings.Contains(out, "AGENT") || !strings.Contains(out, "piped") {
		t.Errorf("list says\n%s", out)
	}
	if out := m.cli("agent", "get", "lucky"); !strings.Contains(out, "available     $5.00") {
		t.Errorf("get says\n%s", out)
	}
	m.fails(exitNotFound, "", []string{"agent", "get", "ghost"}, "no such agent", "anima agent list")
	m.fails(exitNotFound, "", []string{"agent", "wake", "ghost"}, "ghost")

	for _, bad := range []string{"0", "x", "1e3", "1.2345678", "", "1,5", "99999999999"} {
		m.fails(exitUsage, "", []string{"agent", "fund", "nova", bad})
	}
	m.fails(exitUsage, "", []string{"agent", "fund", "nova", "-1"})
	m.fails(exitUsage, "", []string{"agent", "fund", "nova"}, "anima agent fund --help has")
	m.fails(exitUsage, "", []string{"agent", "fund", "nova", "1", "--nope"}, "anima agent fund --help has")
	m.fails(exitUsage, "", []string{"agent", "fnd"}, `did you mean "fund"`, "anima agent --help lists")
	m.fails(exitUsage, "", []string{"agnt"}, "anima --help lists")
	for _, more := range [][]string{{"-o", "json"}, {"--output=json"}} {
		one(t, m.fails(exitUsage, "", append([]string{"agent", "fund", "nova"}, more...)), &wire)
		if wire.Error.Code != api.Invalid || wire.Error.Message != `expected "<amount>"` || !strings.Contains(wire.Error.Next, "anima agent fund --help") {
			t.Errorf("a wrong command line as JSON: %+v", wire.Error)
		}
	}
	m.fails(exitUsage, "", []string{"agent", "fund", "nova", "--", "-1"}, "not an amount")
	m.fails(exitNotFound, "", []string{"agent", "fund", "ghost", "1"}, "ghost")
	m.cli("agent", "fund", "Nova", "$0.25", "--id", "monday")
	if out := m.cli("agent", "fund", "nova", "0.25", "--id", "monday"); !strings.Contains(out, "nova has $0.25 now") {
		t.Errorf("one deposit given twice: %s", out)
	}
	m.fails(exitConflict, "", []string{"agent", "fund", "nova", "3", "--id", "monday"})
	var funded struct{ Balance api.Balance }
	one(t, m.cli("agent", "fund", "nova", "1", "-o", "json"), &funded)
	if funded.Balance.Available != 1_250_000 {
		t.Errorf("the balance is %+v, want $1.25", funded.Balance)
	}

	wake := asked[api.Wake](m, "agent", "wake", "Nova", "--reason", "rise")
	if wake.Agent != "nova" || wake.Reason != "rise" {
		t.Errorf("the wake is %+v", wake)
	}
	watched := m.watch("nova-main", "loop_end")
	if !strings.Contains(watched, "awake") {
		t.Errorf("the wake made no run:\n%s", watched)
	}
}

// watch follows a session until an event of the given name appears, then interrupts the
// command.
func (m *machine) watch(session, name string, args ...string) string {
	m.t.Helper()
	ctx, cancel := context.WithTimeout(m.t.Context(), patience)
	defer cancel()
	out := &stopAt{text: name, stop: cancel}
	var errs bytes.Buffer
	code := run(ctx, append([]string{"session", "events", session, "--watch"}, args...), m.app(nil, out, &errs))
	if code != exitOK || !strings.Contains(out.String(), name) {
		m.t.Fatalf("exit %d\n%s%s", code, out, &errs)
	}
	return out.String()
}

func write(t testing.TB, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func num(n uint64) string { return strconv.FormatUint(n, 10) }

func ids(all api.Agents) string {
	var out []string
	for _, g := range all.Agents {
		out = append(out, g.ID)
	}
	return strings.Join(out, " ")
}

func TestSessionCommands(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.up()

	out := m.cli("session", "send", "Lucky", "work", "please")
	for _, want := range []string{"→ write_file", "← write_file ok", "→ exec", "← exec ok: 3", "Counted: 3", "3 turns"} {
		if !strings.Contains(out, want) {
			t.Errorf("send says\n%s\nwant %q", out, want)
		}
	}
	end := asked[api.LoopEnd](m, "session", "send", "lucky", "hello")
	if !end.Success || end.Response != "I read: hello" || end.Session != "lucky-main" {
		t.Errorf("the end is %+v", end)
	}
	piped := m.run("from a pipe", "session", "send", "lucky", "-")
	if piped.code != exitOK || !strings.Contains(piped.out, "from a pipe") {
		t.Errorf("from standard input: %+v", piped)
	}
	if out := m.cli("session", "send", "lucky", "paint"); strings.Contains(out, "\x1b") || !strings.Contains(out, "red") {
		t.Errorf("what the model wrote steers the terminal: %q", out)
	}

	// Sending twice with one id sends one message and returns the same end.
	once := asked[api.LoopEnd](m, "session", "send", "lucky", "hello", "--id", "monday")
	if twice := asked[api.LoopEnd](m, "session", "send", "lucky", "hello", "--id", "monday"); twice != once {
		t.Errorf("sent again: %+v, was %+v", twice, once)
	}
	own := asked[api.LoopEnd](m, "session", "send", "lucky", "hello", "--session", "new")
	if own.Session == "lucky-main" || !own.Success {
		t.Errorf("a new session: %+v", own)
	}

	m.fails(exitUsage, "", []string{"session", "send", "lucky", " "}, "empty")
	m.fails(exitUsage, "", []string{"session", "send", "lucky", strings.Repeat("x", api.MaxMessageBytes+1)}, "51201", "51200")
	m.fails(exitUsage, strings.Repeat("x", 10*api.MaxMessageBytes), []string{"session", "send", "lucky", "-"}, "51200")
	m.fails(exitUsage, "", []string{"session", "send", "lucky"})
	m.fails(exitUsage, "", []string{"session", "send", "lucky", "hi", "--mode", "shout"}, "queue")
	m.fails(exitNotFound, "", []string{"session", "send", "ghost", "hi"}, "no such agent")
	m.fails(exitNotFound, "", []string{"session", "send", "lucky", "hi", "--session", "ghost"}, "no such session")
	m.fails(exitFailed, "", []string{"session", "send", "lucky", "break", "--session", own.Session}, "status 400", "the message is the provider's")

	slow := asked[api.Accepted](m, "session", "send", "lucky", "slow", "--no-wait")
	m.fails(exitConflict, "", []string{"session", "send", "lucky", "hi", "--mode", "drop"}, "busy")
	m.fails(exitUnavailable, "", []string{"session", "send", "lucky", "hi", "--timeout", "1s"}, "did not end within 1s", "continues", "anima session watch lucky-main")
	interrupted, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var errs bytes.Buffer
	shown := &stopAt{text: "→ check_credits", stop: cancel}
	if code := run(interrupted, []string{"session", "send", "lucky", "slow", "--session", "new"}, m.app(nil, shown, &errs)); code != exitUnavailable || !strings.Contains(errs.String(), "interrupted; the run") {
		t.Errorf("interrupted: exit %d, %s", code, &errs)
	}
	if out := m.cli("session", "send", "lucky", "slow", "--no-wait"); !strings.Contains(out, "accepted as run") {
		t.Errorf("--no-wait says %q", out)
	}
	m.watch("lucky-main", slow.Run)

	sessions := asked[api.Sessions](m, "session", "list", "lucky")
	if len(sessions.Sessions) != 3 || len(asked[api.Sessions](m, "session", "list").Sessions) != 3 {
		t.Errorf("sessions are %+v, want 3", sessions)
	}
	if out := m.cli("session", "list"); !strings.Contains(out, "lucky-main") {
		t.Errorf("list says\n%s", out)
	}
}

// cliEvent is one line of the output of session events -o json.
type cliEvent struct {
	Seq   uint64          `json:"seq"`
	More  bool            `json:"more"`
	Event string          `json:"event"`
	Data  json.RawMessage `json:"data"`
}

func TestSessionHistory(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.up()
	if out := m.cli("session", "events", "lucky-main"); out != "" {
		t.Errorf("events of a session without any:\n%s", out)
	}
	m.cli("session", "send", "lucky", "work")
	m.cli("session", "send", "lucky", "hello")

	all := lines[cliEvent](t, m.cli("session", "events", "lucky-main", "-o", "json"))
	if n := len(all); n < 15 || all[0].Event != "loop_start" || all[n-1].Event != "loop_end" {
		t.Fatalf("%d events: %+v", n, all)
	}
	middle := len(all) / 2
	for all[middle].More {
		middle++
	}
	rest := lines[cliEvent](t, m.cli("session", "events", "lucky-main", "-o", "json", "--after", num(all[middle].Seq)))
	if diff := cmp.Diff(all[middle+1:], rest); diff != "" {
		t.Errorf("events after %d (-want +got):\n%s", all[middle].Seq, diff)
	}
	for i, e := range all[1:] {
		if before := all[i]; before.More != (before.Seq == e.Seq) {
			t.Errorf("event %d is %+v, and the next one %+v", i, before, e)
		}
	}
	if out := m.cli("session", "events", "lucky-main", "--after", num(all[len(all)-1].Seq)); out != "" {
		t.Errorf("events after the last:\n%s", out)
	}
	if watched := m.watch("lucky-main", `"event":"loop_end"`, "-o", "json"); !strings.HasPrefix(watched, `{"seq":`) {
		t.Errorf("--watch -o json says %q", watched)
	}
	if out := m.cli("session", "events", "lucky-main"); strings.Count(out, "\n") != len(all) {
		t.Errorf("%d lines, want %d:\n%s", strings.Count(out, "\n"), len(all), out)
	}

	// See docs/reference/context.md, Transcript format.
	raw := m.cli("session", "transcript", "lucky-main", "-o", "json")
	var roles []string
	for i, l := range lines[map[string]any](t, raw) {
		roles = append(roles, l["role"].(string))
		for _, k := range []string{"seq", "content", "timestamp", "turn"} {
			if _, ok := l[k]; !ok {
				t.Errorf("line %d has no %s: %v", i, k, l)
			}
		}
	}
	if diff := cmp.Diff([]string{"user", "assistant", "tool", "assistant", "tool", "assistant", "user", "assistant"}, roles); diff != "" {
		t.Errorf("roles (-want +got):\n%s", diff)
	}
	if out := m.cli("session", "transcript", "lucky-main"); !strings.Contains(out, "user: work") || !strings.Contains(out, "→ exec") {
		t.Errorf("the transcript is\n%s", out)
	}
	m.fails(exitNotFound, "", []string{"session", "transcript", "ghost"}, "no such session")
	m.fails(exitNotFound, "", []string{"session", "events", "ghost"}, "no such session")
	m.fails(exitNotFound, "", []string{"session", "events", "ghost", "--watch"}, "no such session")

	turns := asked[api.Turns](m, "turn", "list", "lucky")
	if len(turns.Turns) != 4 || len(asked[api.Turns](m, "turn", "list", "--limit", "2").Turns) != 2 {
		t.Fatalf("turns are %+v, want 4", turns)
	}
	first := turns.Turns[3]
	if got := asked[api.Turn](m, "turn", "show", first.ID); got.ID != first.ID || len(got.Calls) != 1 || len(got.Trace) != 32 {
		t.Errorf("the first turn is %+v", got)
	}
	if out := m.cli("turn", "show", first.ID); !strings.Contains(out, "write_file") || !strings.Contains(out, first.Trace) {
		t.Errorf("show says\n%s", out)
	}
	if out := m.cli("turn", "output", first.ID, "0"); out != strings.TrimSpace(first.Calls[0].Result)+"\n" || len(out) < 3 {
		t.Errorf("the output of the first call is %q", out)
	}
	m.fails(exitNotFound, "", []string{"turn", "output", first.ID, "7"}, "no call 7", "turn show")
	m.fails(exitNotFound, "", []string{"turn", "output", "ghost", "0"}, "no such turn")
	if out := m.cli("turn", "list"); !strings.Contains(out, first.ID) {
		t.Errorf("list says\n%s", out)
	}
	m.fails(exitNotFound, "", []string{"turn", "show", "ghost"}, "no such turn")
	m.fails(exitUsage, "", []string{"turn", "list", "--limit", "100000"}, "1 to 1000")

	if got := asked[api.Replayed](m, "turn", "replay", first.ID); !got.Same || got.Steps < 3 || got.Owners != 1 {
		t.Errorf("replayed: %+v", got)
	}
	if out := m.cli("turn", "replay", first.ID); !strings.Contains(out, "the same") {
		t.Errorf("replayed:\n%s", out)
	}
	if got := asked[replays](m, "turn", "replay", "--agent", "Lucky"); got.Turns != 4 || len(got.Differences) != 0 || got.Skipped != 0 {
		t.Errorf("all replayed: %+v", got)
	}
	if out := m.cli("turn", "replay", "--run", first.Run, "--limit", "1"); !strings.Contains(out, "1 turns, ") || !strings.Contains(out, " 0 different") {
		t.Errorf("a run's replayed:\n%s", out)
	}
	if out := m.cli("turn", "replay", first.ID, "--fork", "--policy"); !strings.Contains(out, "write_file") || !strings.Contains(out, "ALLOWED") {
		t.Errorf("forked:\n%s", out)
	}
	genesis := filepath.Join(t.TempDir(), "genesis.md")
	if err := os.WriteFile(genesis, []byte("Be somebody else."), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := asked[api.Forked](m, "turn", "replay", first.ID, "--fork", "--prompt", genesis); got.Forked.Cost <= 0 || got.Forked.Model == "" {
		t.Errorf("forked with another genesis: %+v", got)
	}
	m.fails(exitNotFound, "", []string{"turn", "replay", "ghost"}, "no such turn")
	m.fails(exitNotFound, "", []string{"turn", "replay", "--agent", "ghost"}, "no turn to replay", "anima turn list")
	m.fails(exitUsage, "", []string{"turn", "replay"}, "no turn is named", "--agent")
	m.fails(exitUsage, "", []string{"turn", "replay", first.ID, "--model", "m"}, "--fork")
	m.fails(exitUsage, "", []string{"turn", "replay", "--agent", "lucky", "--fork"}, "one turn")
	m.fails(exitUsage, "", []string{"turn", "replay", first.ID, "--fork"}, "the fork changes nothing")
}

func TestMoneyAndPolicyCommands(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.up()
	m.born("Nova")
	m.cli("session", "send", "lucky", "forbidden")

	balances := asked[[]api.Balance](m, "ledger", "balance")
	if len(balances) != 2 || balances[0].Available >= 5*api.Dollar || balances[1].Available != api.Dollar {
		t.Errorf("balances are %+v", balances)
	}
	if got := asked[[]api.Balance](m, "ledger", "balance", "Nova"); len(got) != 1 || got[0].Agent != "nova" {
		t.Errorf("the balance is %+v", got)
	}
	if out := m.cli("ledger", "balance"); !strings.Contains(out, "$1.00") {
		t.Errorf("balance says\n%s", out)
	}
	m.fails(exitNotFound, "", []string{"ledger", "balance", "ghost"}, "ghost")

	entries := asked[api.Entries](m, "ledger", "entries")
	if len(entries.Entries) < 4 || entries.More {
		t.Errorf("entries are %+v", entries)
	}
	page := asked[api.Entries](m, "ledger", "entries", "--limit", "1", "--after", num(uint64(entries.Entries[0].Seq)))
	if len(page.Entries) != 1 || page.Entries[0].ID != entries.Entries[1].ID || !page.More {
		t.Errorf("the second entry is %+v", page)
	}
	if out := m.cli("ledger", "entries", "--limit", "1"); !strings.Contains(out, "… more: --after ") {
		t.Errorf("entries says\n%s", out)
	}
	if got := asked[api.Entries](m, "ledger", "entries", "nova"); len(got.Entries) != 1 || got.Entries[0].Kind != "deposit" {
		t.Errorf("entries of nova are %+v", got)
	}
	if v := asked[api.LedgerReport](m, "ledger", "verify"); !v.OK || v.Transactions != int64(len(entries.Entries)) {
		t.Errorf("verify says %+v", v)
	}
	first := asked[api.Entries](m, "ledger", "entries", "nova").Entries[0]
	if v := asked[[]api.BalanceAt](m, "ledger", "balance", "nova", "--seq", num(uint64(first.Seq))); len(v) != 1 || v[0].Seq != first.Seq || v[0].Available != api.Dollar {
		t.Errorf("balance after the first transaction: got %+v", v)
	}
	if v := asked[[]api.BalanceAt](m, "ledger", "balance", "nova", "--at", "2000-01-01"); len(v) != 1 || v[0].Seq != 0 || v[0].Available != 0 {
		t.Errorf("balance before the first transaction: got %+v", v)
	}
	m.fails(exitUsage, "", []string{"ledger", "balance", "--at", "soon"}, "soon")
	wantExport(t, m, entries.Entries)
	report := asked[ledgerReport](m, "ledger", "report")
	if len(report.Agents) != 2 || len(report.Members) != 2 || report.Turns == 0 || report.BurnPerHour <= 0 || len(report.Buckets) != 24 {
		t.Errorf("report: got %+v", report)
	}
	if one := asked[ledgerReport](m, "ledger", "report", "lucky"); len(one.Outcomes) == 0 || one.Profit >= 0 {
		t.Errorf("report of lucky: got %+v", one)
	}
	if out := m.cli("ledger", "report", "lucky", "--since", "7d", "--parts", "7"); !strings.Contains(out, "█") || !strings.Contains(out, "runway") {
		t.Errorf("report says\n%s", out)
	}
	if out := m.cli("ledger", "report", "lucky", "--csv", "--parts", "3"); strings.Count(out, "\n") != 4 {
		t.Errorf("report as CSV: got\n%s", out)
	}
	if out := m.cli("ledger", "verify"); !strings.Contains(out, "0 active holds") {
		t.Errorf("verify says\n%s", out)
	}

	if rules := asked[api.Rules](m, "policy", "rules"); len(rules.Rules) == 0 || rules.Version == "" {
		t.Errorf("rules are %+v", rules)
	}
	if out := m.cli("policy", "rules"); !strings.Contains(out, "PRIORITY") {
		t.Errorf("rules says\n%s", out)
	}
	decisions := asked[api.Decisions](m, "policy", "decisions", "Lucky")
	if len(decisions.Decisions) != 1 || decisions.Decisions[0].Action != api.Deny || decisions.Decisions[0].Tool != "exec" {
		t.Fatalf("decisions are %+v, want one refusal", decisions)
	}
	turn := decisions.Decisions[0].Turn
	if got := asked[api.Decisions](m, "policy", "decisions", "--turn", turn, "--limit", "5"); len(got.Decisions) != 1 {
		t.Errorf("decisions of the turn are %+v", got)
	}
	if out := m.cli("policy", "decisions"); !strings.Contains(out, "FORBIDDEN_COMMAND") {
		t.Errorf("decisions says\n%s", out)
	}
	models := asked[api.Models](m, "model", "list")
	if len(models.Models) == 0 {
		t.Error("no models")
	}
	if out := m.cli("model", "list"); !strings.Contains(out, "anima-sim-1") || !strings.Contains(out, "yes") {
		t.Errorf("model list says\n%s", out)
	}
	route := asked[api.Route](m, "model", "route", "Lucky", "--explain")
	if route.Chosen != "anima-sim-1" || route.Available <= 0 || len(route.Candidates) == 0 {
		t.Errorf("the route is %+v", route)
	}
	if out := m.cli("model", "route", "--tier", "normal", "--model", "gpt-9", "--explain"); !strings.Contains(out, "no: not registered") || !strings.Contains(out, "not considered") {
		t.Errorf("model route says\n%s", out)
	}
	m.fails(exitUnavailable, "", []string{"model", "route", "--tier", "dead", "--model", "anima-sim-1", "--explain"}, "no model")
	m.fails(exitUsage, "", []string{"model", "route"}, "--tier")
	m.cli("model", "add", "sim-two", "--in", "2", "--out", "8", "--reasoning", "9", "--window", "64000")
	added := asked[api.Model](m, "model", "set-price", "sim-two", "--in", "2.5", "--out", "8")
	if added.PriceVersion != 2 || added.InputPrice != 2_500_000 || added.Lifecycle != api.LifeOperator {
		t.Errorf("the added model is %+v", added)
	}
	if out := m.cli("model", "refresh"); !strings.Contains(out, "sim-two") || !strings.Contains(out, "v2") || !strings.Contains(out, "operator") || !strings.Contains(out, "baseline") {
		t.Errorf("model refresh says\n%s", out)
	}
	if out := m.cli("model", "prices", "sim-two"); !strings.Contains(out, "in use") || !strings.Contains(out, "$9.00") {
		t.Errorf("model prices says\n%s", out)
	}
	m.fails(exitNotFound, "", []string{"model", "prices", "nosuch"}, "there is no model nosuch")
	m.fails(exitUsage, "", []string{"model", "prices", "--provider", "nosuch"}, "nosuch is not configured")
	m.cli("model", "remove", "sim-two")
	m.fails(exitNotFound, "", []string{"model", "remove", "sim-two"}, "there is no model sim-two")
	m.fails(exitUsage, "", []string{"model", "add", "x", "--in", "cheap", "--out", "1"}, "cheap")
	m.fails(exitUsage, "", []string{"model", "add", "x", "--provider", "nobody", "--in", "1", "--out", "1"}, "nobody is not configured", "simulated")
	matrix := m.cli("model", "matrix", "get", "-o", "json")
	file := filepath.Join(t.TempDir(), "matrix.json")
	if err := os.WriteFile(file, []byte(strings.Replace(matrix, `"gpt-5.3"`, `"anima-sim-1"`, 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	if out := m.cli("model", "matrix", "set", file); !strings.Contains(out, "revision") {
		t.Errorf("model matrix set says\n%s", out)
	}
	if out := m.cli("model", "matrix", "get"); !strings.Contains(out, "anima-sim-1") {
		t.Errorf("model matrix get says\n%s", out)
	}
	if got := asked[api.MatrixState](m, "model", "matrix", "reset"); !got.Builtin {
		t.Errorf("after a reset the matrix is %+v", got)
	}
	m.fails(exitUsage, `{"matrix":[{"tier":"rich"}]}`, []string{"model", "matrix", "set", "-"}, "this is not a tier", `cell "high" "agent_turn": it is missing`)
	m.fails(exitUsage, `{"matriks":{}}`, []string{"model", "matrix", "set", "-"}, "matriks")
}

// TestFaucetOff checks that a deposit from the faucet is refused when the faucet is
// disabled.
func TestFaucetOff(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.env["ANIMA_TREASURY_FAUCET"] = "false"
	u := m.up()
	m.fails(exitDenied, "", []string{"agent", "fund", "lucky", "1"}, "faucet", "ANIMA_TREASURY_FAUCET")
	if !strings.Contains(u.log(), "the faucet is off") {
		t.Errorf("up does not say why the first agent is poor:\n%s", u.log())
	}
}

func TestWithoutAnima(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	if got := asked[map[string]string](m, "version"); got["version"] != host.Version() {
		t.Errorf("the version is %v", got)
	}
	if out := m.cli("version"); out != "anima "+host.Version()+"\n" {
		t.Errorf("version says %q", out)
	}
	for _, args := range [][]string{
		{"agent", "list"},
		{"agent", "explain", "lucky"},
		{"agent", "sleep", "lucky"},
		{"run", "get", "r1"},
		{"session", "cancel", "r1"},
		{"session", "terminate", "s"},
		{"session", "export", "s"},
		{"session", "send", "lucky", "hi"},
		{"session", "events", "lucky-main"},
		{"session", "watch", "lucky"},
		{"chat", "lucky"},
		{"ledger", "balance"},
		{"model", "list"},
	} {
		m.fails(exitUnavailable, "", args, "no anima is running", m.data(), "anima up")
	}
	var wire struct{ Error api.Error }
	one(t, m.fails(exitUnavailable, "", []string{"agent", "list", "-o", "json"}), &wire)
	if wire.Error.Code != api.Unavailable || wire.Error.Next == "" {
		t.Errorf("the error as JSON is %+v", wire)
	}
	m.fails(exitUsage, "", []string{"agnet", "list"}, "agnet", `did you mean "agent"`)
	m.fails(exitUsage, "", []string{"agent", "list", "--nope"}, "--nope")
	m.fails(exitUsage, "", []string{"agent", "list", "-o", "yaml"}, "text", "json")

	help := m.cli("--help")
	for _, want := range []string{"Examples:", "anima session send lucky", "Exit codes:", "ledger verify", "ANIMA_DATA"} {
		if !strings.Contains(help, want) {
			t.Errorf("help says\n%s\nwant %q", help, want)
		}
	}
	for _, cmd := range [][]string{
		{"init"},
		{"up"},
		{"chat"},
		{"session", "watch"},
		{"agent", "apply"},
		{"agent", "explain"},
		{"agent", "sleep"},
		{"agent", "fund"},
		{"run", "get"},
		{"session", "send"},
		{"session", "events"},
		{"session", "cancel"},
		{"session", "terminate"},
		{"session", "export"},
		{"session", "import"},
		{"model", "route"},
		{"model", "matrix", "set"},
		{"model", "list"},
		{"model", "add"},
		{"model", "set-price"},
		{"model", "remove"},
	} {
		if out := m.cli(append(cmd, "--help")...); !strings.Contains(out, "anima "+strings.Join(cmd, " ")) || !strings.Contains(out, "Examples:") {
			t.Errorf("help of %v says\n%s", cmd, out)
		}
	}
	for _, shell := range []string{"bash", "zsh", "fish"} {
		if out := m.cli("completion", shell, "-c"); !strings.Contains(out, "anima") || !strings.Contains(out, "complete") {
			t.Errorf("completion of %s is %q", shell, out)
		}
	}
}

// TestCompletion checks that the shell completion covers every command and the values of
// flags.
func TestCompletion(t *testing.T) {
	t.Parallel()
	a := newMachine(t).app(nil, &bytes.Buffer{}, &bytes.Buffer{})
	all, err := kongcompletion.Command(a.parser(t.Context(), func(int) {}), a.predictors(t.Context()))
	if err != nil {
		t.Fatal(err)
	}
	names := func(c complete.Command) []string { return slices.Sorted(maps.Keys(c.Sub)) }
	for of, want := range map[string]string{
		"agent": "apply delete explain fund get list model sleep wake", "budget": "approvals approve get refuse set",
		"model": "add list matrix prices refresh remove route set-price", "run": "get", "turn": "list output replay show",
		"session": "cancel create events export get import list reset send terminate transcript watch",
	} {
		if got := strings.Join(names(all.Sub[of]), " "); got != want {
			t.Errorf("commands of %s are %q, want %q", of, got, want)
		}
	}
	if got := strings.Join(names(all), " "); !strings.HasPrefix(got, "agent budget chain chat completion context demo doctor goal heartbeat help init key ledger memory model payment policy") {
		t.Errorf("commands are %q", got)
	}
	predict, ok := all.Sub["session"].Sub["send"].GlobalFlags["--mode"]
	if !ok || predict == nil {
		t.Fatalf("nothing completes --mode: %v", all.Sub["session"].Sub["send"].GlobalFlags)
	}
	modes := predict.Predict(complete.Args{})
	slices.Sort(modes)
	if got := strings.Join(modes, " "); got != "collect drop interrupt queue steer" {
		t.Errorf("modes are %q", got)
	}
	for _, f := range []string{"--name", "--genesis", "--genesis-file", "--creator", "--message", "--force", "--yes"} {
		if _, ok := all.Sub["init"].GlobalFlags[f]; !ok {
			t.Errorf("init has no %s to complete", f)
		}
	}
}

// TestCompletionOfNames completes names of agents and sessions as the scripts for the shells
// do: bash and zsh give the words as arguments, fish gives none. It is not parallel, because
// the library reads the environment of the process.
func TestCompletionOfNames(t *testing.T) {
	m := newMachine(t)
	m.up()
	for line, want := range map[string]string{
		"anima ses":                              "session",
		"anima session watch luc":                "lucky lucky-main",
		"anima ledger transfer lucky luc":        "lucky",
		"anima session send lucky --session luc": "lucky-main",
		"anima turn replay --agent luc":          "lucky",
		"anima help ses":                         "session",
		"anima help session imp":                 "import",
	} {
		t.Setenv("COMP_LINE", line)
		m.env["COMP_LINE"] = line
		words := strings.Fields(line)
		for shell, args := range map[string][]string{"bash": {"anima", words[len(words)-1], words[len(words)-2]}, "fish": nil} {
			r := m.run("", args...)
			got := strings.Fields(r.out)
			slices.Sort(got)
			if r.code != exitOK || r.err != "" || strings.Join(slices.Compact(got), " ") != want {
				t.Errorf("%q in %s: exit %d, %q, %q, want %q", line, shell, r.code, r.out, r.err, want)
			}
		}
	}
}

func TestPrintError(t *testing.T) {
	t.Parallel()
	var errs bytes.Buffer
	a := &app{Err: &errs}
	cause := &api.Error{Code: api.Denied, Message: "no\x1b[2J", Details: []string{"one"}, Next: "ask"}
	a.printError(errors.Join(errors.New("first"), cause))
	if got, want := errs.String(), "anima: first\nno\uFFFD[2J\n  one\nask\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestExitCodes checks that only the end of a run has the codes of incomplete completions: a
// service refuses other requests for the same reasons.
func TestExitCodes(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		err  error
		want int
	}{
		{runError(api.LoopEnd{Reason: api.ReasonTimeout}), exitTimeout},
		{runError(api.LoopEnd{Reason: api.FinishEmpty}), exitEmpty},
		{runError(api.LoopEnd{Reason: api.ReasonDayLimit}), exitFailed},
		{&api.Error{Code: api.Unavailable, Reason: api.ReasonTimeout}, exitUnavailable}, // of turn replay --fork
		{errors.New("no code"), exitFailed},
	} {
		if got := exitCode(tt.err); got != tt.want {
			t.Errorf("%v: exit code %d, want %d", tt.err, got, tt.want)
		}
	}
}

func TestReach(t *testing.T) {
	t.Parallel()
	for addr, want := range map[string]string{
		"": "", "127.0.0.1:80": "http://127.0.0.1:80", "[::]:8080": "http://127.0.0.1:8080", "0.0.0.0:1": "http://127.0.0.1:1", "[::1]:2": "http://[::1]:2",
	} {
		if got := localURL(addr); got != want {
			t.Errorf("reach(%q) is %q, want %q", addr, got, want)
		}
	}
}

// wantExport checks that the exports in both formats have the given transactions.
func wantExport(t *testing.T, m *machine, want []api.Posted) {
	t.Helper()
	lines := 0
	for _, e := range want {
		lines += len(e.Postings)
	}
	file := filepath.Join(t.TempDir(), "ledger.csv")
	if got := asked[ledgerExported](m, "ledger", "export", "-f", file); got != (ledgerExported{len(want), file}) {
		t.Errorf("export to a file: got %+v, want %d transactions in %s", got, len(want), file)
	}
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	rows, err := csv.NewReader(bytes.NewReader(data)).ReadAll()
	if err != nil || len(rows) != lines+1 || rows[1][4] != want[0].Agent || rows[1][7] != strconv.FormatInt(int64(want[0].Postings[0].Amount), 10) || rows[len(rows)-1][12] != want[len(want)-1].Hash {
		t.Errorf("export as CSV: got %q, %v, want a header and %d lines of %d transactions", rows, err, lines, len(want))
	}
	m.fails(exitNotFound, "", []string{"ledger", "export", "--agent", "nva", "-f", file}, "nva")
	if kept := readFile(t, file); kept != string(data) {
		t.Errorf("an export of an agent that does not exist has replaced the file: %q", kept)
	}
	m.fails(exitUsage, "", []string{"ledger", "export", "-f", filepath.Join(t.TempDir(), "none", "ledger.csv")}, "no such file or directory", "that you may write")
	var all []api.LedgerEntry
	if err := json.Unmarshal([]byte(m.cli("ledger", "export", "--format", "json", "--agent", "Nova", "--since", "2000-01-01")), &all); err != nil || len(all) != 1 || all[0].Lines[1].Balance != api.Dollar {
		t.Errorf("export of nova as JSON: got %+v, %v, want its deposit with the balance after it", all, err)
	}
	if all := asked[[]api.LedgerEntry](m, "ledger", "export"); len(all) != len(want) {
		t.Errorf("export with -o json: got %d transactions, want %d", len(all), len(want))
	}
	if out := m.cli("ledger", "export", "--format", "csv", "-o", "json"); !strings.HasPrefix(out, "seq,") {
		t.Errorf("export with the format csv: got %q", out)
	}
	if out := m.cli("ledger", "export", "--format", "json", "--until", "2000-01-01"); strings.TrimSpace(out) != "[\n]" {
		t.Errorf("empty export: got %q", out)
	}
}

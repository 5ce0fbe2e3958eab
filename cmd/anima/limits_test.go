package main

import (
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/anima-run/anima/pkg/api"
)

// nextSet matches the command in the Next of a refusal that changes the limit.
var nextSet = regexp.MustCompile(`anima (budget set [a-z]+ --[a-z-]+ \S+) changes this one; docs/runbooks/limits\.md`)

// raise runs the command that a refusal names, with values for its placeholders.
func (r *running) raise(next string) {
	r.t.Helper()
	m := nextSet.FindStringSubmatch(next)
	if m == nil {
		r.t.Fatalf("next: got %q, want the command that changes the limit", next)
	}
	r.cli(strings.Fields(strings.NewReplacer(
		"DOLLARS", map[bool]string{true: "0", false: "100"}[strings.Contains(m[1], "--reserve")],
		"NUMBER", "1000", "DURATION", "none", "PAYEE,PAYEE", "agent:ghost,agent:taker",
	).Replace(m[1]))...)
}

// refusedRun sends a message whose run must fail, and returns the end of the run.
func (r *running) refusedRun(agent, text string) (end api.LoopEnd) {
	r.t.Helper()
	got := r.run("", "session", "send", agent, text, "-o", "json")
	all := lines[cliEvent](r.t, got.out)
	if got.code != exitFailed || len(all) == 0 {
		r.t.Fatalf("send to %s: exit %d, want %d\n%s%s", agent, got.code, exitFailed, got.out, got.err)
	}
	one(r.t, string(all[len(all)-1].Data), &end)
	return end
}

// limited returns how often treasury has refused a payment for a limit.
func (r *running) limited() (n int) {
	r.t.Helper()
	for line := range strings.Lines(get(r.t, r.Ops+"/metrics", nil).body) {
		if strings.HasPrefix(line, "anima_treasury_limited_total{") {
			v, err := strconv.Atoi(line[strings.LastIndexByte(line, ' ')+1 : len(line)-1])
			if err != nil {
				r.t.Fatal(err)
			}
			n += v
		}
	}
	return n
}

// TestBudgetSetLists checks that the words none and default are no entries of an
// allow-list: none allows everything, also where the configuration has a list.
func TestBudgetSetLists(t *testing.T) {
	t.Parallel()
	var none []string
	for _, tt := range []struct{ values, want []string }{
		{none, []string{"was"}},
		{[]string{"none"}, []string{"*"}},
		{[]string{"default"}, none},
		{[]string{"agent:bob", "0xab"}, []string{"agent:bob", "0xab"}},
	} {
		l := api.Limits{Payees: []string{"was"}, Domains: []string{"was"}, Assets: []string{"was"}, Facilitators: []string{"was"}}
		if err := (&budgetSetCmd{Payee: tt.values, Domain: tt.values, Asset: tt.values, Facilitator: tt.values}).change(&l); err != nil {
			t.Errorf("%q: %v", tt.values, err)
		}
		if diff := cmp.Diff(api.Limits{Payees: tt.want, Domains: tt.want, Assets: tt.want, Facilitators: tt.want}, l); diff != "" {
			t.Errorf("%q (-want +got):\n%s", tt.values, diff)
		}
	}
	for _, values := range [][]string{{"none", "agent:bob"}, {"agent:bob", "default"}} {
		if err := (&budgetSetCmd{Payee: values}).change(&api.Limits{}); exitCode(err) != exitUsage {
			t.Errorf("%q: got %v, want exit code %d", values, err, exitUsage)
		}
	}
}

// TestBudgetSetNothing checks that a command that would change no limit fails, because a
// variable of the shell may be empty.
func TestBudgetSetNothing(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.up()
	for _, flags := range [][]string{{"--day", ""}, {"--payee", ""}, {"--reserve", ""}, {"--parent="}, {"--hour", "5", "--payments", ""}} {
		name, _, _ := strings.Cut(flags[len(flags)-1], "=")
		if name == "" {
			name = flags[len(flags)-2]
		}
		m.fails(exitUsage, "", append([]string{"budget", "set", "lucky"}, flags...), name+" is empty")
	}
	m.fails(exitUsage, "", []string{"budget", "set", "lucky", "-o", "json"}, "no limit is named")
	m.cli("budget", "set", "lucky", "--reset")
}

// TestLimitsStopRuns checks each limit that can refuse a model call as its users see it:
// the run ends once, with the reason and the command that changes the limit, on the command
// line, over HTTP and for callers with a key. After this command the session goes on.
func TestLimitsStopRuns(t *testing.T) {
	t.Parallel()
	u := newMachine(t).up()
	u.born("Parent")
	key := asked[createdKey](u.machine, "key", "create", "lucky")
	for _, tt := range []struct {
		reason, flag, value string
		http                int // status of a model call by key; a caller without a turn has no limit of turns
	}{
		{api.ReasonCallLimit, "--call", "0", http.StatusPaymentRequired},
		{api.ReasonTurnLimit, "--turn", "0", 0},
		{api.ReasonSessionLimit, "--session", "inference=0", 0},
		{api.ReasonHourLimit, "--hour", "0", http.StatusPaymentRequired},
		{api.ReasonDayLimit, "--day", "inference=0", http.StatusPaymentRequired},
		{api.ReasonVelocity, "--payments", "hour.inference=0", http.StatusPaymentRequired},
		{api.ReasonLineageLimit, "--lineage", "0", http.StatusPaymentRequired},
	} {
		u.cli("budget", "set", "lucky", "--reset", tt.flag, tt.value)
		before := u.limited()
		r := u.run("", "session", "send", "lucky", "hello")
		if r.code != exitFailed || !strings.Contains(r.err, `agent "lucky" cannot pay $`) || !strings.Contains(r.err, "anima budget get lucky shows the limits") {
			t.Errorf("%s: send: exit %d, %q; want exit %d, the cause and the next command", tt.reason, r.code, r.err, exitFailed)
		}
		if r := u.run("hello\n", "chat", "lucky"); r.code != exitFailed || !nextSet.MatchString(r.err) {
			t.Errorf("%s: chat: exit %d, %q; want exit %d and the next command", tt.reason, r.code, r.err, exitFailed)
		}
		var sent api.Accepted
		one(t, u.call(http.MethodPost, "/v1/sessions/lucky-main/messages", `{"content":"hello"}`, nil), &sent)
		events := u.watch("lucky-main", `"runId":"`+sent.Run+`","sessionId":"lucky-main","agent":"lucky","success":false`)
		var run api.RunState
		one(t, u.call(http.MethodGet, "/v1/runs/"+sent.Run, "", nil), &run)
		if run.Success || run.Code != api.Denied || run.Reason != tt.reason || run.Outcome != api.OutcomeConsumed {
			t.Errorf("%s: run: got %+v, want it refused", tt.reason, run)
		}
		if n := strings.Count(events, "loop_start {\"runId\":\""+sent.Run); n != 1 {
			t.Errorf("%s: the run began %d times, want once", tt.reason, n)
		}
		// A call is tried with fewer output tokens, and not otherwise: three holds at most.
		if n := u.limited() - before; n < 3 || n > 9 {
			t.Errorf("%s: %d holds were refused for three runs, want 3 to 9", tt.reason, n)
		}
		if out := u.cli("run", "get", sent.Run); !nextSet.MatchString(out) || !strings.Contains(out, tt.reason) {
			t.Errorf("%s: run get:\n%s\nwant the reason and the next command", tt.reason, out)
		}
		if tt.http != 0 {
			got := request(t, http.MethodPost, u.HTTP+"/v1/chat/completions", `{"model":"anima-sim-1","messages":[{"role":"user","content":"hello"}]}`,
				map[string]string{"Authorization": key.Key, "Content-Type": "application/json"})
			if got.status != tt.http || !strings.Contains(got.body, tt.reason) || got.header.Get("X-Should-Retry") != "false" {
				t.Errorf("%s: by key: %d %s, want %d and no retry", tt.reason, got.status, got.body, tt.http)
			}
		}
		u.raise(run.Next)
		if r := u.run("", "session", "send", "lucky", "again"); r.code != exitOK || !strings.Contains(r.out, "again") {
			t.Errorf("%s: after the limit was raised: exit %d\n%s%s", tt.reason, r.code, r.out, r.err)
		}
	}

	// A limit of the parent is the parent's to change.
	u.cli("budget", "set", "lucky", "--reset", "--parent", "parent")
	u.cli("budget", "set", "parent", "--lineage", "0")
	end := u.refusedRun("lucky", "hello")
	if !strings.Contains(end.Next, "anima budget set parent --lineage DOLLARS") {
		t.Errorf("lineage of the parent: got next %q, want the parent's", end.Next)
	}
	u.raise(end.Next)
	u.cli("session", "send", "lucky", "hello")
}

// TestLimitsRefuseTransfers checks each limit that can refuse a transfer: the model gets
// the reason and what to do, its run goes on, and the transfer is made after the limit was
// changed, the cooldown has passed, or the payment was approved.
func TestLimitsRefuseTransfers(t *testing.T) {
	t.Parallel()
	u := newMachine(t).up()
	if r := u.run("---\nname: Giver\ntools: [transfer_credits]\n---\nBe generous.\n", "agent", "apply", "-"); r.code != exitOK {
		t.Fatal(r.err)
	}
	u.cli("agent", "fund", "giver", "100")
	taker := u.born("Taker")
	give := func(to api.Agent) string { return u.cli("session", "send", "giver", "give "+to.Address+" a dollar") }
	gave := func(when, out string) {
		t.Helper()
		if !strings.Contains(out, "ok: gave $1.00") {
			t.Errorf("%s: got\n%s\nwant a transfer", when, out)
		}
	}
	gave("without own limits", give(taker))
	for _, tt := range []struct{ reason, flag, value, says string }{
		{api.ReasonReserve, "--reserve", "99", "must leave the reserve of $99.00"},
		{api.ReasonCooldown, "--cooldown", "1h", "the last transfer was made less than 1h0m0s ago (wait "},
		{api.ReasonVelocity, "--payments", "day.transfer=0", "0 payments in a day for transfer"},
		{api.ReasonPayee, "--payee", "agent:ghost", `"agent:taker" is not on its allow-list`},
		{api.ReasonTurnLimit, "--turn", "transfer=0.5", "$0.50 for a turn for transfer"},
	} {
		u.cli("budget", "set", "giver", "--reset", tt.flag, tt.value)
		out := give(taker)
		if !strings.Contains(out, "denied: agent") || !strings.Contains(out, tt.says) {
			t.Errorf("%s: got\n%s\nwant %q", tt.reason, out, tt.says)
		}
		u.raise(out)
		gave(tt.reason+", raised", give(taker))
	}

	fresh := u.born("Fresh")
	u.cli("budget", "set", "giver", "--reset", "--new-payee", "0.5")
	out := give(fresh)
	if !strings.Contains(out, `first payment to "agent:fresh" may be at most $0.50`) {
		t.Errorf("new payee: got\n%s", out)
	}
	u.raise(out)
	gave("new payee, raised", give(fresh))

	u.cli("budget", "set", "giver", "--reset", "--approve-above", "0.5")
	id := regexp.MustCompile(`after anima budget approve (approval-[0-9a-f]+), repeat`).FindStringSubmatch(give(taker))
	if id == nil {
		t.Fatal("the refusal names no approval")
	}
	u.cli("budget", "approve", id[1])
	gave("approved", give(taker))
	if out := give(taker); !strings.Contains(out, "needs the creator's approval") {
		t.Errorf("a second payment after one approval: got\n%s", out)
	}

	// A cooldown that has passed needs no command.
	u.cli("budget", "set", "giver", "--reset", "--cooldown", "1s")
	for end := time.Now().Add(patience); ; {
		if out = give(taker); strings.Contains(out, "ok: gave $1.00") {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("after the cooldown: got\n%s", out)
		}
	}
}

// TestLimitedAgentSleeps checks an autonomous agent whose hour is spent: it sleeps until
// the hour frees and makes no run before, and after the limit was raised a wake continues
// its session.
func TestLimitedAgentSleeps(t *testing.T) {
	t.Parallel()
	u := newMachine(t).up()
	if r := u.run("---\nname: Nova\nautonomy: true\n---\nBe useful.\n", "agent", "apply", "-"); r.code != exitOK {
		t.Fatal(r.err)
	}
	u.cli("agent", "fund", "nova", "1")
	u.cli("budget", "set", "nova", "--payments", "hour.inference=1")
	u.cli("session", "send", "nova", "hello")
	end := u.refusedRun("nova", "and now?")
	if end.Reason != api.ReasonVelocity || !strings.HasPrefix(end.Next, "wait ") {
		t.Errorf("end: got %+v, want the limit of payments, and to wait for the hour", end)
	}
	g := asked[api.Agent](u.machine, "agent", "get", "nova")
	if wait := time.Until(time.UnixMicro(g.SleepUntil)); g.State != api.StateSleeping || wait < 50*time.Minute || wait > time.Hour {
		t.Errorf("agent: got %s for %s, want it asleep for an hour", g.State, wait)
	}
	u.raise(end.Next)
	u.cli("agent", "wake", "nova", "--reason", "the limit is raised")
	if out := u.watch("nova-main", "I read: and now?"); strings.Count(out, "loop_start {") != 3 {
		t.Errorf("events:\n%s\nwant three runs: two messages and the wake", out)
	}
}

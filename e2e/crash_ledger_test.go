package e2e

import (
	"crypto/ed25519"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/anima-run/anima/pkg/api"
)

// calls checks that an effect has an intent and an intent has a decision, each of them
// once.
func (o *oracle) calls(l life) {
	who := l.agent.ID
	decided := map[string]api.Decision{}
	for _, d := range l.decisions {
		key := d.Turn + "." + strconv.Itoa(d.Index)
		if other, twice := decided[key]; twice {
			o.fault("%s: call %s was decided twice, %s and %s", who, key, other.ID, d.ID)
		}
		decided[key] = d
	}
	intents := map[string]string{}
	var keys []ed25519.PublicKey
	for _, k := range found(asked[api.Keys](o.ctx, o.w.world, api.ListKeys{}))(o).Keys {
		keys = append(keys, k)
	}
	for _, m := range l.journal() {
		var j api.Journal
		o.decode(m, &j)
		var entry struct {
			Intent *struct {
				Index           int
				Decision, Token string
			}
			Result *struct {
				Index    int
				Decision string
				Action   api.Action
			}
		}
		if err := json.Unmarshal(j.Entry, &entry); err != nil {
			o.fault("%s: entry %d: %v", who, m.seq, err)
		}
		if i := entry.Intent; i != nil {
			key := fmt.Sprintf("%s.%d.%d", j.Run, j.Turn, i.Index)
			intents[key] = i.Decision
			if d := decided[key]; d.ID != i.Decision || d.Action != api.Allow {
				o.fault("%s: intent %s names decision %q, policy has %+v", who, key, i.Decision, d)
			}
			if g, err := api.VerifyGrant(i.Token, keys...); err != nil || g.Decision != i.Decision || g.Agent != who || g.Index != i.Index {
				o.fault("%s: intent %s holds the token %+v: %v", who, key, g, err)
			}
		}
		if r := entry.Result; r != nil && r.Decision != "" {
			key := fmt.Sprintf("%s.%d.%d", j.Run, j.Turn, r.Index)
			if d := decided[key]; d.ID != r.Decision || d.Action != r.Action {
				o.fault("%s: result %s says %s by decision %q, policy has %+v", who, key, r.Action, r.Decision, d)
			}
		}
	}
	ran, certain := 0, 0
	for _, t := range l.turns {
		for _, c := range t.Calls {
			key := t.ID + "." + strconv.Itoa(c.Index)
			d, known := decided[key]
			hash, err := api.ArgsHash(c.Arguments)
			switch {
			case c.Decision == "" && c.Outcome == api.OutcomeError: // the run ended before the call
			case !known || d.ID != c.Decision || d.Action != c.Action || d.Tool != c.Tool:
				o.fault("%s: call %s says %s %s by decision %s, policy has %+v", who, key, c.Tool, c.Action, c.Decision, d)
			case err != nil || d.ArgsHash != hash:
				o.fault("%s: call %s was decided with other arguments: %v", who, key, err)
			case c.Action == api.Allow && intents[key] != d.ID:
				o.fault("%s: call %s was made, and its intent names decision %q, not %s", who, key, intents[key], d.ID)
			}
			if c.Tool == "exec" && intents[key] != "" {
				ran++
				if c.Outcome == api.OutcomeOK {
					certain++
				}
			}
		}
	}
	data, err := os.ReadFile(filepath.Join(o.w.data, "loop", "workspaces", l.agent.ID, "ran.txt"))
	if err != nil && !os.IsNotExist(err) {
		o.fault("%s: %v", who, err)
	}
	if did := strings.Count(string(data), "ran"); did < certain || did > ran {
		o.fault("%s: the command left %d marks, want %d to %d", who, did, certain, ran)
	}
}

// sums checks that the cost of a turn was paid once, that there is no other payment and
// no remaining hold, and that the sums of session and ledger agree.
func (o *oracle) sums(l life) {
	who := l.agent.ID
	var cost api.Micros
	questions, left := abandoned(l)
	paid := map[string]api.Micros{}
	active := 0
	for _, e := range l.entries {
		var sum api.Micros
		for _, p := range e.Postings {
			sum += p.Amount
			if strings.HasPrefix(p.Account, "provider:") {
				paid[e.Turn] += p.Amount
			}
		}
		if sum != 0 {
			o.fault("%s: entry %s adds up to %s", who, e.ID, sum)
		}
		switch {
		case strings.HasSuffix(e.ID, "/hold"):
			active++
		case strings.HasSuffix(e.ID, "/settle"), strings.HasSuffix(e.ID, "/release"):
			active--
		}
	}
	if got, want := answers(l), thoughts(l); got != want {
		o.fault("%s: %d answers were paid for, and there are %d", who, got, want)
	}
	if active != questions {
		o.fault("%s: %d more holds were made than ended", who, active-questions)
	}
	for _, t := range l.turns {
		cost += t.Cost
		if paid[t.ID] != t.Cost {
			o.fault("%s: turn %s cost %s, and %s was paid for it", who, t.ID, t.Cost, paid[t.ID])
		}
		delete(paid, t.ID)
	}
	for _, g := range l.goals {
		spent := api.Micros(0)
		for _, question := range asking(g) {
			spent += paid[question]
			delete(paid, question)
		}
		cost += spent
		for _, s := range l.sessions {
			if slices.ContainsFunc(g.Tasks, func(t api.GoalTask) bool { return t.Session == s.id }) {
				spent += costOf(s.turns)
			}
		}
		if g.Spent != spent {
			o.fault("%s: %s was spent on it, and it says %s", g.ID, spent, g.Spent)
		}
	}
	for t, m := range paid {
		o.fault("%s: %s was paid for %q, which is no turn", who, m, t)
	}
	if b := l.balance; b.Available+left+cost != l.money || b.Held != left {
		o.fault("%s: of %s are left %s, held %s, and the turns cost %s", who, l.money, b.Available, b.Held, cost)
	}
	for _, s := range l.sessions {
		got := found(asked[api.Session](o.ctx, o.w.world, api.GetSession{Session: s.id}))(o)
		if want := costOf(s.turns); got.Turns != int64(len(s.turns)) || got.Cost != want {
			o.fault("%s: the session has %d turns for %s, want %d for %s", s.id, got.Turns, got.Cost, len(s.turns), want)
		}
	}
}

func costOf(turns []api.Turn) (sum api.Micros) {
	for _, t := range turns {
		sum += t.Cost
	}
	return sum
}

// answers counts the settlements of completions. It excludes those that no run received,
// of whose turns only the cost is stored, and those that the router broke off.
func answers(l life) (n int) {
	for _, e := range l.entries {
		paid := slices.IndexFunc(e.Postings, func(p api.Posting) bool { return strings.HasPrefix(p.Account, "provider:") })
		if paid < 0 || !strings.HasSuffix(e.ID, "/settle") || e.Memo == api.MemoBroken {
			continue
		}
		if !slices.ContainsFunc(l.turns, func(t api.Turn) bool { return t.ID == e.Turn && t.Model == "" && t.Cost == e.Postings[paid].Amount }) {
			n++
		}
	}
	return n
}

// thoughts counts the completions: of turns, and of model calls for goals.
func thoughts(l life) (n int) {
	for _, t := range l.turns {
		if t.Model != "" {
			n++
		}
	}
	for _, g := range l.goals {
		n += len(asking(g))
		if g.Status == api.GoalCancelled {
			n -= unanswered(l, asking(g))
		}
	}
	return n
}

// unanswered counts the model calls for a cancelled goal of which only broken attempts were
// paid: a call that fails after the goal was cancelled is not repeated.
func unanswered(l life, calls []string) (n int) {
	broken, answered := map[string]bool{}, map[string]bool{}
	for _, e := range l.entries {
		if strings.HasSuffix(e.ID, "/settle") {
			broken[e.Turn] = broken[e.Turn] || e.Memo == api.MemoBroken
			answered[e.Turn] = answered[e.Turn] || e.Memo != api.MemoBroken
		}
	}
	for _, id := range calls {
		if broken[id] && !answered[id] {
			n++
		}
	}
	return n
}

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/anima-run/anima/pkg/api"
)

// oracle checks the invariants of the crash matrix from outside: by the streams, by the
// stores through requests, and by the files that tools wrote. It is the same for every
// case.
type oracle struct {
	w      *crashWorld
	ctx    context.Context //nolint:containedctx // of one check
	faults []string
	ledger *announced // from its beginning; nil: not read yet
}

// life holds an agent and all records of its work.
type life struct {
	agent     api.Agent
	money     api.Micros // the deposit
	sessions  []session  // the agent's own sessions and that of each task
	goals     []api.Goal // with all details, oldest first
	turns     []api.Turn // of all sessions, oldest first
	decisions []api.Decision
	entries   []api.Posted
	balance   api.Balance
}

// session holds the records of one session.
type session struct {
	id      string
	turns   []api.Turn
	journal []told
	events  []told // events of the journal's entries, and published events
}

// events returns the events of all sessions.
func (l life) events() (all []told) {
	for _, s := range l.sessions {
		all = append(all, s.events...)
	}
	return all
}

// journal returns the journal entries of all sessions.
func (l life) journal() (all []told) {
	for _, s := range l.sessions {
		all = append(all, s.journal...)
	}
	return all
}

func (o *oracle) fault(format string, args ...any) {
	o.faults = append(o.faults, fmt.Sprintf(format, args...))
}

// look reads the records of an agent.
func (o *oracle) look(a api.Agent, money api.Micros) life {
	l := life{agent: a, money: money}
	l.turns = found(asked[api.Turns](o.ctx, o.w.world, api.ListTurns{Agent: a.ID, Limit: 1000}))(o).Turns
	slices.Reverse(l.turns)
	l.goals = found(o.w.goals(o.ctx, a.ID))(o)
	ids := sessionsOf(a, l.goals)
	if slices.ContainsFunc(l.turns, func(t api.Turn) bool { return t.Session == a.Mail }) {
		ids = append(ids, a.Mail)
	}
	for _, id := range ids {
		s := session{id: id}
		for _, t := range l.turns {
			if t.Session == id {
				s.turns = append(s.turns, t)
			}
		}
		var err error
		if s.journal, s.events, err = o.w.told(o.ctx, id); err != nil {
			o.fault("cannot be read: %v", err)
		}
		l.sessions = append(l.sessions, s)
	}
	l.decisions = found(asked[api.Decisions](o.ctx, o.w.world, api.ListDecisions{Agent: a.ID, Limit: 1000}))(o).Decisions
	l.entries = o.entries(a)
	l.balance = found(asked[api.Balance](o.ctx, o.w.world, api.GetBalance{Agent: a.ID}))(o)
	return l
}

// entries returns the transactions of an agent.
func (o *oracle) entries(a api.Agent) (all []api.Posted) {
	for after := int64(0); ; {
		page := found(asked[api.Entries](o.ctx, o.w.world, api.ListEntries{Agent: a.ID, After: after, Limit: 200}))(o)
		all = append(all, page.Entries...)
		if !page.More || len(page.Entries) == 0 {
			return all
		}
		after = page.Entries[len(page.Entries)-1].Seq
	}
}

// found returns the answer of a request that must succeed in a world at rest, or reports
// a fault.
func found[T any](v T, err error) func(*oracle) T {
	return func(o *oracle) T {
		if err != nil {
			o.fault("cannot be read: %v", err)
		}
		return v
	}
}

// judge checks all rules for an agent.
func (o *oracle) judge(l life) {
	for _, s := range l.sessions {
		o.writers(s)
		o.fates(s)
		o.transcript(s)
	}
	o.quiet(l)
	o.calls(l)
	o.sums(l)
	o.wakes(l)
	o.announced(l)
	o.pursued(l)
	o.remembered(l)
	o.kept(l)
}

// writers checks that the journal had one writer at a time. Every entry names the
// previous one and was appended after it. Epochs never decrease; an epoch belongs to one
// owner and is the sequence of the entry before its first one, plus one. The first entry
// of an epoch begins, ends or releases a run; no entry of the epoch follows an end or a
// release. No step of a turn occurs twice.
func (o *oracle) writers(s session) {
	who := s.id
	var last, epoch uint64
	var run, owner, kind string
	step := map[string]bool{}
	for _, m := range s.journal {
		var j api.Journal
		if err := api.Decode(m.data, &j); err != nil {
			o.fault("%s: journal at %d: %v", who, m.seq, err)
			continue
		}
		if want := fmt.Sprintf("journal/%s/%d/%d", j.Run, j.Epoch, last); m.id != want || j.Last != last {
			o.fault("%s: journal entry %d (%s, epoch %d) has the id %q and was not written on top of %d", who, m.seq, j.Kind, j.Epoch, m.id, last)
		}
		switch {
		case j.Epoch < epoch:
			o.fault("%s: journal entry %d is of epoch %d, after one of epoch %d", who, m.seq, j.Epoch, epoch)
		case j.Epoch > epoch && j.Kind != api.EntryBegin && j.Kind != api.EntryEnd && j.Kind != api.EntryRelease:
			o.fault("%s: epoch %d begins with %s", who, j.Epoch, j.Kind)
		case j.Epoch > epoch && j.Epoch != last+1:
			o.fault("%s: epoch %d begins on top of %d", who, j.Epoch, last)
		case j.Epoch == epoch && (j.Run != run || j.Owner != owner):
			o.fault("%s: epoch %d has two owners, %s of run %s and %s of run %s", who, j.Epoch, owner, run, j.Owner, j.Run)
		case j.Epoch == epoch && (kind == api.EntryEnd || kind == api.EntryRelease):
			o.fault("%s: epoch %d goes on with %s after %s", who, epoch, j.Kind, kind)
		}
		key := j.Kind + " of " + j.Run + "." + strconv.Itoa(j.Turn)
		switch j.Kind {
		case api.EntryBegin, api.EntryJoined, api.EntryRelease: // may occur repeatedly
			key = ""
		case api.EntryEnd: // once for a run, in any of its turns
			key = j.Kind + " of " + j.Run
		case api.EntryIntent, api.EntryResult:
			key = strconv.Itoa(o.indexOf(m, j)) + " " + key
		}
		if key != "" && step[key] {
			o.fault("%s: %s is in the journal twice", who, key)
		}
		step[key] = true
		last, epoch, run, owner, kind = m.seq, j.Epoch, j.Run, j.Owner, j.Kind
	}
	if kind != "" && kind != api.EntryEnd && kind != api.EntryRelease {
		o.fault("%s: the journal ends with %s of run %s, and does not free the session", who, kind, run)
	}
	for _, t := range s.turns {
		if t.Model != "" && !step["thought of "+t.ID] {
			o.fault("%s: turn %s has no thought in the journal", who, t.ID)
		}
	}
}

// indexOf returns the index within the turn of the call of an intent or result.
func (o *oracle) indexOf(m told, j api.Journal) int {
	var e struct{ Intent, Result *struct{ Index int } }
	if err := json.Unmarshal(j.Entry, &e); err != nil {
		o.fault("%s: journal at %d: %v", j.Session, m.seq, err)
	}
	if e.Intent != nil {
		return e.Intent.Index
	}
	if e.Result != nil {
		return e.Result.Index
	}
	o.fault("%s: journal at %d has neither intent nor result, and is a %s", j.Session, m.seq, j.Kind)
	return -1
}

// fates checks that every run that began has one end, that its turns are stored in order
// without gaps, and that no message of the session is queued.
func (o *oracle) fates(s session) {
	who := s.id
	starts, ends, fate := map[string]int{}, map[string]int{}, map[string]api.LoopEnd{}
	for _, m := range s.events {
		switch m.name {
		case "loop_start":
			var e api.LoopStart
			o.decode(m, &e)
			starts[e.Run]++
		case "loop_end":
			var e api.LoopEnd
			o.decode(m, &e)
			ends[e.Run]++
			fate[e.Run] = e
		}
	}
	numbers := map[string]int{}
	for _, t := range s.turns {
		if numbers[t.Run]++; t.Number != numbers[t.Run] {
			o.fault("%s: turn %s is the run's number %d", who, t.ID, numbers[t.Run])
		}
		if t.Trace == "" {
			o.fault("%s: turn %s names no trace", who, t.ID)
		}
	}
	for run := range starts {
		if ends[run] == 0 {
			o.fault("%s: run %s started and has no end", who, run)
		}
	}
	for run, end := range fate {
		ran := end.Outcome == api.OutcomeConsumed
		if ends[run] != 1 || ran != (starts[run] == 1) || ran != (numbers[run] > 0) || starts[run] > 1 {
			o.fault("%s: run %s, %s, has %d starts, %d ends and %d turns", who, run, end.Outcome, starts[run], ends[run], numbers[run])
		}
		st := found(asked[api.RunState](o.ctx, o.w.world, api.GetRun{Run: run}))(o)
		switch {
		case st.Status != api.RunEnded || st.Outcome != end.Outcome || st.Success != end.Success || st.Into != end.Into:
			o.fault("%s: run %s is %+v, and was announced as %+v", who, run, st, end)
		case st.Success == st.Cancelled:
			o.fault("%s: run %s: cancelled %t, success %t: %s", who, run, st.Cancelled, st.Success, st.Error)
		}
	}
	if waiting := found(o.w.read(o.ctx, "LOOP_CMD", "anima.loop.cmd.run.v1."+s.id))(o); len(waiting) > 0 {
		o.fault("%s: %d messages are still in the queue", who, len(waiting))
	}
}

// quiet checks that no lock of the agent's session or goals is left and that no attempt
// at a task is queued.
func (o *oracle) quiet(l life) {
	names := []string{l.agent.ID}
	for _, g := range l.goals {
		names = append(names, g.ID)
		if waiting := found(o.w.read(o.ctx, "LOOP_CMD", "anima.loop.cmd.task.v1."+g.ID))(o); len(waiting) > 0 {
			o.fault("%s: %d attempts are still in the queue", g.ID, len(waiting))
		}
	}
	for _, name := range names {
		// A redelivered message is examined again under the lock. Of 64 stopped owners,
		// 47 did so when they continued, 3 of them after the world was at rest.
		var keys []string
		until(o.ctx, 500*time.Millisecond, func() bool {
			keys = found(o.w.keys(o.ctx, name))(o)
			return len(keys) == 0
		})
		if len(keys) > 0 {
			o.fault("%s: keys are left: %v", name, keys)
		}
	}
}

// transcript checks that every call of an assistant's line is answered by the tool lines
// that follow it, and by no other lines (docs/reference/platform.md, lost calls).
func (o *oracle) transcript(s session) {
	who := s.id
	open := map[string]bool{}
	calls := 0
	var seq int64
	for _, line := range o.lines(s.id) {
		if line.Seq <= seq {
			o.fault("%s: transcript line %d follows %d", who, line.Seq, seq)
		}
		seq = line.Seq
		if line.Role == "tool" {
			if !open[line.ToolCallID] {
				o.fault("%s: transcript line %d answers %q, which no call has", who, line.Seq, line.ToolCallID)
			}
			delete(open, line.ToolCallID)
			continue
		}
		if len(open) > 0 {
			o.fault("%s: before transcript line %d calls are not answered: %v", who, line.Seq, open)
		}
		for _, c := range line.ToolCalls {
			open[c.ID] = true
			calls++
		}
	}
	want := 0
	for _, t := range s.turns {
		want += len(t.Calls)
	}
	if len(open) > 0 || calls != want {
		o.fault("%s: the transcript has %d calls, the turns %d; not answered: %v", who, calls, want, open)
	}
}

// lines returns all lines of a transcript.
func (o *oracle) lines(session string) (all []api.TranscriptLine) {
	for after := int64(0); ; after = all[len(all)-1].Seq {
		page := found(asked[api.Transcript](o.ctx, o.w.world, api.GetTranscript{Session: session, After: after}))(o)
		all = append(all, page.Lines...)
		if !page.More || len(page.Lines) == 0 {
			return all
		}
	}
}

// woken counts the announcements of each cause, and the runs that wakes began: those for
// mail, and all others.
func (o *oracle) woken(l life) (causes map[string]int, runs, mails int) {
	causes = map[string]int{}
	for _, m := range found(o.w.read(o.ctx, "HEARTBEAT_EVT", "anima.heartbeat.evt.wake_requested.v1."+l.agent.ID))(o) {
		var e api.WakeRequested
		o.decode(m, &e)
		causes[e.Wake.Cause]++
	}
	ran := map[api.RunKind]map[string]bool{api.RunWake: {}, api.RunMail: {}}
	for _, m := range l.events() {
		if m.name == "loop_start" {
			var e api.LoopStart
			if o.decode(m, &e); ran[e.Kind] != nil {
				ran[e.Kind][e.Run] = true
			}
		}
	}
	return causes, len(ran[api.RunWake]), len(ran[api.RunMail])
}

// wakes checks that a cause is announced once and begins one run. A run for mail
// processes all messages of a sender, so there may be fewer of those runs, and at least
// one.
func (o *oracle) wakes(l life) {
	who := l.agent.ID
	causes, runs, mails := o.woken(l)
	inbox := inboxes(causes)
	for cause, n := range causes {
		if n != 1 {
			o.fault("%s: wake %s was announced %d times", who, cause, n)
		}
	}
	if runs != len(causes)-inbox || mails > inbox || inbox > 0 && mails == 0 {
		o.fault("%s: %d causes (%v) made %d runs and %d for mail", who, len(causes), causes, runs, mails)
	}
}

// inboxes counts the causes that are mail.
func inboxes(causes map[string]int) (n int) {
	for cause := range causes {
		if strings.HasPrefix(cause, "inbox-") {
			n++
		}
	}
	return n
}

// announced checks that every event of a run is in the stream once, and so are the
// decisions, the transactions and the paid completions.
func (o *oracle) announced(l life) {
	who := l.agent.ID
	ids := map[string]int{}
	count := map[string]int{}
	broken := map[string]bool{} // cancelled runs: some of their events are never published
	for _, m := range l.events() {
		ids[m.id]++
		if m.name == "loop_error" {
			var e api.LoopError
			o.decode(m, &e)
			broken[e.Run] = true
		}
	}
	for _, m := range l.events() {
		var e struct {
			Run  string         `json:"runId"`
			Fate api.RunOutcome `json:"fate"`
		}
		if o.decode(m, &e); !broken[e.Run] && (e.Fate == "" || e.Fate == api.OutcomeConsumed) {
			count[m.name]++
		}
	}
	for id, n := range ids {
		if n > 1 || id == "" {
			o.fault("%s: the event %q is there %d times", who, id, n)
		}
	}
	turns, calls, made := 0, 0, 0
	for _, t := range l.turns {
		if broken[t.Run] {
			continue
		}
		turns++
		calls += len(t.Calls)
		for _, c := range t.Calls {
			if c.Action == api.Allow {
				made++
			}
		}
	}
	want := map[string]int{
		"loop_context": turns, "loop_execute": turns, "loop_persist": turns, "tool_start": made, "tool_end": calls,
		"loop_start": count["loop_end"],
	}
	for name, n := range want {
		if count[name] != n {
			o.fault("%s: %d events %s, want %d", who, count[name], name, n)
		}
	}
	states := o.changes(l)
	for i, c := range states {
		if c.Seq != states[0].Seq+int64(i) || i > 0 && c.Previous != states[i-1].State {
			o.fault("%s: change %d of its state is %d, from %s to %s, after %s", who, i+1, c.Seq, c.Previous, c.State, states[max(0, i-1)].State)
		}
	}
	if o.ledger == nil {
		o.ledger = &announced{}
		if err := o.ledger.read(o.ctx, o.w); err != nil {
			o.ledger.fault = "it cannot be read: " + err.Error()
		}
	}
	if len(o.ledger.of[l.agent.ID]) > len(l.entries) { // the hold of a canceled call was made and ended meanwhile
		l.entries = o.entries(l.agent)
	}
	if o.ledger.fault != "" {
		o.fault("%s: the announced ledger: %s", who, o.ledger.fault)
	} else if diff := cmp.Diff(l.entries, o.ledger.of[l.agent.ID]); diff != "" {
		o.fault("%s: its transactions are announced otherwise than they are (-kept +announced):\n%s", who, diff)
	}
}

// announced is what is read of the announced ledger. It continues where the last read ended,
// because a world announces many thousand transactions.
type announced struct {
	next  uint64 // sequence in the stream
	last  api.Posted
	of    map[string][]api.Posted // by agent
	fault string                  // the first gap in the ledger, or repeated transaction
}

func (a *announced) blame(format string, args ...any) {
	if a.fault == "" {
		a.fault = fmt.Sprintf(format, args...)
	}
}

// read reads what was announced since the last read.
func (a *announced) read(ctx context.Context, w *crashWorld) error {
	batches, err := w.readFrom(ctx, "TREASURY_EVT", api.PostedBatch{}.Subject().String(), max(1, a.next))
	if err != nil {
		return err
	}
	for _, m := range batches {
		var b api.PostedBatch
		if err := api.Decode(m.data, &b); err != nil {
			return err
		}
		a.add(m.seq, b)
		a.next = m.seq + 1
	}
	return nil
}

func (a *announced) add(seq uint64, b api.PostedBatch) {
	if n := len(b.Entries); n == 0 || b.First != b.Entries[0].Seq || b.Last != b.Entries[n-1].Seq {
		a.blame("message %d of the ledger has %d transactions, from %d to %d", seq, n, b.First, b.Last)
	}
	if a.of == nil {
		a.of = map[string][]api.Posted{}
	}
	for _, e := range b.Entries {
		if e.Seq != a.last.Seq+1 || a.last.Hash != "" && e.Previous != a.last.Hash {
			a.blame("transaction %d (%s) is announced after %d (%s)", e.Seq, e.ID, a.last.Seq, a.last.ID)
		}
		a.last = e
		var agents []string
		for _, p := range e.Postings {
			for _, kind := range []string{"agent:", "held:"} {
				if agent, ok := strings.CutPrefix(p.Account, kind); ok && !slices.Contains(agents, agent) {
					agents = append(agents, agent)
				}
			}
		}
		for _, agent := range agents {
			a.of[agent] = append(a.of[agent], e)
		}
	}
}

// changes returns the announced changes of an agent's state. A change that a run made may
// be announced again by the owner that resumes the run, with the same content.
func (o *oracle) changes(l life) (all []api.AgentChanged) {
	said := found(o.w.read(o.ctx, "LOOP_EVT", "anima.loop.evt.agent_state.v1."+l.agent.ID))(o)
	for _, m := range l.journal() {
		said = append(said, found(m.expand(api.AgentChanged{Agent: l.agent.ID}.Subject()))(o)...)
	}
	for _, m := range said {
		var e api.AgentChanged
		o.decode(m, &e)
		all = append(all, e)
	}
	slices.SortStableFunc(all, func(a, b api.AgentChanged) int { return int(a.Seq - b.Seq) })
	return slices.Compact(all)
}

func (o *oracle) decode(m told, v any) {
	if err := api.Decode(m.data, v); err != nil {
		o.fault("%s at %d: %v", m.subject, m.seq, err)
	}
}

// rest waits until no work is in progress for some agents: their runs have ended, the
// durables have no message left to acknowledge, and every outbox is empty.
func (w *crashWorld) rest(ctx context.Context, runs map[string]int, agents ...api.Agent) (why string) {
	until(ctx, 90*time.Second, func() bool {
		why = w.busy(ctx, runs, agents)
		return why == ""
	})
	return why
}

func (w *crashWorld) busy(ctx context.Context, runs map[string]int, agents []api.Agent) string {
	ctx, cancel := context.WithTimeout(ctx, time.Minute) // an hour of chaos leaves thousands of messages
	defer cancel()
	for _, a := range agents {
		ended := 0
		for _, session := range []string{a.Session, a.Mail} {
			ends, err := w.named(ctx, session, "loop_end")
			if err != nil {
				return fmt.Sprintf("the ends of %s cannot be read: %v", session, err)
			}
			ended += len(ends)
			waiting, err := w.read(ctx, "LOOP_CMD", "anima.loop.cmd.run.v1."+session)
			if err != nil || len(waiting) > 0 {
				return fmt.Sprintf("%s has %d messages: %v", session, len(waiting), err)
			}
		}
		if ended < runs[a.ID] {
			return fmt.Sprintf("%s has ended %d runs of %d", a.ID, ended, runs[a.ID])
		}
		keys, err := w.keys(ctx, a.ID)
		if err != nil || len(keys) > 0 {
			return fmt.Sprintf("%s has the keys %v: %v", a.ID, keys, err)
		}
		goals, err := w.goals(ctx, a.ID)
		if err != nil {
			return fmt.Sprintf("the goals of %s cannot be read: %v", a.ID, err)
		}
		for _, g := range goals {
			if why := w.pursuing(ctx, g); why != "" {
				return why
			}
		}
	}
	if why, err := w.idle(ctx); err != nil || why != "" {
		return fmt.Sprint(why, err)
	}
	o := &oracle{w: w, ctx: ctx}
	for _, a := range agents {
		l := o.look(a, 0)
		causes, runs, mails := o.woken(l)
		if len(causes) < runs+mails || len(causes)-inboxes(causes) > runs {
			return fmt.Sprintf("%s ran %d wakes and %d are announced", a.ID, runs+mails, len(causes))
		}
		if _, left := abandoned(l); l.balance.Held != left {
			return fmt.Sprintf("%s is held of %s", l.balance.Held-left, a.ID)
		}
		if err := w.announced.read(ctx, w); err != nil {
			return fmt.Sprintf("the announced ledger cannot be read: %v", err)
		}
		memories, err := asked[api.Memories](ctx, w.world, api.ListMemory{Agent: a.ID, Tier: api.MemoryEpisodic, Limit: 1000})
		if err != nil || len(memories.Memories) < min(len(l.turns), 1000) {
			return fmt.Sprintf("%s remembers %d of %d turns: %v", a.ID, len(memories.Memories), len(l.turns), err)
		}
		if n := len(w.announced.of[a.ID]); n < len(l.entries) {
			return fmt.Sprintf("of %s are announced %d of %d postings", a.ID, n, len(l.entries))
		}
	}
	if len(o.faults) > 0 {
		return o.faults[0]
	}
	return ""
}

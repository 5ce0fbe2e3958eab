package engine_test

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"testing"

	"github.com/anima-run/anima/pkg/api"

	"github.com/anima-run/anima/services/loop/internal/engine"
	"github.com/anima-run/anima/services/loop/internal/engine/enginetest"
	"github.com/anima-run/anima/services/loop/internal/lifecycle"
)

// memStore is an implementation of engine.Store in memory. It passes [enginetest.RunStore].
type memStore struct {
	mu       sync.Mutex
	agents   map[string]*memAgent
	sessions map[string]*memSession
	cancels  map[string]string // by run
	runs     map[string]*memRun
	turns    []api.Turn

	compactions []engine.Compaction
	prompts     map[string]*engine.Reference
	texts       map[string]string
}

type memAgent struct {
	engine.Agent
	by      string
	seq     int64
	history map[string][]api.AgentChanged // by run
}

type memSession struct {
	journal  uint64
	counters api.Counters
	notice   string
}

type memRun struct {
	cmd   api.Run
	turns int
	cost  api.Micros
	input engine.Input
	end   *engine.End
}

// newStore returns a store with the agents, each with the sessions <id>-main and
// <id>-two.
func newStore(agents ...engine.Agent) *memStore {
	s := &memStore{
		agents: map[string]*memAgent{}, sessions: map[string]*memSession{}, cancels: map[string]string{}, runs: map[string]*memRun{},
		prompts: map[string]*engine.Reference{}, texts: map[string]string{},
	}
	for _, a := range agents {
		s.agents[a.ID] = &memAgent{Agent: a, seq: 1, history: map[string][]api.AgentChanged{}}
		s.sessions[a.ID+"-main"], s.sessions[a.ID+"-two"] = &memSession{}, &memSession{}
	}
	return s
}

// Known implements engine.Store.
func (s *memStore) Known(_ context.Context, cmd api.Run) (engine.Known, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	a, ok := s.agents[cmd.Agent]
	ss, there := s.sessions[cmd.Session]
	if !ok || !there {
		return engine.Known{}, api.Errorf(api.NotFound, "there is no agent %s or session %s", cmd.Agent, cmd.Session)
	}
	k := engine.Known{Agent: a.Agent, Journal: ss.journal, Counters: ss.counters, Notice: ss.notice, Cancelled: s.cancels[cmd.Run]}
	turns := s.positioned(cmd.Session)
	k.Last = int64(len(turns))
	if n := len(turns); n > 0 {
		k.Before, k.Latest = turns[n-1].EndedAt, turns[n-1].Run == cmd.Run
	}
	if r := s.runs[cmd.Run]; r != nil {
		k.Begun, k.Turns, k.Cost, k.Input = true, r.turns, r.cost, r.input
		for _, t := range s.turns {
			if t.Run == cmd.Run {
				k.Input.By = t.By
			}
		}
		if r.end != nil {
			end := *r.end
			k.Ended = &end
		}
	}
	return k, nil
}

// History implements [enginetest.Stores].
func (s *memStore) History(_ context.Context, session string, n int) ([]api.Turn, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []api.Turn
	for _, t := range s.turns {
		if t.Session == session {
			out = append(out, t)
		}
	}
	return out[max(0, len(out)-n):], nil
}

// move changes an agent's state if the transition is allowed. It returns nil otherwise.
func (a *memAgent) move(to api.AgentState, why string, sleep int64, run string, at int64) *api.AgentChanged {
	if !lifecycle.Allowed(a.State, to) || a.State == api.StateDead { // agents of this store are never funded
		return nil
	}
	a.seq++
	c := api.AgentChanged{
		Agent: a.ID, Name: a.Name, Address: a.Address, State: to, Previous: a.State, Reason: why, SleepUntil: sleep, Seq: a.seq, At: at,
	}
	a.State, a.by = to, run
	a.history[run] = append(a.history[run], c)
	return &c
}

// Started implements [enginetest.Stores].
func (s *memStore) Started(_ context.Context, cmd api.Run, in engine.Input, tier api.Tier, at int64) ([]api.AgentChanged, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	a, r := s.agents[cmd.Agent], s.runs[cmd.Run]
	switch {
	case r != nil && r.end != nil:
		return nil, api.Errorf(api.Conflict, "run %s is over", cmd.Run)
	case a.State == api.StateDead:
		return nil, api.Errorf(api.Denied, "the agent is dead")
	}
	if r == nil {
		s.runs[cmd.Run] = &memRun{cmd: cmd, input: in}
	}
	if a.by == cmd.Run {
		return slices.Clone(a.history[cmd.Run]), nil
	}
	return a.start(cmd, tier, at), nil
}

// Changes implements engine.Store.
func (s *memStore) Changes(_ context.Context, cmd api.Run) ([]api.AgentChanged, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.agents[cmd.Agent].history[cmd.Run]), nil
}

// start wakes an agent for a run and returns the changes.
func (a *memAgent) start(cmd api.Run, tier api.Tier, at int64) []api.AgentChanged {
	if lifecycle.Awake(a.State) || cmd.Kind == api.RunTask {
		return nil
	}
	why := "a message"
	if cmd.Kind == api.RunWake {
		why = "woken: " + cmd.Content
	}
	was := a.State
	a.move(api.StateWaking, why, 0, cmd.Run, at)
	a.move(lifecycle.StateAt(tier, was), why, 0, cmd.Run, at)
	return slices.Clone(a.history[cmd.Run])
}

// Persist implements engine.Store.
func (s *memStore) Persist(_ context.Context, rec *engine.Record, in engine.Input, end *engine.End) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := rec.Turn
	r := s.runs[t.Run]
	begins := r == nil
	if begins {
		r = &memRun{cmd: rec.Run, input: in}
	}
	there := slices.ContainsFunc(s.turns, func(o api.Turn) bool { return o.ID == t.ID })
	switch {
	case there && r.end == nil && end == nil:
		return nil
	case there && r.end != nil && end != nil && r.end.Turns == end.Turns:
		*end = *r.end
		return nil
	case there, r.end != nil:
		return api.Errorf(api.Conflict, "run %s went on otherwise", t.Run)
	case s.cancels[t.Run] != "" && (end == nil || end.Reason != api.ReasonCancelled):
		return engine.Cancelled(s.cancels[t.Run])
	}
	s.runs[t.Run] = r
	s.turns = append(s.turns, t)
	*s.sessions[t.Session] = memSession{journal: rec.Journal, counters: rec.Counters, notice: rec.Notice}
	if rec.Prompt != nil {
		s.prompts[t.ID] = rec.Prompt
	}
	r.turns++
	r.cost += t.Cost
	rec.Position = int64(len(s.positioned(t.Session)))
	a := s.agents[t.Agent]
	a.Turns++
	rec.Changed = nil
	if begins {
		rec.Changed = a.start(rec.Run, rec.Tier, cmp.Or(rec.Begun, t.StartedAt))
	}
	if end == nil {
		if c := a.move(t.State, "its tier", 0, t.Run, t.EndedAt); c != nil {
			rec.Changed = append(rec.Changed, *c)
		}
		return nil
	}
	end.Earlier = rec.Changed
	end.Changed = a.move(end.State, end.Why, end.Sleep, t.Run, end.At)
	stored := *end
	r.end = &stored
	return nil
}

// Drop implements engine.Store.
func (s *memStore) Drop(_ context.Context, end engine.End) (engine.End, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.runs[end.Run.Run]
	switch {
	case r == nil:
		r = &memRun{cmd: end.Run, input: end.Input}
		s.runs[end.Run.Run] = r
	case r.end == nil && end.Outcome == api.OutcomeExpired:
		return engine.End{}, api.Errorf(api.Conflict, "run %s has begun", end.Run.Run)
	}
	if r.end == nil {
		r.end = &end
	}
	return *r.end, nil
}

// Merge implements engine.Store.
func (s *memStore) Merge(ctx context.Context, into api.Run, merged []api.Run, at int64) error {
	for _, cmd := range merged {
		if _, err := s.Drop(ctx, engine.End{Run: cmd, Input: engine.Input{By: cmd.By}, Success: true, At: at, Outcome: api.OutcomeMerged, Into: into.Run}); err != nil {
			return err
		}
	}
	return nil
}

// Waits implements engine.Store.
func (s *memStore) Waits(_ context.Context, run string) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.runs[run]
	return s.cancels[run] == "" && (r == nil || r.end == nil), nil
}

// Cancel records the cancellation of a run that has no end.
func (s *memStore) Cancel(run, why string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r := s.runs[run]; r == nil || r.end == nil {
		s.cancels[run] = why
	}
}

// End returns a run's end, nil if there is none.
func (s *memStore) End(run string) *engine.End {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r := s.runs[run]; r != nil {
		return r.end
	}
	return nil
}

func TestStore(t *testing.T) {
	t.Parallel()
	enginetest.RunStore(t, func(*testing.T) enginetest.Stores {
		return newStore(engine.Agent{ID: "ada", State: api.StateSleeping}, engine.Agent{ID: "bob", State: api.StateSleeping})
	})
}

func TestContextStore(t *testing.T) {
	t.Parallel()
	enginetest.RunContext(t, func(*testing.T) enginetest.Stores {
		return newStore(engine.Agent{ID: "ada", State: api.StateSleeping}, engine.Agent{ID: "bob", State: api.StateSleeping})
	})
}

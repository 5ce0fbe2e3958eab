package turntest

import (
	"context"
	"slices"
	"sync"

	"github.com/anima-run/anima/pkg/api"

	"github.com/anima-run/anima/services/loop/internal/turn"
)

// Store is turn.Store in memory. It passes [RunStore].
type Store struct {
	mu       sync.Mutex
	agents   map[string]*agent
	journals map[string]uint64 // by session
	runs     map[string]*run
	turns    []api.Turn
	facts    map[string][]turn.Fact
}

type agent struct {
	turn.Agent
	before api.AgentState
	by     string
	seq    int64
	reason string
	sleep  int64
}

type run struct {
	turns int
	cost  api.Micros
	input turn.Input
	end   *turn.End
}

// NewStore returns a store with agents, each with the sessions <id>-main and
// <id>-two.
func NewStore(agents ...turn.Agent) *Store {
	s := &Store{agents: map[string]*agent{}, journals: map[string]uint64{}, runs: map[string]*run{}, facts: map[string][]turn.Fact{}}
	for _, a := range agents {
		s.agents[a.ID] = &agent{Agent: a, seq: 1}
		s.journals[a.ID+"-main"], s.journals[a.ID+"-two"] = 0, 0
	}
	return s
}

// Known implements turn.Store.
func (s *Store) Known(_ context.Context, cmd api.Run) (turn.Known, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	a, ok := s.agents[cmd.Agent]
	journal, there := s.journals[cmd.Session]
	if !ok || !there {
		return turn.Known{}, api.Errorf(api.NotFound, "there is no agent %s or session %s", cmd.Agent, cmd.Session)
	}
	k := turn.Known{Agent: a.Agent, Journal: journal}
	if r := s.runs[cmd.Run]; r != nil {
		k.Turns, k.Cost, k.Input = r.turns, r.cost, r.input
		if r.end != nil {
			end := *r.end
			k.Ended = &end
		}
	}
	return k, nil
}

// History implements turn.Store.
func (s *Store) History(_ context.Context, session string, n int) ([]api.Turn, error) {
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

func (a *agent) changed(previous api.AgentState, at int64) *api.AgentChanged {
	return &api.AgentChanged{
		Agent: a.ID, Name: a.Name, Address: a.Address, State: a.State, Previous: previous, Reason: a.reason,
		SleepUntil: a.sleep, Seq: a.seq, At: at,
	}
}

// Started implements turn.Store.
func (s *Store) Started(_ context.Context, cmd api.Run, at int64) (*api.AgentChanged, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	a, r := s.agents[cmd.Agent], s.runs[cmd.Run]
	switch {
	case r != nil && r.end != nil:
		return nil, api.Errorf(api.Conflict, "run %s is over", cmd.Run)
	case a.State == api.StateDead:
		return nil, api.Errorf(api.Denied, "the agent is dead")
	case a.State == api.StateRunning && a.by != cmd.Run:
		return nil, nil
	case a.State == api.StateRunning:
		return a.changed(a.before, at), nil
	}
	why := "a message"
	if cmd.Kind == api.RunWake {
		why = "woken: " + cmd.Content
	}
	a.before, a.by, a.reason, a.sleep = a.State, cmd.Run, why, 0
	a.State = api.StateRunning
	a.seq++
	return a.changed(a.before, at), nil
}

// Persist implements turn.Store.
func (s *Store) Persist(_ context.Context, rec *turn.Record, in turn.Input, end *turn.End) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := rec.Turn
	r := s.runs[t.Run]
	if r == nil {
		r = &run{input: in}
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
	}
	s.runs[t.Run] = r
	s.turns = append(s.turns, t)
	s.journals[t.Session] = rec.Journal
	r.turns++
	r.cost += t.Cost
	if end == nil {
		return nil
	}
	end.Changed = nil
	if a := s.agents[t.Agent]; a.State != api.StateDead {
		was := a.State
		a.State, a.reason, a.sleep = end.State, end.Why, end.Sleep
		a.seq++
		end.Changed = a.changed(was, end.At)
	}
	stored := *end
	r.end = &stored
	return nil
}

// Facts implements turn.Store.
func (s *Store) Facts(_ context.Context, agent string, n int) ([]turn.Fact, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.facts[agent][:min(n, len(s.facts[agent]))], nil
}

// Learn puts a fact before those an agent has.
func (s *Store) Learn(agent string, f turn.Fact) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.facts[agent] = append([]turn.Fact{f}, s.facts[agent]...)
}

package enginetest

import (
	"context"
	"crypto/ed25519"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/anima-run/anima/pkg/api"

	"github.com/anima-run/anima/services/loop/internal/engine"
)

// table is a map that is safe for concurrent use. The zero value is empty.
type table[V any] struct {
	mu sync.Mutex
	of map[string]V
}

// update replaces the value of a key; f gets the zero value for one that is not there.
func (t *table[V]) update(key string, f func(V) V) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.of == nil {
		t.of = map[string]V{}
	}
	t.of[key] = f(t.of[key])
}

// All returns a copy of the map.
func (t *table[V]) All() map[string]V {
	t.mu.Lock()
	defer t.mu.Unlock()
	return maps.Clone(t.of)
}

// Policy allows every call that Deny does not deny, and signs the grant. The arguments
// of a turn and index must not change.
type Policy struct {
	Deny func(api.Evaluate) string // returns the code of a denial; "" allows
	Bend func(*api.Grant)          // modifies a grant before it is signed
	Swap func(string) string       // modifies a token after it was signed
	TTL  time.Duration

	now func() time.Time
	key ed25519.PrivateKey

	mu     sync.Mutex
	asked  []api.Evaluate
	hashes map[string]string
}

func newPolicy(now func() time.Time) *Policy {
	return &Policy{
		Deny: func(api.Evaluate) string { return "" }, Bend: func(*api.Grant) {},
		Swap: func(token string) string { return token }, TTL: time.Minute,
		now: now, key: ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize)), hashes: map[string]string{},
	}
}

// Evaluate implements engine.Policy.
func (p *Policy) Evaluate(ctx context.Context, req api.Evaluate) (api.Decision, error) {
	return result(ctx, "evaluate", func() (api.Decision, error) {
		hash, err := api.ArgsHash(req.Args)
		if err != nil {
			return api.Decision{}, err
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		p.asked = append(p.asked, req)
		id := fmt.Sprintf("d-%s.%d", req.Turn, req.Index)
		if old, ok := p.hashes[id]; ok && old != hash {
			return api.Decision{}, api.Errorf(api.Conflict, "decided on other arguments")
		}
		p.hashes[id] = hash
		d := api.Decision{ID: id, Agent: req.Agent, Turn: req.Turn, Index: req.Index, Tool: req.Tool, ArgsHash: hash, By: req.By, Action: api.Allow, Code: "ALLOWED"}
		if code := p.Deny(req); code != "" {
			d.Action, d.Code, d.Message = api.Deny, code, "no"
			return d, nil
		}
		g := api.Grant{
			Decision: id, Agent: req.Agent, Turn: req.Turn, Index: req.Index, Tool: req.Tool, ArgsHash: hash, By: req.By,
			Expires: p.now().Add(p.TTL).UnixMicro(),
		}
		p.Bend(&g)
		token, err := g.Sign(p.key)
		d.Token = p.Swap(token)
		return d, err
	})
}

// Verify implements engine.Policy.
func (p *Policy) Verify(ctx context.Context, token string) (api.Grant, error) {
	return result(ctx, "verify", func() (api.Grant, error) {
		public, _ := p.key.Public().(ed25519.PublicKey)
		return api.VerifyGrant(token, public)
	})
}

// Asked returns all requests to Evaluate so far.
func (p *Policy) Asked() []api.Evaluate {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.asked)
}

// Inbox assigns its messages to the first run that claims them.
type Inbox struct {
	Messages []api.InboxMessage

	mu       sync.Mutex
	claimer  string
	settled  table[int]
	released table[int]
}

// Claim implements engine.Inbox.
func (i *Inbox) Claim(ctx context.Context, _, run, from string) ([]api.InboxMessage, error) {
	return result(ctx, "claim", func() ([]api.InboxMessage, error) {
		i.mu.Lock()
		defer i.mu.Unlock()
		if i.claimer == "" {
			i.claimer = run
		}
		if i.claimer != run {
			return nil, nil
		}
		var out []api.InboxMessage
		for _, m := range i.Messages {
			if from == "" || from == m.From {
				out = append(out, m)
			}
		}
		return out, nil
	})
}

// Settle implements engine.Inbox.
func (i *Inbox) Settle(ctx context.Context, _, run string, unanswered bool) error {
	return through(ctx, "settle", func() error {
		ended := &i.settled
		if unanswered {
			i.mu.Lock()
			defer i.mu.Unlock()
			if i.claimer == run {
				i.claimer = ""
			}
			ended = &i.released
		}
		ended.update(run, func(n int) int { return n + 1 })
		return nil
	})
}

// Released returns the number of times that a run released its messages.
func (i *Inbox) Released(run string) int { return i.released.All()[run] }

// Settled returns the number of times that a run settled its messages.
func (i *Inbox) Settled(run string) int { return i.settled.All()[run] }

// Treasury returns the same tier for all agents, and Err.
type Treasury struct {
	Tier api.Tier
	Err  error
	// Settling returns the cost and the hold of a turn, and whether its call is still
	// in progress; nil: no call is in progress.
	Settling func() (api.Spent, bool)

	// Sells returns whether a top-up brings credits; nil: none does.
	Sells func() bool

	router *Router // charges the calls
}

// TopUp implements engine.Topups.
func (t *Treasury) TopUp(ctx context.Context, _ string) bool {
	sold, _ := result(ctx, "topup", func() (bool, error) { return t.Sells != nil && t.Sells(), nil })
	return sold
}

// Spent implements engine.Treasury.
func (t *Treasury) Spent(ctx context.Context, _, turn string) (api.Spent, error) {
	return result(ctx, "spent", func() (api.Spent, error) {
		if t.Settling != nil {
			if s, going := t.Settling(); going {
				return s, t.Err
			}
		}
		return api.Spent{Paid: t.router.Spent(turn)}, t.Err
	})
}

// Balance implements engine.Treasury.
func (t *Treasury) Balance(ctx context.Context, agent string) (api.Balance, error) {
	return result(ctx, "balance", func() (api.Balance, error) {
		return api.Balance{Agent: agent, Tier: t.Tier}, t.Err
	})
}

// Effects records the effects of tool calls.
type Effects struct{ done table[[]string] }

func (e *Effects) add(tool, key string) {
	e.done.update(tool, func(keys []string) []string { return append(keys, key) })
}

// Of returns the keys of a tool's effects, in order.
func (e *Effects) Of(tool string) []string { return slices.Clone(e.done.All()[tool]) }

// Queue holds the queued runs of sessions and the functions that cancel running ones.
type Queue struct {
	mu      sync.Mutex
	waiting map[string][]api.Run               // by session
	cancel  map[string]context.CancelCauseFunc // by run in progress
	wanted  map[string]bool                    // messages in mode steer that were added since the last Waiting
}

// Waiting implements engine.Queue.
func (q *Queue) Waiting(ctx context.Context, cmd api.Run) ([]api.Run, error) {
	return result(ctx, "waiting", func() ([]api.Run, error) {
		q.mu.Lock()
		defer q.mu.Unlock()
		clear(q.wanted)
		return slices.Clone(q.waiting[cmd.Session]), nil
	})
}

// Watch implements engine.Queue.
func (q *Queue) Watch(cmd api.Run, cancel context.CancelCauseFunc) (steered func() bool, stop func()) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.cancel[cmd.Run] = cancel
	return func() bool {
			q.mu.Lock()
			defer q.mu.Unlock()
			return len(q.wanted) > 0
		}, func() {
			q.mu.Lock()
			defer q.mu.Unlock()
			delete(q.cancel, cmd.Run)
		}
}

// Add queues a message behind the current run.
func (q *Queue) Add(m api.Run) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.waiting[m.Session] = append(q.waiting[m.Session], m)
	if m.Mode == api.ModeSteer {
		q.wanted[m.Run] = true
	}
}

// Cancel cancels a run that is being executed.
func (q *Queue) Cancel(run string) {
	q.mu.Lock()
	cancel := q.cancel[run]
	q.mu.Unlock()
	if cancel != nil {
		cancel(engine.Cancelled(""))
	}
}

// Alarms stores the alarms that were set, by id.
type Alarms struct{ table[api.SetAlarm] }

// SetAlarm implements engine.Alarms.
func (a *Alarms) SetAlarm(ctx context.Context, m api.SetAlarm) (api.Alarm, error) {
	return result(ctx, "set alarm", func() (api.Alarm, error) {
		a.update(m.ID, func(api.SetAlarm) api.SetAlarm { return m })
		return api.Alarm{Agent: m.Agent, At: m.At}, nil
	})
}

// Outputs keeps outputs in memory, by call.
type Outputs struct {
	table[string]

	Err error // returned by every call; nil: none
}

// Keep implements engine.Outputs.
func (o *Outputs) Keep(ctx context.Context, turn string, index int, text string) error {
	return through(ctx, "keep", func() error {
		if o.Err == nil {
			o.update(fmt.Sprintf("%s.%d", turn, index), func(string) string { return text })
		}
		return o.Err
	})
}

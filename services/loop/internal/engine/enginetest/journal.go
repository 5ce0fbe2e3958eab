package enginetest

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"

	"github.com/anima-run/anima/pkg/api"

	"github.com/anima-run/anima/services/loop/internal/engine"
)

// Journal stores encoded steps and checks the expected last sequence as the stream
// does. It adds the events of the steps to the stream.
type Journal struct {
	stream  *Stream
	mu      sync.Mutex
	entries []entry // the sequence is the index plus one, over all sessions
}

type entry struct {
	session, run string
	turn         int
	data         []byte
	old          bool // written by an older release
}

// Append implements engine.Journal.
func (j *Journal) Append(ctx context.Context, cmd api.Run, step engine.Step, last uint64) (uint64, error) {
	return result(ctx, "append "+step.Kind(), func() (uint64, error) {
		data, err := api.Encode(step)
		if err != nil {
			return 0, err
		}
		j.mu.Lock()
		defer j.mu.Unlock()
		if at := j.last(cmd.Session); at != last {
			return 0, api.Errorf(api.Conflict, "the journal is at %d, not at %d", at, last)
		}
		events, err := step.Events(cmd)
		if err != nil {
			return 0, err
		}
		for _, m := range events {
			j.stream.add(engine.EventID(m), m)
		}
		j.entries = append(j.entries, entry{session: cmd.Session, run: step.Run, turn: step.Turn, data: data})
		return uint64(len(j.entries)), nil
	})
}

func (j *Journal) last(session string) uint64 {
	for i := len(j.entries); i > 0; i-- {
		if j.entries[i-1].session == session {
			return uint64(i)
		}
	}
	return 0
}

// Tail implements engine.Journal.
func (j *Journal) Tail(ctx context.Context, cmd api.Run, after uint64) (steps []engine.Step, last uint64, err error) {
	err = through(ctx, "tail", func() (err error) { steps, last, err = j.tail(cmd.Session, after); return err })
	return steps, last, err
}

func (j *Journal) tail(session string, after uint64) ([]engine.Step, uint64, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	var steps []engine.Step
	for _, e := range j.entries[min(after, uint64(len(j.entries))):] {
		if e.session != session {
			continue
		}
		s := engine.Step{Run: e.run, Turn: e.turn, Old: e.old}
		if err := json.Unmarshal(e.data, &s); err != nil {
			return nil, 0, err
		}
		steps = append(steps, s)
	}
	return steps, j.last(session), nil
}

// Steps returns the turn and the kind of each step of a session, in order.
func (j *Journal) Steps(session string) []string {
	steps, _, err := j.tail(session, 0)
	if err != nil {
		return []string{err.Error()}
	}
	var out []string
	for _, s := range steps {
		out = append(out, fmt.Sprintf("%d %s", s.Turn, s.Kind()))
	}
	return out
}

package session

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"
	"github.com/anima-run/anima/pkg/failpoint"
	"github.com/anima-run/anima/pkg/wait"

	"github.com/anima-run/anima/services/loop/internal/engine"
)

// Journal implements engine.Journal in the stream LOOP_EVT.
type Journal struct{ Bus *bus.Bus }

// points has the failpoint of the append of each kind of entry.
var points = map[string]failpoint.Point{
	api.EntryBegin: failpoint.LoopBegin, api.EntryJoined: failpoint.LoopJoined, api.EntryThought: failpoint.LoopThought, api.EntryIntent: failpoint.LoopIntent,
	api.EntryResult: failpoint.LoopResult, api.EntryEnd: failpoint.LoopEnd, api.EntryRelease: failpoint.LoopRelease,
}

// Append implements engine.Journal. The entry names this process as the owner of the
// session for a lease, which extends the lease of the previous entry.
func (j Journal) Append(ctx context.Context, cmd api.Run, step engine.Step, last uint64) (uint64, error) {
	bus.InProgress(ctx)
	entry, err := api.Encode(step)
	if err != nil {
		return 0, err
	}
	m := api.Journal{
		Session: cmd.Session, Run: cmd.Run, Agent: cmd.Agent, Turn: step.Turn, Epoch: last + 1, Last: last, Kind: step.Kind(), Form: api.JournalForm, Entry: entry,
	}
	t := ownershipOf(ctx)
	at := t.sign(&m)
	// The id contains the position in the journal and the owner, so that only a
	// repetition of this append has the same id.
	id := fmt.Sprintf("journal/%s/%d/%d", cmd.Run, m.Epoch, last)
	seq, err := failpoint.Value(ctx, points[m.Kind], func(ctx context.Context) (uint64, error) { return j.Bus.Append(ctx, id, m, last) })
	if err == nil {
		t.wrote(m, seq, at)
	}
	return seq, err
}

// Tail implements engine.Journal.
func (j Journal) Tail(ctx context.Context, cmd api.Run, after uint64) ([]engine.Step, uint64, error) {
	end, e, err := j.last(ctx, cmd, after)
	if err != nil || end.Sequence == 0 || end.Sequence == after {
		return nil, end.Sequence, err
	}
	if end.Sequence < after {
		after = 0 // the stream was restored from a copy older than the store, or is new
	}
	if e.Form != 0 && e.Last == after { // usually the end of the previous run
		step, err := stepOf(end, e)
		return []engine.Step{step}, end.Sequence, err
	}
	var steps []engine.Step
	for last := after; last < end.Sequence; {
		step, at, _, err := j.next(ctx, cmd.Session, last)
		if err != nil {
			return nil, 0, err
		}
		steps, last = append(steps, step), at
	}
	return steps, end.Sequence, nil
}

// Own appends an entry of this process that belongs to no run, if no other owner holds
// the session. ctx is that of [Locks.With], which releases the session. Errors: Conflict.
func (j Journal) Own(ctx context.Context, cmd api.Run, at int64) error {
	end, _, err := j.last(ctx, cmd, 0)
	if err == nil {
		_, err = j.Append(ctx, cmd, engine.Step{Run: cmd.Run, Begin: &engine.Begin{At: at}}, end.Sequence)
	}
	return err
}

// Turn returns the steps of one turn, which begins after an entry. The steps of a turn
// are contiguous. It returns none if one of them may have expired.
func (j Journal) Turn(ctx context.Context, session, run string, number int, after uint64) ([]engine.Step, error) {
	var steps []engine.Step
	for {
		step, at, before, err := j.next(ctx, session, after)
		if api.CodeOf(err) == api.NotFound {
			return steps, nil
		}
		if err != nil {
			return nil, err
		}
		switch {
		case step.Run == run && step.Turn == number:
			if before > after && (step.Begin == nil || step.Begin.Input == nil) { // the first begin of a run has no entry of its turn before it
				return nil, nil
			}
			steps = append(steps, step)
		case len(steps) > 0:
			return steps, nil
		case step.Completion != nil: // of a later turn
			return nil, nil
		}
		after = at
	}
}

// InProgress reports whether the last entry of a session's journal belongs to a run that
// its owner has not returned, or begins a run that includes the message of the given one.
// The owner stores the outcome of that message before the next entry; if it crashes in
// between, the next owner does.
func (j Journal) InProgress(ctx context.Context, session, run string) (bool, error) {
	end, e, err := j.last(ctx, api.Run{Session: session}, 0)
	if err != nil || e.Run == run || e.Kind != api.EntryBegin {
		return e.Run == run && e.Kind != api.EntryRelease, err
	}
	step, err := stepOf(end, e)
	if err != nil || step.Begin == nil || step.Begin.Input == nil {
		return false, err
	}
	return slices.ContainsFunc(step.Begin.Input.Merged, func(m api.Run) bool { return m.Run == run }), nil
}

// last returns the last entry of a session's journal, with sequence 0 if there is none.
// If the entry is older than after, which the store has, last retries for a short time:
// usually the stream's leader is behind (ADR 11), and the whole journal would be read in
// vain. The result need not be correct, because the append that follows is refused if it
// was wrong. Errors: Conflict while another owner holds the session.
func (j Journal) last(ctx context.Context, cmd api.Run, after uint64) (end bus.Stored, e api.Journal, err error) {
	for delay := 5 * time.Millisecond; ; delay *= 2 {
		end, err = j.Bus.Last(ctx, api.Journal{Session: cmd.Session}.Subject())
		if err != nil && api.CodeOf(err) != api.NotFound || end.Sequence >= after || delay > 200*time.Millisecond {
			break
		}
		if wait.For(ctx, delay) != nil {
			return end, e, context.Cause(ctx)
		}
	}
	if api.CodeOf(err) == api.NotFound {
		return bus.Stored{}, e, nil
	}
	if err == nil {
		err = api.Decode(end.Data, &e)
	}
	if err == nil {
		err = ownershipOf(ctx).free(ctx, e)
	}
	if err != nil {
		end = bus.Stored{}
	}
	return end, e, err
}

// next returns the first entry after a sequence, with its own sequence, and that of the
// entry on top of which it was appended: entries between after and before are missing.
// before is 0 in entries of older releases. Errors: NotFound.
func (j Journal) next(ctx context.Context, session string, after uint64) (step engine.Step, at, before uint64, err error) {
	m, err := j.Bus.Next(ctx, api.Journal{Session: session}.Subject(), after+1)
	if err != nil {
		return step, 0, 0, err
	}
	var e api.Journal
	if err := api.Decode(m.Data, &e); err != nil {
		return step, 0, 0, err
	}
	step, err = stepOf(m, e)
	return step, m.Sequence, e.Last, err
}

func stepOf(m bus.Stored, e api.Journal) (engine.Step, error) {
	step := engine.Step{Run: e.Run, Turn: e.Turn, Old: e.Form == 0}
	if err := json.Unmarshal(e.Entry, &step); err != nil {
		return step, fmt.Errorf("journal of %s at %d: %w", e.Session, m.Sequence, err)
	}
	return step, nil
}

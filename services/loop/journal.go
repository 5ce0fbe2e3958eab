package loop

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"
	"github.com/anima-run/anima/pkg/failpoint"
	"github.com/anima-run/anima/pkg/wait"

	"github.com/anima-run/anima/services/loop/internal/engine"
)

// journal implements engine.Journal in the stream LOOP_EVT.
type journal struct{ bus *bus.Bus }

// Append implements engine.Journal. The entry names this process as the owner of the
// session for a lease, which extends the lease of the previous entry.
func (j journal) Append(ctx context.Context, cmd api.Run, step engine.Step, last uint64) (uint64, error) {
	bus.Working(ctx)
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
	seq, err := failpoint.Value(ctx, pointOf(step), func(ctx context.Context) (uint64, error) { return j.bus.Append(ctx, id, m, last) })
	if err == nil {
		t.wrote(m, seq, at)
	}
	return seq, err
}

// Tail implements engine.Journal.
func (j journal) Tail(ctx context.Context, cmd api.Run, after uint64) ([]engine.Step, uint64, error) {
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
		step, at, err := j.next(ctx, api.Journal{Session: cmd.Session}.Subject(), last)
		if err != nil {
			return nil, 0, err
		}
		steps, last = append(steps, step), at
	}
	return steps, end.Sequence, nil
}

// last returns the last entry of a session's journal, with sequence 0 if there is none.
// Errors: Conflict while another owner holds the session.
func (j journal) last(ctx context.Context, cmd api.Run, after uint64) (end bus.Stored, e api.Journal, err error) {
	end, err = j.end(ctx, api.Journal{Session: cmd.Session}.Subject(), after)
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
		return bus.Stored{}, e, err
	}
	return end, e, nil
}

// own appends an entry of this process that belongs to no run, if no other owner holds
// the session. The ownership in ctx releases the session.
func (j journal) own(ctx context.Context, cmd api.Run, at int64) error {
	end, _, err := j.last(ctx, cmd, 0)
	if err == nil {
		_, err = j.Append(ctx, cmd, engine.Step{Run: cmd.Run, Begin: &engine.Begin{At: at}}, end.Sequence)
	}
	return err
}

// end returns the journal's last entry. If the entry is older than after, which the
// store has, end retries for a short time: usually the stream's leader is behind
// (ADR 11), and the whole journal would be read in vain. The result need not be
// correct, because the append that follows is refused if it was wrong.
func (j journal) end(ctx context.Context, s api.Subject, after uint64) (bus.Stored, error) {
	for delay := 5 * time.Millisecond; ; delay *= 2 {
		m, err := j.bus.Last(ctx, s)
		if err != nil && api.CodeOf(err) != api.NotFound || m.Sequence >= after || delay > 200*time.Millisecond {
			return m, err
		}
		if wait.For(ctx, delay) != nil {
			return m, context.Cause(ctx)
		}
	}
}

// next returns the first entry after a sequence. Errors: NotFound.
func (j journal) next(ctx context.Context, s api.Subject, after uint64) (engine.Step, uint64, error) {
	m, err := j.bus.Next(ctx, s, after+1)
	if err != nil {
		return engine.Step{}, 0, err
	}
	var e api.Journal
	if err := api.Decode(m.Data, &e); err != nil {
		return engine.Step{}, 0, err
	}
	step, err := stepOf(m, e)
	return step, m.Sequence, err
}

func stepOf(m bus.Stored, e api.Journal) (engine.Step, error) {
	step := engine.Step{Run: e.Run, Turn: e.Turn, Old: e.Form == 0}
	if err := json.Unmarshal(e.Entry, &step); err != nil {
		return step, fmt.Errorf("journal of %s at %d: %w", e.Session, m.Sequence, err)
	}
	return step, nil
}

// of returns the steps of one turn, which begins after an entry. The steps of a turn
// are contiguous.
func (j journal) of(ctx context.Context, session, run string, number int, after uint64) ([]engine.Step, error) {
	s := api.Journal{Session: session}.Subject()
	var steps []engine.Step
	for {
		step, at, err := j.next(ctx, s, after)
		if api.CodeOf(err) == api.NotFound {
			return steps, nil
		}
		if err != nil {
			return nil, err
		}
		switch {
		case step.Run == run && step.Turn == number:
			steps = append(steps, step)
		case len(steps) > 0:
			return steps, nil
		}
		after = at
	}
}

// seqText formats a stream sequence as the id of an event.
func seqText(seq uint64) string { return strconv.FormatUint(seq, 10) }

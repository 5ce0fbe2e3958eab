package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"
	"github.com/anima-run/anima/pkg/wait"
)

// load is one load test. run is called once.
type load struct {
	bus            *bus.Bus
	log            *slog.Logger
	name, text     string
	patience, late time.Duration

	mu   sync.Mutex
	ends map[string]*end // by run: runs whose end is awaited, or was received before that
	done []ended         // runs that succeeded
	runs map[string]int  // number of turns by run
	sum  summary
}

// end receives the end of a run once.
type end struct{ c chan api.LoopEnd }

// ended is a message whose run succeeded.
type ended struct {
	run          string
	turns        int
	began, ended time.Time
}

// run creates n agents and sends messages for the given time, or until sending ends, waits
// for the runs in progress, and audits the result.
func (l *load) run(ctx, sending context.Context, length time.Duration, n int, routerOnly bool) (summary, error) {
	l.sum.Name = l.name
	agents := make([]api.Agent, n)
	for i := range agents {
		a, err := l.born(ctx, i)
		if err != nil {
			return l.sum, fmt.Errorf("agent %d: %w", i, err)
		}
		agents[i] = a
	}
	following, stop := context.WithCancel(ctx)
	var follower sync.WaitGroup
	one := l.call
	if !routerOnly {
		one = l.one
		follower.Go(func() { l.follow(following) })
	}
	sending, cancel := context.WithTimeout(sending, length)
	defer cancel()
	l.log.Info("sending") // the drill waits for this log message
	began := time.Now()
	stopped := began
	var senders sync.WaitGroup
	senders.Go(func() { <-sending.Done(); stopped = time.Now() })
	for i, a := range agents {
		text := strings.ReplaceAll(l.text, "{peer}", agents[(i+1)%n].Address)
		senders.Go(func() {
			for m := 0; sending.Err() == nil; m++ {
				one(ctx, a, text, fmt.Sprintf("%s-%d-%d-%d", l.name, began.UnixNano(), i, m))
			}
		})
	}
	senders.Wait()
	l.sum.Seconds = time.Since(began).Seconds()
	stop()
	follower.Wait()
	l.sum.measure(began, stopped, l.done, l.late)
	return l.sum, l.audit(ctx, agents)
}

// born creates an agent, or finds the existing one, and makes a deposit. Both requests
// are idempotent.
func (l *load) born(ctx context.Context, i int) (api.Agent, error) {
	source := fmt.Sprintf("---\nname: %s%d\ntools: [check_credits, write_file, read_file, send_message, sleep]\n---\nBe quick.\n", l.name, i)
	a, err := again(ctx, l.patience, ask[api.Agent](l.bus, api.ApplyAgent{Source: source}))
	if err != nil {
		return a, err
	}
	_, err = again(ctx, l.patience, ask[api.Posted](l.bus, api.Deposit{ID: "load-" + a.ID, Agent: a.ID, Amount: 1000 * api.Dollar, Source: "faucet"}))
	return a, err
}

// ask returns a request in the form that [again] takes.
func ask[R any](b *bus.Bus, q api.Message) func(context.Context) (R, error) {
	return func(ctx context.Context) (R, error) { return bus.Call[R](ctx, b, q) }
}

// again repeats a request, 5 s each time, until it is answered, fails finally, or patience
// expires. The requests have ids, so that a repetition has no second effect.
func again[R any](ctx context.Context, patience time.Duration, ask func(context.Context) (R, error)) (R, error) {
	return repeat(ctx, patience, 5*time.Second, ask)
}

// repeat is again with another timeout for each time.
func repeat[R any](ctx context.Context, patience, timeout time.Duration, ask func(context.Context) (R, error)) (R, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		once, done := context.WithTimeout(ctx, timeout)
		r, err := ask(once)
		done()
		if err == nil || api.CodeOf(err) != api.Unavailable && !errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil {
			return r, err
		}
		if wait.For(ctx, 20*time.Millisecond) != nil { // the pause avoids overloading a busy service
			return r, err
		}
	}
}

func (l *load) end(run string) *end {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.ends[run]
	if e == nil {
		e = &end{make(chan api.LoopEnd, 1)}
		l.ends[run] = e
	}
	return e
}

func (l *load) follow(ctx context.Context) {
	err := l.bus.Events(ctx, 0, func(s bus.Stored) error {
		var e api.LoopEnd
		if err := api.Decode(s.Data, &e); err != nil {
			return err
		}
		select {
		case l.end(e.Run).c <- e:
		default: // the end was published before
		}
		return nil
	}, api.LoopEnd{}.Subject())
	if ctx.Err() == nil {
		l.log.Error("reading events failed", "err", err)
	}
}

// one sends a message and waits for the end of its run.
func (l *load) one(ctx context.Context, a api.Agent, text, id string) {
	began := time.Now()
	acc, err := again(ctx, l.patience, ask[api.Accepted](l.bus, api.SendMessage{Agent: a.ID, Content: text, ID: id}))
	if err != nil {
		l.note("refused: "+err.Error(), func(s *summary) { s.Refused++ })
		return
	}
	patience := time.NewTimer(l.patience)
	defer patience.Stop()
	select {
	case e := <-l.end(acc.Run).c:
		if !e.Success {
			l.note("failed: "+acc.Run, func(s *summary) { s.Sent++; s.Failed++ })
			return
		}
		l.answered(ended{acc.Run, e.Turns, began, time.Now()})
	case <-patience.C:
		st, err := again(ctx, l.patience, ask[api.RunState](l.bus, api.GetRun{Run: acc.Run, Session: acc.Session}))
		l.overdue(acc, st, err, began)
	case <-ctx.Done():
	}
}

// overdue counts a run whose end event was not received in time, by the state that loop
// returns. A run that has ended counts as unheard; every other run counts as lost.
func (l *load) overdue(acc api.Accepted, st api.RunState, err error, began time.Time) {
	what, count := "lost", func(s *summary) { s.Sent++; s.Lost++ }
	state := fmt.Sprintf("%s after %d turns", st.Status, st.Turns)
	switch {
	case err != nil:
		state = err.Error()
	case st.Status == api.RunEnded && st.Success:
		what, count = "unheard", func(s *summary) { s.Unheard++ }
		l.answered(ended{acc.Run, st.Turns, began, time.UnixMicro(st.EndedAt)})
	case st.Status == api.RunEnded:
		what, count = "failed and unheard", func(s *summary) { s.Sent++; s.Failed++; s.Unheard++ }
		state += ": " + st.Error
	case st.Cancelled:
		state += ", cancelled"
	}
	l.note(fmt.Sprintf("%s: %s of session %s, accepted %s: %s", what, acc.Run, acc.Session, time.UnixMicro(acc.At).UTC().Format(time.RFC3339Nano), state), count)
}

// call makes one model call through the router, which is paid in the same way as that of
// a turn.
func (l *load) call(ctx context.Context, a api.Agent, text, id string) {
	began := time.Now()
	req := api.Complete{
		ID: id, Agent: a.ID, Session: a.Session, Turn: id + ".1", Task: api.TaskTurn,
		Messages: []api.ChatMessage{{Role: "user", Content: text}},
	}
	// As loop does, wait for a call that a busy router lets wait: to give it up would pay
	// for an answer that is thrown away.
	_, err := repeat(ctx, l.patience, l.patience, func(ctx context.Context) (api.Completion, error) {
		return bus.CallStream[api.Delta, api.Completion](ctx, l.bus, req, func(api.Delta) error { return nil })
	})
	if err != nil {
		l.note("refused: "+err.Error(), func(s *summary) { s.Refused++ })
		return
	}
	l.answered(ended{id, 1, began, time.Now()})
}

func (l *load) answered(e ended) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.ends, e.run)
	l.sum.Sent++
	l.sum.Runs++
	l.sum.Turns += e.turns
	l.done = append(l.done, e)
	l.runs[e.run] = e.turns
}

func (l *load) note(fault string, f func(*summary)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f(&l.sum)
	l.sum.fault(fault)
}

// audit reads the ledger of the agents and compares it with the runs.
func (l *load) audit(ctx context.Context, agents []api.Agent) error {
	var entries []api.Posted
	for _, a := range agents {
		for after := int64(0); ; {
			part, err := again(ctx, l.patience, ask[api.Entries](l.bus, api.ListEntries{Agent: a.ID, After: after, Limit: 250}))
			if err != nil {
				return fmt.Errorf("ledger of %s: %w", a.ID, err)
			}
			for _, p := range part.Entries {
				after = p.Seq
			}
			if entries = append(entries, part.Entries...); !part.More {
				break
			}
		}
	}
	l.sum.audit(entries, l.runs)
	report, err := repeat(ctx, l.patience, l.patience, func(ctx context.Context) (api.LedgerReport, error) {
		return bus.CallStream[api.VerifyProgress, api.LedgerReport](ctx, l.bus, api.VerifyLedgerV2{}, func(api.VerifyProgress) error { return nil })
	})
	if err != nil {
		return fmt.Errorf("verify the ledger: %w", err)
	}
	l.sum.LedgerOK = report.OK
	for _, f := range report.Faults {
		l.sum.fault(f)
	}
	return nil
}

// turnID returns the id of the n-th turn of a run; n begins with 1.
func turnID(run string, n int) string { return run + "." + strconv.Itoa(n) }

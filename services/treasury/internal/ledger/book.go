package ledger

import (
	"context"
	"errors"
	"maps"
	"runtime"
	"slices"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/failpoint"
)

// Book is a ledger in a [Store]. Use [New] to create one and [Book.Run] to run it. Its
// methods are safe for concurrent use.
type Book struct {
	store   Store
	opts    Options
	queue   chan *request
	stopped chan struct{}
}

// Options holds the options of a book.
type Options struct {
	Now     func() time.Time
	Group   int           // most operations in a commit; 0 means 64 (one full pool of a route)
	Timeout time.Duration // of one commit; 0 means 10 s
	// Committed, which may be nil, is called after each commit, also one without changes.
	// Calls are not concurrent.
	Committed func(ctx context.Context, c Changes, operations int)
}

// request is an operation that waits for its group.
type request struct {
	ctx  context.Context //nolint:containedctx // context of the caller, checked when the group is formed
	keys Keys
	do   func(*page) error
	done chan error // buffered
}

// New returns a book on a store.
func New(store Store, o Options) *Book {
	if o.Group <= 0 {
		o.Group = 64
	}
	if o.Timeout <= 0 {
		o.Timeout = 10 * time.Second
	}
	return &Book{store: store, opts: o, queue: make(chan *request, 2*o.Group), stopped: make(chan struct{})}
}

// Run writes groups of operations, one at a time, until ctx ends. Operations that wait
// when a commit ends form the next group, so groups grow with the load. When ctx ends,
// waiting operations fail with Unavailable. Run must be called once.
func (b *Book) Run(ctx context.Context) {
	defer close(b.stopped)
	for {
		select {
		case <-ctx.Done():
			return
		case first := <-b.queue:
			runtime.Gosched() // lets goroutines that are ready to submit join the group
			b.write(ctx, b.gather(first))
		}
	}
}

// Queued returns the number of operations that wait for the commit in progress.
func (b *Book) Queued() int { return len(b.queue) }

func (b *Book) gather(first *request) []*request {
	group := make([]*request, 0, b.opts.Group)
	for r := first; ; {
		if err := r.ctx.Err(); err != nil {
			r.done <- err // the caller has canceled
		} else {
			group = append(group, r)
		}
		if len(group) == b.opts.Group {
			return group
		}
		select {
		case r = <-b.queue:
		default:
			return group
		}
	}
}

// write commits a group. If the store fails with an error that a retry would not fix, the
// cause may be a single operation, so each operation is written separately. This is safe
// even if the first commit succeeded, because operations are idempotent.
func (b *Book) write(ctx context.Context, group []*request) {
	if len(group) == 0 {
		return
	}
	refusals, err := b.commit(ctx, group)
	if err != nil && len(group) > 1 && api.CodeOf(err) != api.Unavailable && ctx.Err() == nil {
		for _, r := range group {
			b.write(ctx, []*request{r})
		}
		return
	}
	for i, r := range group {
		if err != nil {
			r.done <- err
			continue
		}
		r.done <- refusals[i]
	}
}

func (b *Book) commit(ctx context.Context, group []*request) ([]error, error) {
	// A commit in progress is finished even if ctx ends, so that callers of a stopping
	// service receive the outcome.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), b.opts.Timeout)
	defer cancel()
	var keys Keys
	for _, r := range group {
		keys.add(r.keys)
	}
	refusals := make([]error, len(group))
	var c Changes
	err := failpoint.Do(ctx, failpoint.TreasuryCommit, func(ctx context.Context) error {
		return b.store.Update(ctx, keys, func(s State) Changes {
			p := newPage(s, b.opts.Now().UnixMicro())
			for i, r := range group {
				if refusals[i] = r.do(p); failpoint.Broken(failpoint.AnswerBeforeCommit) && len(r.done) == 0 {
					r.done <- refusals[i]
				}
			}
			c = p.changes()
			return c
		})
	})
	if errors.Is(err, context.DeadlineExceeded) {
		return nil, &api.Error{
			Code: api.Unavailable, Message: "the ledger could not be written in time",
			Next: "retry with the same id", RetryAfter: 1000,
		}
	}
	if err == nil && b.opts.Committed != nil {
		b.opts.Committed(ctx, c, len(group))
	}
	return refusals, err
}

// submit queues an operation and returns its result after the commit. If ctx ends first,
// the outcome is unknown; repeating the operation with the same id is safe.
func submit[T any](ctx context.Context, b *Book, keys Keys, do func(*page) (T, error)) (T, error) {
	var got, none T
	r := &request{ctx: ctx, keys: keys, done: make(chan error, 1), do: func(p *page) (err error) {
		got, err = do(p)
		return err
	}}
	select {
	case b.queue <- r:
	case <-ctx.Done():
		return none, ctx.Err()
	case <-b.stopped:
		return none, stopping()
	}
	select {
	case err := <-r.done:
		return got, err
	case <-ctx.Done():
		return none, ctx.Err()
	case <-b.stopped:
	}
	select {
	case err := <-r.done: // it was in the last group
		return got, err
	default:
		return none, stopping()
	}
}

func stopping() error {
	return &api.Error{Code: api.Unavailable, Message: "the treasury is stopping", Next: "retry with the same id", RetryAfter: 1000}
}

// Open creates the accounts of an agent unless they exist. Errors: Invalid.
func (b *Book) Open(ctx context.Context, agent string) error {
	if err := checkAgent(agent); err != nil {
		return err
	}
	return b.store.Open(ctx, agent)
}

// Hold reserves credits. Repeating it returns the current state of the hold. Errors:
// Denied with ReasonInsufficient, NotFound, Conflict, Invalid.
func (b *Book) Hold(ctx context.Context, r HoldRequest) (HoldState, error) {
	if err := r.check(); err != nil {
		return HoldState{}, err
	}
	keys := Keys{Accounts: both(r.Agent), NewHolds: []string{r.ID}}
	return submit(ctx, b, keys, func(p *page) (HoldState, error) { return p.hold(r) })
}

// Settle pays an amount from a hold and returns the rest to the agent. Errors: NotFound,
// Conflict, Invalid.
func (b *Book) Settle(ctx context.Context, r SettleRequest) (HoldState, error) {
	if err := r.check(); err != nil {
		return HoldState{}, err
	}
	return submit(ctx, b, r.keys(), func(p *page) (HoldState, error) { return p.settle(r) })
}

// SettleMany settles each request as [Book.Settle] does, in one commit. It returns the
// results in the order of the requests, and the balances of the agents whose holds were
// found, sorted by agent. The error is one after which a retry with the same ids helps;
// errors of a single request are in its [Settlement].
func (b *Book) SettleMany(ctx context.Context, rs []SettleRequest) ([]Settlement, []Balance, error) {
	var keys Keys
	for i := range rs {
		if rs[i].check() == nil {
			keys.add(rs[i].keys())
		}
	}
	type outcome struct {
		all   []Settlement
		funds []Balance
	}
	got, err := submit(ctx, b, keys, func(p *page) (o outcome, err error) {
		o.all, o.funds = p.settleAll(rs)
		return o, nil
	})
	if err == nil || len(rs) == 1 || api.CodeOf(err) == api.Unavailable || ctx.Err() != nil {
		return got.all, got.funds, err
	}
	// The store may have failed because of a single settlement.
	funds := map[string]Balance{}
	all := make([]Settlement, 0, len(rs))
	for i := range rs {
		one, of, err := b.SettleMany(ctx, rs[i:i+1])
		switch {
		case err == nil:
			all = append(all, one[0])
		case api.CodeOf(err) == api.Unavailable || ctx.Err() != nil:
			return nil, nil, err
		default:
			all = append(all, Settlement{Err: err})
		}
		for _, f := range of {
			funds[f.Agent] = f
		}
	}
	var sorted []Balance
	for _, agent := range slices.Sorted(maps.Keys(funds)) {
		sorted = append(sorted, funds[agent])
	}
	return all, sorted, nil
}

// Release releases a hold; parent is the traceparent of the request. A hold that was
// released or has expired is left unchanged. Errors: NotFound, Conflict, Invalid.
func (b *Book) Release(ctx context.Context, id, reason, parent string) (HoldState, error) {
	if err := firstFault(checkID("hold", id), checkText("reason", reason)); err != nil {
		return HoldState{}, err
	}
	return submit(ctx, b, Keys{Holds: []string{id}}, func(p *page) (HoldState, error) { return p.release(id, reason, parent) })
}

// Deposit credits an agent from an external account. The caller decides whether the
// source is allowed. Errors: Invalid, NotFound, Conflict.
func (b *Book) Deposit(ctx context.Context, r DepositRequest) (Transaction, error) {
	if err := r.check(); err != nil {
		return Transaction{}, err
	}
	keys := Keys{Accounts: append(both(r.Agent), r.Source), NewTransactions: []string{r.ID}}
	return submit(ctx, b, keys, func(p *page) (Transaction, error) { return p.deposit(r) })
}

// Transfer moves credits between agents. Errors: as [Book.Hold].
func (b *Book) Transfer(ctx context.Context, r TransferRequest) (Transaction, error) {
	if err := r.check(); err != nil {
		return Transaction{}, err
	}
	keys := Keys{Accounts: append(both(r.From), both(r.To)...), NewTransactions: []string{r.ID}}
	return submit(ctx, b, keys, func(p *page) (Transaction, error) { return p.transfer(r) })
}

// expireAtOnce is the most holds that one operation of [Book.Expire] releases.
const expireAtOnce = 256

// Expire releases the active holds whose time has passed and returns their number.
// Replicas may call it concurrently.
func (b *Book) Expire(ctx context.Context) (int, error) {
	for total := 0; ; {
		ids, err := b.store.Due(ctx, b.opts.Now().UnixMicro(), expireAtOnce)
		if err != nil || len(ids) == 0 {
			return total, err
		}
		n, err := submit(ctx, b, Keys{Holds: ids}, func(p *page) (int, error) { return p.expire(ids) })
		total += n
		if err != nil || n == 0 {
			return total, err // n == 0: another replica has released them
		}
	}
}

func both(agent string) []string { return []string{Available(agent), Held(agent)} }

// Balance returns the balance of an agent. Errors: NotFound.
func (b *Book) Balance(ctx context.Context, agent string) (Balance, error) {
	return b.store.Balance(ctx, agent)
}

// Limits of lists: the default of package api, and a maximum that keeps an answer below
// the 1 MiB limit of NATS with memos of any size.
const (
	defaultLimit = 100
	maxLimit     = 250
)

func bounded(limit int) int {
	if limit <= 0 {
		return defaultLimit
	}
	return min(limit, maxLimit)
}

// Holds lists holds, oldest first: the active ones unless the filter has another status,
// 100 unless it has another limit, and at most 250.
func (b *Book) Holds(ctx context.Context, f HoldFilter) ([]HoldState, error) {
	if f.Status == "" {
		f.Status = api.HoldActive
	}
	f.Limit = bounded(f.Limit)
	return b.store.Holds(ctx, f)
}

// Spent returns the sums of an agent's holds of a category for a turn: the settled
// amounts, and the amounts still held.
func (b *Book) Spent(ctx context.Context, agent, turn, category string) (paid, held api.Micros, err error) {
	return b.store.Spent(ctx, agent, turn, category)
}

// Transactions lists the transactions of an agent ("": of all) after a sequence number,
// with the limits of [Book.Holds], and reports whether there are more.
func (b *Book) Transactions(ctx context.Context, agent string, after int64, limit int) ([]Transaction, bool, error) {
	limit = bounded(limit)
	ts, err := b.store.Transactions(ctx, agent, after, limit+1)
	if len(ts) > limit {
		return ts[:limit], true, err
	}
	return ts, false, err
}

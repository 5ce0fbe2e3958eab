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

// Book answers for the books. Make one with [New] and run it with [Book.Run];
// its methods are safe for concurrent use.
type Book struct {
	store   Store
	opts    Options
	queue   chan *request
	stopped chan struct{}
}

// Options of a book.
type Options struct {
	Now     func() time.Time
	Group   int           // most operations that share a commit; 0 means 64 (one full pool of a route)
	Timeout time.Duration // of one commit; 0 means 10 s
	// Committed, which may be nil, is called after each commit by the one writer,
	// also after one of nothing.
	Committed func(ctx context.Context, c Changes, operations int)
}

// request is an operation that waits for its group.
type request struct {
	ctx  context.Context //nolint:containedctx // the caller's, looked at when its turn comes
	keys Keys
	do   func(*page) error
	done chan error // buffered
}

// New returns a book kept in a store.
func New(store Store, o Options) *Book {
	if o.Group <= 0 {
		o.Group = 64
	}
	if o.Timeout <= 0 {
		o.Timeout = 10 * time.Second
	}
	return &Book{store: store, opts: o, queue: make(chan *request, 2*o.Group), stopped: make(chan struct{})}
}

// Run writes until ctx ends, one group at a time: whoever waits when a commit
// ends is in the next one, so a group is as large as the load. What is still
// waiting when ctx ends is refused as Unavailable. Run is called once.
func (b *Book) Run(ctx context.Context) {
	defer close(b.stopped)
	for {
		select {
		case <-ctx.Done():
			return
		case first := <-b.queue:
			runtime.Gosched() // goroutines that are ready to run may ask, too, and join the group
			b.write(ctx, b.gather(first))
		}
	}
}

// Queued is how many operations wait for the commit under way to end.
func (b *Book) Queued() int { return len(b.queue) }

func (b *Book) gather(first *request) []*request {
	group := make([]*request, 0, b.opts.Group)
	for r := first; ; {
		if err := r.ctx.Err(); err != nil {
			r.done <- err // its caller is gone
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

// write commits a group. A fault of the store that trying again would not help
// may be the fault of one member only, so then each is tried by itself; ids make
// that safe, whatever happened to the first commit.
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
	// Once begun, a commit is finished: a stopping service must not leave its
	// callers in doubt.
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
			Code: api.Unavailable, Message: "the books could not be written in time",
			Next: "ask again with the same id", RetryAfter: 1000,
		}
	}
	if err == nil && b.opts.Committed != nil {
		b.opts.Committed(ctx, c, len(group))
	}
	return refusals, err
}

// submit lets do decide in the next group and returns what it returned, once
// that is kept. If ctx ends first the outcome is unknown; asking again with the
// same id is safe.
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
	return &api.Error{Code: api.Unavailable, Message: "the treasury is stopping", Next: "ask again with the same id", RetryAfter: 1000}
}

// Open makes sure that an agent has its accounts. Errors: Invalid.
func (b *Book) Open(ctx context.Context, agent string) error {
	if err := checkAgent(agent); err != nil {
		return err
	}
	return b.store.Open(ctx, agent)
}

// Hold reserves money. Asking again answers with the hold as it is now. Errors:
// Denied with ReasonInsufficient, NotFound, Conflict, Invalid.
func (b *Book) Hold(ctx context.Context, r HoldRequest) (HoldState, error) {
	if err := r.check(); err != nil {
		return HoldState{}, err
	}
	keys := Keys{Accounts: both(r.Agent), NewHolds: []string{r.ID}}
	return submit(ctx, b, keys, func(p *page) (HoldState, error) { return p.hold(r) })
}

// Settle pays from a hold and gives the rest back. Errors: NotFound, Conflict,
// Invalid.
func (b *Book) Settle(ctx context.Context, r SettleRequest) (HoldState, error) {
	if err := r.check(); err != nil {
		return HoldState{}, err
	}
	return submit(ctx, b, r.keys(), func(p *page) (HoldState, error) { return p.settle(r) })
}

// SettleMany settles each request as [Book.Settle] does, in one commit. It returns
// what became of each, in their order, and the balances of the agents whose holds
// were found, by agent. Errors: those after which asking again with the same ids
// helps; what is wrong with one request is in its [Settlement].
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
	// The fault of the store may be that of one settlement only.
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

// Release gives a hold back whole; parent is the traceparent of the request.
// Errors: NotFound, Conflict.
func (b *Book) Release(ctx context.Context, id, reason, parent string) (HoldState, error) {
	if err := firstFault(checkID("hold", id), checkText("reason", reason)); err != nil {
		return HoldState{}, err
	}
	return submit(ctx, b, Keys{Holds: []string{id}}, func(p *page) (HoldState, error) { return p.release(id, reason, parent) })
}

// Deposit takes money into the books; whether its source may give any is the
// caller's to know. Errors: Invalid, NotFound, Conflict.
func (b *Book) Deposit(ctx context.Context, r DepositRequest) (Transaction, error) {
	if err := r.check(); err != nil {
		return Transaction{}, err
	}
	keys := Keys{Accounts: append(both(r.Agent), r.Source), NewTransactions: []string{r.ID}}
	return submit(ctx, b, keys, func(p *page) (Transaction, error) { return p.deposit(r) })
}

// Transfer moves money between agents. Errors: as [Book.Hold].
func (b *Book) Transfer(ctx context.Context, r TransferRequest) (Transaction, error) {
	if err := r.check(); err != nil {
		return Transaction{}, err
	}
	keys := Keys{Accounts: append(both(r.From), both(r.To)...), NewTransactions: []string{r.ID}}
	return submit(ctx, b, keys, func(p *page) (Transaction, error) { return p.transfer(r) })
}

// expireAtOnce bounds what one sweep adds to a group.
const expireAtOnce = 256

// Expire releases the active holds that are past their time, and returns how
// many. Any number of replicas may do it at once.
func (b *Book) Expire(ctx context.Context) (int, error) {
	for total := 0; ; {
		ids, err := b.store.Due(ctx, b.opts.Now().UnixMicro(), expireAtOnce)
		if err != nil || len(ids) == 0 {
			return total, err
		}
		n, err := submit(ctx, b, Keys{Holds: ids}, func(p *page) (int, error) { return p.expire(ids) })
		total += n
		if err != nil || n == 0 {
			return total, err // n == 0: another replica is at it
		}
	}
}

func both(agent string) []string { return []string{Available(agent), Held(agent)} }

// Balance returns what an agent owns. Errors: NotFound.
func (b *Book) Balance(ctx context.Context, agent string) (Balance, error) {
	return b.store.Balance(ctx, agent)
}

// Bounds of lists: the contract's default, and what keeps an answer below the
// 1 MiB that NATS takes, whatever the memos.
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

// Holds lists holds, oldest first: the active ones unless the filter names
// another status, 100 unless it names another limit, 250 at most.
func (b *Book) Holds(ctx context.Context, f HoldFilter) ([]HoldState, error) {
	if f.Status == "" {
		f.Status = api.HoldActive
	}
	f.Limit = bounded(f.Limit)
	return b.store.Holds(ctx, f)
}

// Spent is what was paid from an agent's holds of a category for a turn, and what is held
// for it yet.
func (b *Book) Spent(ctx context.Context, agent, turn, category string) (paid, held api.Micros, err error) {
	return b.store.Spent(ctx, agent, turn, category)
}

// Transactions lists the transactions that touched an agent ("": all) after a
// sequence number, with limits as [Book.Holds], and whether there are more.
func (b *Book) Transactions(ctx context.Context, agent string, after int64, limit int) ([]Transaction, bool, error) {
	limit = bounded(limit)
	ts, err := b.store.Transactions(ctx, agent, after, limit+1)
	if len(ts) > limit {
		return ts[:limit], true, err
	}
	return ts, false, err
}

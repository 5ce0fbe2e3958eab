package ledger

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"time"

	"github.com/anima-run/anima/pkg/api"

	"github.com/anima-run/anima/services/treasury/internal/limits"
)

// LimitState holds the limits of an agent and what is spent of them.
type LimitState struct {
	Own       OwnLimits
	Effective api.Limits
	Available api.Micros
	Usage     []api.LimitUsage
	At        int64
}

// SetLimitsRequest holds the arguments of [Ledger.SetLimits].
type SetLimitsRequest struct {
	ID       string
	Agent    string
	Limits   api.Limits
	Revision int64 // of the limits that are replaced
	Parent   string
}

// memo returns a text that identifies the limits in the transaction.
func (r *SetLimitsRequest) memo() (string, error) {
	data, err := api.Encode(OwnLimits{Revision: r.Revision + 1, Limits: r.Limits})
	sum := sha256.Sum256(data)
	return "limits sha256:" + hex.EncodeToString(sum[:]), err
}

// SetLimits replaces the limits that are set for an agent. The change is a transaction, so
// it has a place in the order of all payments, and each process that has the limits in
// memory notices it by the head of the chain. Errors: Invalid, NotFound, Conflict.
func (l *Ledger) SetLimits(ctx context.Context, r SetLimitsRequest) (LimitState, error) {
	memo, err := r.memo()
	if err = cmp.Or(err, checkOwnID(r.ID), checkAgent(r.Agent), r.Limits.Check()); err != nil {
		return LimitState{}, err
	}
	keys := Keys{Accounts: accountsIn(api.Credits, r.Agent), NewTransactions: []string{r.ID}}
	if r.Limits.Parent != "" {
		keys.Accounts = append(keys.Accounts, Available(r.Limits.Parent))
	}
	return submit(ctx, l, keys, func(b *batch) (LimitState, error) { return b.setLimits(r, memo) })
}

func (b *batch) setLimits(r SetLimitsRequest, memo string) (LimitState, error) {
	if _, err := b.balance(r.Agent); err != nil {
		return LimitState{}, err
	}
	t := Transaction{ID: r.ID, Kind: KindLimits, Agent: r.Agent, Memo: memo, Parent: r.Parent}
	account := b.state.Accounts[Available(r.Agent)]
	if _, repeated := b.state.Transactions[r.ID]; repeated {
		if _, err := b.move(t); err != nil {
			return LimitState{}, err
		}
		return b.limitState(r.Agent, "", "")
	}
	var own OwnLimits
	if account.Limits != nil {
		own = *account.Limits
	}
	if own.Revision != r.Revision {
		return LimitState{}, refusal(api.Conflict, "read the limits again, then change them", "the limits of %q have revision %d, not %d", clip(r.Agent), own.Revision, r.Revision)
	}
	if err := b.checkParents(r.Agent, r.Limits.Parent); err != nil {
		return LimitState{}, err
	}
	if _, err := b.move(t); err != nil {
		return LimitState{}, err
	}
	account.Limits = &OwnLimits{Revision: own.Revision + 1, Limits: r.Limits}
	b.state.Accounts[account.ID], b.accounts[account.ID] = account, true
	b.limits.changed = append(b.limits.changed, account.ID)
	return b.limitState(r.Agent, "", "")
}

// checkParents verifies that the chain of parents ends, and not at the agent.
func (b *batch) checkParents(agent, parent string) error {
	for i := range maxParents + 1 { // the last one has no parent
		if parent == "" {
			return nil
		}
		if parent == agent {
			return refusal(api.Invalid, "set a parent above the agent", "%q would be its own ancestor", clip(agent))
		}
		a, ok := b.state.Accounts[Available(parent)]
		switch {
		case !ok && i == 0: // it is among the keys of the operation
			return UnknownAgent(parent)
		case !ok:
			b.limits.need.Accounts = append(b.limits.need.Accounts, Available(parent))
			return errNeeds
		}
		policy := b.limits.policy(&a)
		parent = policy.Parent
	}
	return refusal(api.Invalid, "set a parent nearer to the first agent", "%q would have more than %d ancestors", clip(agent), maxParents)
}

// Limits returns the limits of an agent and what is spent of them; turn and session may be
// "". Errors: NotFound, Invalid.
func (l *Ledger) Limits(ctx context.Context, agent, turn, session string) (LimitState, error) {
	if err := checkAgent(agent); err != nil {
		return LimitState{}, err
	}
	for what, id := range map[string]string{"turn": turn, "session": session} {
		if err := checkID(what, id); id != "" && err != nil {
			return LimitState{}, err
		}
	}
	return submit(ctx, l, Keys{Accounts: accountsIn(api.Credits, agent)}, func(b *batch) (LimitState, error) { return b.limitState(agent, turn, session) })
}

func (b *batch) limitState(agent, turn, session string) (LimitState, error) {
	if _, err := b.balance(agent); err != nil {
		return LimitState{}, err
	}
	a := b.state.Accounts[Available(agent)]
	policy := b.limits.policy(&a)
	s := LimitState{Effective: policy.Limits(), Available: a.Balance, At: b.now}
	if a.Limits != nil {
		s.Own = *a.Limits
	}
	sums := limits.Sums{Rolling: a.Meter, Pool: a.Pool}
	if turn != "" {
		sums.Turn, _ = b.tally(tallies(limits.Scopes{Turn: true}, agent, turn, "", "")[0])
	}
	if session != "" {
		sums.Session, _ = b.tally(tallies(limits.Scopes{Session: true}, agent, "", session, "")[0])
	}
	if !b.limits.need.Empty() {
		return s, errNeeds
	}
	s.Usage = policy.Usage(&sums, b.now)
	return s, nil
}

// Approval is a request for a payment that needs an approval; see [api.Approval].
type Approval struct {
	ID       string
	Agent    string
	Amount   api.Micros
	Category string
	Payee    string
	Domain   string
	Asset    string
	Status   api.ApprovalStatus // "": there is no request
	Hold     string
	AskedAt  int64
	EndsAt   int64
}

// approvalID returns the id of the request for a payment.
func approvalID(p *limits.Payment) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s %d %s %s %s %s %s", p.Agent, p.Amount, p.Category, p.Payee, p.Domain, p.Asset, p.Chain))
	return "approval-" + hex.EncodeToString(sum[:8])
}

// covers reports whether a is the request for p. Its id is short, so that people can type
// it, and an agent that chooses amounts and payees could find two payments with one id.
func (a *Approval) covers(p *limits.Payment) bool {
	return a.Agent == p.Agent && a.Amount == p.Amount && a.Category == p.Category && a.Payee == p.Payee && a.Domain == p.Domain && a.Asset == p.Asset
}

// approvalTime is how long an approval admits its payment.
const approvalTime = 24 * time.Hour

// ask stores the request for a payment that was refused for lack of an approval. If the
// process dies before, the payment is refused again when it is repeated, and the request
// is stored then.
func (l *Ledger) ask(ctx context.Context, pay *limits.Payment, hold string) error {
	return l.store.Ask(ctx, Approval{
		ID: approvalID(pay), Agent: pay.Agent, Amount: pay.Amount, Category: pay.Category, Payee: pay.Payee, Domain: pay.Domain,
		Asset: pay.Asset, Status: api.ApprovalOpen, Hold: hold, AskedAt: l.opts.Now().UnixMicro(),
	})
}

// Decide approves or refuses an open request. Errors: NotFound, Conflict.
func (l *Ledger) Decide(ctx context.Context, id string, approve bool) (Approval, error) {
	if err := checkID("approval", id); err != nil {
		return Approval{}, err
	}
	if approve {
		return l.store.Decide(ctx, id, api.ApprovalApproved, l.opts.Now().Add(approvalTime).UnixMicro())
	}
	return l.store.Decide(ctx, id, api.ApprovalRefused, 0)
}

// maxApprovals is the most requests in a list.
const maxApprovals = 100

// Approvals lists requests of an agent ("": of all) with a status ("": open), the latest
// first.
func (l *Ledger) Approvals(ctx context.Context, agent string, status api.ApprovalStatus) ([]Approval, error) {
	return l.store.Approvals(ctx, agent, cmp.Or(status, api.ApprovalOpen), maxApprovals)
}

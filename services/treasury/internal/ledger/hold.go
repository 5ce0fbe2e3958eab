package ledger

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/anima-run/anima/pkg/api"

	"github.com/anima-run/anima/services/treasury/internal/limits"
)

// Hold is an amount of an asset reserved before it is spent. Only an active hold changes:
//
//	        ┌─ settle ──▶ settled
//	active ─┼─ release ─▶ released
//	        └─ expire ──▶ expired
type Hold struct {
	ID        string
	Agent     string
	Category  string
	Turn      string
	Asset     api.Asset
	Amount    api.Micros
	Settled   api.Micros // the amount paid
	Payee     string     // that of the request, and after a settlement the account that was paid
	Status    api.HoldStatus
	CreatedAt int64
	ExpiresAt int64
	EndedAt   int64  // 0 while active
	Parent    string // W3C traceparent of the request, so that an expiry continues its trace
	Counted   string // sums of the limits that count the hold; see counting
}

// Accounts returns the accounts of the agent that a change of h reads.
func (h *Hold) Accounts() []string { return accountsIn(h.Asset, h.Agent) }

// HoldState is a hold with the balance and tier of its agent.
type HoldState struct {
	Hold
	Available api.Micros // of the asset of the hold
	Tier      api.Tier
}

// HoldRequest holds the arguments of [Ledger.Hold].
type HoldRequest struct {
	ID        string
	Agent     string
	Asset     api.Asset
	Amount    api.Micros
	Category  string // "" means other
	Turn      string
	ExpiresAt int64
	Payee     string // to be paid, as far as the holder knows; not compared with that of a repeated request
	Parent    string

	// What limits depend on; see [limits.Payment].
	Session     string
	By          api.PrincipalKind
	Domain      string
	Chain       string
	Facilitator string
	Owed        bool // no limit refuses the hold
	Exchange    bool // the agent exchanges it for another asset of its own: no limit refuses or counts the hold
}

func (r *HoldRequest) check() error {
	if r.Category == "" {
		r.Category = "other"
	}
	var category error
	if !api.ValidKey(r.Category) {
		category = api.Errorf(api.Invalid, "%q is not a category", clip(r.Category))
	}
	var turn error
	if r.Turn != "" {
		turn = checkID("turn", r.Turn)
	}
	var facts error
	if r.Payee != "" {
		facts = checkPayeeIn(r.Asset, r.Payee, r.Agent)
	}
	for what, value := range map[string]string{"session": r.Session, "domain": r.Domain, "chain": r.Chain, "facilitator": r.Facilitator} {
		if value != "" {
			facts = cmp.Or(facts, checkID(what, value))
		}
	}
	return cmp.Or(checkID("hold", r.ID), checkAgent(r.Agent), checkAsset(r.Asset), checkAmount(r.Amount, 1), category, turn, facts)
}

// payment returns what the limits of the agent are compared with. The payee is an address
// if it is an account of the chain.
func (r *HoldRequest) payment() limits.Payment {
	return limits.Payment{
		Agent: r.Agent, Amount: r.Amount, Category: r.Category, Turn: r.Turn, Session: r.Session, By: r.By,
		Payee: strings.TrimPrefix(r.Payee, "usdc-payee:"), Domain: r.Domain, Asset: string(r.Asset), Chain: r.Chain, Facilitator: r.Facilitator,
	}
}

// hold reserves an amount. If the hold exists, hold returns its current state, because a
// repeated request must show that the credits are no longer reserved. The expiry is not
// compared: a repeated request computes it from a later time.
func (b *batch) hold(r HoldRequest) (HoldState, error) {
	if h, ok := b.state.Holds[r.ID]; ok {
		if h.Agent != r.Agent || h.Asset != r.Asset || h.Amount != r.Amount || h.Category != r.Category || h.Turn != r.Turn {
			return HoldState{}, conflict(r.ID, "is already the id of another hold")
		}
		return b.stateOf(h)
	}
	if _, err := b.balance(r.Agent); err != nil {
		return HoldState{}, err
	}
	if r.ExpiresAt <= b.now {
		return HoldState{}, refusal(api.Invalid, "set expiresAt, in Unix microseconds, to a time after now", "hold %q would expire before it begins", clip(r.ID))
	}
	pay := r.payment()
	var counted counting
	if !r.Exchange {
		var err error
		if counted, err = b.admit(&pay, r.ID, r.Owed); err != nil {
			return HoldState{}, err
		}
	}
	_, err := b.post(Transaction{
		ID: r.ID + suffixHold, Kind: KindHold, Agent: r.Agent, Turn: r.Turn, Parent: r.Parent,
		Lines: []Line{{Account: AvailableIn(r.Asset, r.Agent), Amount: -r.Amount}, {Account: HeldIn(r.Asset, r.Agent), Amount: r.Amount}},
	})
	if err != nil {
		return HoldState{}, err
	}
	h := Hold{
		ID: r.ID, Agent: r.Agent, Category: r.Category, Turn: r.Turn, Asset: r.Asset, Amount: r.Amount,
		Payee: r.Payee, Status: api.HoldActive, CreatedAt: b.now, ExpiresAt: r.ExpiresAt, Parent: r.Parent, Counted: counted.encode(),
	}
	b.count(counted, r.Agent, r.Turn, r.Amount)
	b.keep(h)
	return b.stateOf(h)
}

// SettleRequest holds the arguments of [Ledger.Settle].
type SettleRequest struct {
	ID     string // of the hold
	Amount api.Micros
	Payee  string
	Memo   string
	Parent string
}

func (r *SettleRequest) check() error {
	return cmp.Or(checkID("hold", r.ID), checkAmount(r.Amount, 0), checkPayee(r.Payee, ""), checkText("memo", r.Memo))
}

// keys returns the rows that the settlement reads.
func (r *SettleRequest) keys() Keys {
	keys := Keys{Accounts: []string{r.Payee}, Holds: []string{r.ID}}
	if agent := ownerOf(r.Payee); agent != "" {
		keys.Accounts = accountsIn(AssetOf(r.Payee), agent)
	}
	return keys
}

// Settlement is the result of one request of [Ledger.SettleMany].
type Settlement struct {
	State HoldState
	Err   error // an [api.Error], or a failure of the store
}

// settleAll decides each settlement separately. After the last one, it returns the
// balances of the agents whose holds were found, sorted by agent.
func (b *batch) settleAll(rs []SettleRequest) ([]Settlement, []Balance) {
	all := make([]Settlement, len(rs))
	var agents []string
	for i, r := range rs {
		if all[i].Err = r.check(); all[i].Err != nil {
			continue
		}
		all[i].State, all[i].Err = b.settle(r)
		if h, ok := b.state.Holds[r.ID]; ok {
			agents = append(agents, h.Agent)
		}
	}
	slices.Sort(agents)
	var funds []Balance
	for _, agent := range slices.Compact(agents) {
		if balance, err := b.balance(agent); err == nil { // the agent of a hold has an account, so there is no error
			funds = append(funds, balance)
		}
	}
	return all, funds
}

// settle pays an amount from a hold and returns the rest to the agent. A hold past its
// expiry can be settled until it is released, because its credits are still reserved.
func (b *batch) settle(r SettleRequest) (HoldState, error) {
	h, err := b.find(r.ID)
	if err != nil {
		return HoldState{}, err
	}
	switch h.Status {
	case api.HoldActive:
	case api.HoldSettled:
		if h.Settled != r.Amount || h.Payee != r.Payee {
			return HoldState{}, conflict(r.ID, fmt.Sprintf("is settled already, with %s to %s", h.Settled, h.Payee))
		}
		return b.stateOf(h)
	default:
		return HoldState{}, conflict(r.ID, "is "+string(h.Status)+" and holds no money any more")
	}
	lines, err := h.pay(r.Payee, r.Amount)
	if err != nil {
		return HoldState{}, err
	}
	if named := h.Payee; named != r.Payee && ownerOf(named) != "" { // its limits were compared with this payee
		return HoldState{}, refusal(api.Invalid, "settle it to the payee of the hold", "%q was held for %s and not for %q", clip(r.ID), h.Payee, clip(r.Payee))
	}
	h.Status, h.Settled, h.Payee, h.EndedAt = api.HoldSettled, r.Amount, r.Payee, b.now
	return b.end(h, Transaction{
		ID: h.ID + suffixSettle, Kind: KindSettle, Agent: h.Agent, Turn: h.Turn, Memo: r.Memo, Parent: r.Parent, Lines: lines,
	})
}

// pay returns the lines of a payment from h, with the rest that returns to the agent.
func (h *Hold) pay(payee string, amount api.Micros) ([]Line, error) {
	if err := checkPayeeIn(h.Asset, payee, h.Agent); err != nil {
		return nil, err
	}
	if amount > h.Amount {
		return nil, refusal(api.Invalid, "settle at most what is held; hold more beforehand", "%s is more than the %s that %q holds", amount, h.Amount, clip(h.ID))
	}
	lines := []Line{{Account: HeldIn(h.Asset, h.Agent), Amount: -h.Amount}}
	if amount > 0 {
		lines = append(lines, Line{Account: payee, Amount: amount})
	}
	if rest := h.Amount - amount; rest > 0 {
		lines = append(lines, Line{Account: AvailableIn(h.Asset, h.Agent), Amount: rest})
	}
	return lines, nil
}

// release releases a hold. A hold that was released or has expired stays unchanged.
func (b *batch) release(id, reason, parent string) (HoldState, error) {
	h, err := b.find(id)
	if err != nil {
		return HoldState{}, err
	}
	switch h.Status {
	case api.HoldActive:
		return b.giveBack(h, api.HoldReleased, KindRelease, reason, parent)
	case api.HoldSettled:
		return HoldState{}, conflict(id, "is settled already")
	case api.HoldReleased, api.HoldExpired:
	}
	return b.stateOf(h)
}

// expire releases those of the given holds that are still active. All are past their
// expiry.
func (b *batch) expire(ids []string) (int, error) {
	n := 0
	for _, id := range ids {
		h, ok := b.state.Holds[id]
		if !ok || h.Status != api.HoldActive {
			continue
		}
		if _, err := b.giveBack(h, api.HoldExpired, KindExpire, "expired", h.Parent); err != nil {
			return n, err
		}
		n++
	}
	return n, nil
}

func (b *batch) giveBack(h Hold, status api.HoldStatus, kind Kind, reason, parent string) (HoldState, error) {
	h.Status, h.EndedAt = status, b.now
	return b.end(h, Transaction{
		ID: h.ID + suffixRelease, Kind: kind, Agent: h.Agent, Turn: h.Turn, Memo: reason, Parent: parent,
		Lines: []Line{{Account: HeldIn(h.Asset, h.Agent), Amount: -h.Amount}, {Account: AvailableIn(h.Asset, h.Agent), Amount: h.Amount}},
	})
}

func (b *batch) end(h Hold, t Transaction) (HoldState, error) {
	counted, err := b.counted(&h)
	if err != nil {
		return HoldState{}, err
	}
	if _, err := b.post(t); err != nil {
		return HoldState{}, err
	}
	b.uncount(counted, &h)
	b.keep(h)
	return b.stateOf(h)
}

func (b *batch) find(id string) (Hold, error) {
	h, ok := b.state.Holds[id]
	if !ok {
		return Hold{}, refusal(api.NotFound, "hold the money first", "there is no hold %q", clip(id))
	}
	return h, nil
}

func (b *batch) stateOf(h Hold) (HoldState, error) {
	balance, err := b.balance(h.Agent)
	state := HoldState{Hold: h, Available: balance.Available, Tier: balance.Tier()}
	if h.Asset != api.Credits {
		state.Available = b.state.Accounts[AvailableIn(h.Asset, h.Agent)].Balance
	}
	return state, err
}

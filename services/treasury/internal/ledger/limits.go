package ledger

import (
	"strings"
	"sync"

	"github.com/anima-run/anima/pkg/api"

	"github.com/anima-run/anima/services/treasury/internal/limits"
)

// OwnLimits are the limits that are set for an agent.
type OwnLimits struct {
	Revision int64      `json:"revision"`
	Limits   api.Limits `json:"limits"`
}

// maxParents bounds the chain of parents of an agent.
const maxParents = 8

// limiter has what the limits need besides the state: the operator's limits, and which
// rows the payments of an agent needed before. Rows that are named with the request are
// found in memory, while a row that is only needed during the decision costs a second
// decision. A missing or outdated hint costs time and is never wrong.
type limiter struct {
	operator *api.Limits
	base     limits.Policy // of agents without own limits

	mu    sync.Mutex
	hints map[hintKey]hint
}

type hintKey struct {
	agent string
	class limits.Class
}

type hint struct {
	scopes  limits.Scopes
	parents []string
}

// maxHints bounds the hints; a full map is emptied.
const maxHints = 4096

func (l *limiter) init(operator *api.Limits) {
	l.operator, l.base = operator, limits.Resolve(operator)
}

// policy returns the limits of an account.
func (l *limiter) policy(a *Account) limits.Policy {
	if a.Limits == nil {
		return l.base
	}
	return limits.Resolve(l.operator, &a.Limits.Limits)
}

// hint adds the rows that a payment of the same class needed before.
func (l *limiter) hint(keys *Keys, pay *limits.Payment) {
	l.mu.Lock()
	h, ok := l.hints[hintKey{pay.Agent, limits.ClassOf(pay.Category, pay.By)}]
	l.mu.Unlock()
	if !ok {
		return
	}
	for _, p := range h.parents {
		keys.Accounts = append(keys.Accounts, Available(p))
	}
	keys.Tallies = append(keys.Tallies, tallies(h.scopes, pay.Agent, pay.Turn, pay.Session, pay.Payee)...)
}

// learn keeps what a payment needed.
func (l *limiter) learn(pay *limits.Payment, h hint) {
	h.scopes.Rolling = false // it is in the row of the account
	key := hintKey{pay.Agent, limits.ClassOf(pay.Category, pay.By)}
	plain := h.scopes == limits.Scopes{} && len(h.parents) == 0
	l.mu.Lock()
	defer l.mu.Unlock()
	if plain {
		delete(l.hints, key)
		return
	}
	if l.hints == nil || len(l.hints) >= maxHints {
		l.hints = map[hintKey]hint{}
	}
	l.hints[key] = h
}

// tallies returns the keys of the tallies of a payment.
func tallies(s limits.Scopes, agent, turn, session, payee string) []string {
	var keys []string
	if s.Turn {
		keys = append(keys, "turn "+agent+" "+turn)
	}
	if s.Session {
		keys = append(keys, "session "+agent+" "+session)
	}
	if s.Payee {
		keys = append(keys, payeeKey(agent, payee))
	}
	return keys
}

func payeeKey(agent, payee string) string { return "payee " + agent + " " + payee }

// limiting is the part of a batch for limits.
type limiting struct {
	*limiter
	need    Keys
	tallies map[string]limits.Tally
	used    []Approval
	changed []string
}

// errNeeds is the result of an operation whose batch is decided again.
var errNeeds = api.Errorf(api.Unavailable, "the payment is decided again")

// admit compares a payment with the limits of the agent and with the lineage limits of its
// parents. It returns the sums that count the payment. The caller counts it after the
// transaction is posted.
func (b *batch) admit(pay *limits.Payment, id string, owed bool) (counting, error) {
	account := b.state.Accounts[Available(pay.Agent)]
	policy := b.limits.policy(&account)
	c := counting{class: limits.ClassOf(pay.Category, pay.By), scopes: policy.Scopes(pay), session: pay.Session, payee: pay.Payee}
	available := b.state.Accounts[AvailableIn(api.Asset(pay.Asset), pay.Agent)].Balance
	sums := limits.Sums{Available: available, Rolling: account.Meter, Approved: owed}
	for _, key := range tallies(c.scopes, pay.Agent, pay.Turn, pay.Session, pay.Payee) {
		t, ok := b.tally(key)
		if !ok {
			continue
		}
		switch kind, _, _ := strings.Cut(key, " "); kind {
		case "turn":
			sums.Turn = t
		case "session":
			sums.Session = t
		default:
			sums.Payee = t
		}
	}
	var approval Approval
	if !owed && policy.NeedsApproval(pay) {
		approval = b.approval(approvalID(pay))
		approval.ID = approvalID(pay)
		sums.Approved = approval.Status == api.ApprovalApproved && approval.EndsAt > b.now && approval.covers(pay)
	}
	parents, refused := b.pools(pay, &policy, &account)
	b.limits.learn(pay, hint{scopes: c.scopes, parents: parents})
	if !b.limits.need.Empty() {
		return c, errNeeds
	}
	c.pools = parents
	if owed || available < pay.Amount { // post refuses what the account cannot pay
		return c, nil
	}
	if e := policy.Check(pay, &sums, b.now); e != nil && (refused == nil || e.Reason != api.ReasonApproval) {
		if e.Reason == api.ReasonApproval {
			e.Next = "the request is stored: after anima budget approve " + approval.ID + ", repeat the payment"
		}
		return c, e
	}
	if approval.Status == api.ApprovalApproved {
		approval.Status, approval.Hold = api.ApprovalUsed, id
		c.approval = approval
	}
	return c, refused
}

// pools returns the agents with a lineage limit among the payer and its parents, and the
// first refusal of these limits.
func (b *batch) pools(pay *limits.Payment, policy *limits.Policy, account *Account) (pools []string, refused error) {
	name := pay.Agent
	for range 1 + maxParents { // the agent itself, too
		if policy.Pooled() {
			pools = append(pools, name)
			if e := policy.CheckPool(pay, name, &limits.Sums{Pool: account.Pool}, b.now); e != nil && refused == nil {
				refused = e
			}
		}
		name = policy.Parent
		if name == "" {
			break
		}
		parent, ok := b.state.Accounts[Available(name)]
		if !ok {
			b.limits.need.Accounts = append(b.limits.need.Accounts, Available(name))
			break
		}
		above := b.limits.policy(&parent)
		policy, account = &above, &parent
	}
	return pools, refused
}

// tally returns the sums of a turn, a session or a payee, and false if they have to be
// read first.
func (b *batch) tally(key string) (limits.Tally, bool) {
	t, ok := b.state.Tallies[key]
	if !ok {
		b.limits.need.Tallies = append(b.limits.need.Tallies, key)
	}
	return t, ok
}

func (b *batch) approval(id string) Approval {
	a, ok := b.state.Approvals[id]
	if !ok {
		b.limits.need.Approvals = append(b.limits.need.Approvals, id)
	}
	return a
}

// counting names the sums that count a hold.
type counting struct {
	class   limits.Class
	scopes  limits.Scopes
	session string
	payee   string
	pools   []string

	approval Approval // that the payment uses; without a status: none. It is not encoded
}

func (c *counting) tallies(agent, turn string) []string {
	return tallies(c.scopes, agent, turn, c.session, c.payee)
}

// meters calls change for the meters of the counting.
func (b *batch) meters(c *counting, agent string, change func(limits.Meter) limits.Meter) {
	if c.scopes.Rolling {
		a := b.state.Accounts[Available(agent)]
		a.Meter = change(a.Meter)
		b.state.Accounts[a.ID], b.accounts[a.ID] = a, true
	}
	for _, name := range c.pools {
		a := b.state.Accounts[Available(name)]
		a.Pool = change(a.Pool)
		b.state.Accounts[a.ID], b.accounts[a.ID] = a, true
	}
}

func (b *batch) setTally(key string, t limits.Tally) {
	if b.limits.tallies == nil {
		b.limits.tallies = map[string]limits.Tally{}
	}
	b.limits.tallies[key], b.state.Tallies[key] = t, t
}

// count adds a payment to its sums.
func (b *batch) count(c counting, agent, turn string, amount api.Micros) {
	b.meters(&c, agent, func(m limits.Meter) limits.Meter { return m.Add(b.now, c.class, amount) })
	for _, key := range c.tallies(agent, turn) {
		b.setTally(key, b.state.Tallies[key].Add(c.class, amount))
	}
	if c.approval.Status != "" {
		b.limits.used = append(b.limits.used, c.approval)
		b.state.Approvals[c.approval.ID] = c.approval
	}
}

// paid marks the payee of a counted payment as known.
func (b *batch) paid(c counting, agent string) {
	if key := payeeKey(agent, c.payee); c.scopes.Payee {
		t := b.state.Tallies[key]
		t.Settled++
		b.setTally(key, t)
	}
}

// counted returns the sums that count a hold. The error means that they have to be read
// first.
func (b *batch) counted(h *Hold) (counting, error) {
	if h.Counted == "" {
		return counting{}, nil
	}
	c := decodeCounting(h.Counted)
	for _, key := range c.tallies(h.Agent, h.Turn) {
		b.tally(key)
	}
	for _, name := range c.pools {
		if _, ok := b.state.Accounts[Available(name)]; !ok {
			b.limits.need.Accounts = append(b.limits.need.Accounts, Available(name))
		}
	}
	if !b.limits.need.Empty() {
		return c, errNeeds
	}
	return c, nil
}

// uncount subtracts what an ended hold did not pay from the sums that count it.
func (b *batch) uncount(c counting, h *Hold) {
	rest, paid := h.Amount-h.Settled, h.Settled > 0
	if rest > 0 {
		b.meters(&c, h.Agent, func(m limits.Meter) limits.Meter { return m.Take(h.CreatedAt, c.class, rest, paid) })
		for _, key := range c.tallies(h.Agent, h.Turn) {
			b.setTally(key, b.state.Tallies[key].Take(c.class, rest, paid))
		}
	}
	if paid {
		b.paid(c, h.Agent)
	}
}

// CountedBy returns the accounts and tallies that an end of the hold changes, besides the
// accounts of its agent.
func (h *Hold) CountedBy() (accounts, tallies []string) {
	if h.Counted == "" {
		return nil, nil
	}
	c := decodeCounting(h.Counted)
	for _, name := range c.pools {
		accounts = append(accounts, Available(name))
	}
	return accounts, c.tallies(h.Agent, h.Turn)
}

// encode returns the counting as text: "" if nothing counts the hold, else its class as a
// digit and its parts, separated by spaces: "0 day", "1 day turn session=s payee=p pool=a".
func (c *counting) encode() string {
	var parts []string
	if c.scopes.Rolling {
		parts = append(parts, "day")
	}
	if c.scopes.Turn {
		parts = append(parts, "turn")
	}
	if c.scopes.Session {
		parts = append(parts, "session="+c.session)
	}
	if c.scopes.Payee {
		parts = append(parts, "payee="+c.payee)
	}
	for _, name := range c.pools {
		parts = append(parts, "pool="+name)
	}
	if len(parts) == 0 {
		return ""
	}
	return string('0'+rune(c.class)) + " " + strings.Join(parts, " ")
}

func decodeCounting(text string) counting {
	var c counting
	if text == "" {
		return c
	}
	c.class = limits.Class(text[0]-'0') & 7
	for part := range strings.FieldsSeq(text[1:]) {
		name, value, _ := strings.Cut(part, "=")
		switch name {
		case "day":
			c.scopes.Rolling = true
		case "turn":
			c.scopes.Turn = true
		case "session":
			c.scopes.Session, c.session = true, value
		case "payee":
			c.scopes.Payee, c.payee = true, value
		case "pool":
			c.pools = append(c.pools, value)
		}
	}
	return c
}

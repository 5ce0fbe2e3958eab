package sqlstore_test

import (
	"fmt"
	"strings"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/services/treasury/internal/ledger"
)

// book is the model of [TestHistories]: the rules of the ledger in both assets, without
// accounts and lines, with the limits and the payments over x402.
type book struct {
	now   int64
	purse map[string]*purse // by asset and agent
	holds map[string]*ledger.Hold
	done  map[string]*effects // transactions of callers and settlements, by id
	rules spending
	spent map[string]*payment // what the limits count, by hold
	bills map[string]*bill    // payments over x402, by id
}

// purse is what an agent has of an asset.
type purse struct{ available, held, debt api.Micros }

// effects are the changes of what agents own by one transaction.
type effects struct {
	content  string // of its request
	fixed    bool   // it cannot be reversed
	changes  []effectOf
	reversed bool
}

type effectOf struct {
	asset  api.Asset
	agent  string
	amount api.Micros
}

func newBook(now int64) *book {
	return &book{
		now: now, purse: map[string]*purse{}, holds: map[string]*ledger.Hold{}, done: map[string]*effects{},
		rules: spending{limits: map[string]api.Limits{}, available: map[string]api.Micros{}}, spent: map[string]*payment{}, bills: map[string]*bill{},
	}
}

func (m *book) of(asset api.Asset, agent string) *purse {
	key := string(asset) + "/" + agent
	if m.purse[key] == nil {
		m.purse[key] = &purse{}
	}
	return m.purse[key]
}

func (m *book) balance(agent string) ledger.Balance {
	c, u := m.of(api.Credits, agent), m.of(api.USDC, agent)
	return ledger.Balance{Agent: agent, Available: c.available, Held: c.held, Debt: c.debt, USDC: u.available, USDCHeld: u.held, USDCDebt: u.debt}
}

// force changes what an agent has: a gain repays its debt first, a loss beyond the
// available amount is its debt.
func (m *book) force(e effectOf) {
	p := m.of(e.asset, e.agent)
	if e.amount > 0 {
		repaid := min(e.amount, p.debt)
		p.debt -= repaid
		p.available += e.amount - repaid
		return
	}
	if p.available += e.amount; p.available < 0 {
		p.debt -= p.available
		p.available = 0
	}
}

// once records a transaction. It returns false if the id exists, with the code of the
// answer.
func (m *book) once(id, content string) (*effects, api.Code, bool) {
	if was := m.done[id]; was != nil {
		if was.content != content {
			return nil, api.Conflict, false
		}
		return nil, "", false
	}
	m.done[id] = &effects{content: content}
	return m.done[id], "", true
}

// hold returns the reasons of a refusal, any of which the ledger may give.
func (m *book) hold(r ledger.HoldRequest) (api.Code, []string) {
	if h := m.holds[r.ID]; h != nil {
		if h.Agent != r.Agent || h.Asset != r.Asset || h.Amount != r.Amount || h.Category != r.Category || h.Turn != r.Turn {
			return api.Conflict, nil
		}
		return "", nil
	}
	p := m.of(r.Asset, r.Agent)
	counted := &payment{
		id: r.ID, agent: r.Agent, asset: r.Asset, turn: r.Turn, session: r.Session, category: r.Category,
		payee: strings.TrimPrefix(r.Payee, "usdc-payee:"), peer: r.By == api.Peer, amount: r.Amount, at: m.now,
	}
	m.rules.now, m.rules.available[r.Agent] = m.now, p.available
	if refused := m.rules.refusals(counted); len(refused) > 0 {
		return api.Denied, refused
	}
	m.rules.payments, m.spent[r.ID] = append(m.rules.payments, counted), counted
	p.available -= r.Amount
	p.held += r.Amount
	m.holds[r.ID] = &ledger.Hold{
		ID: r.ID, Agent: r.Agent, Asset: r.Asset, Amount: r.Amount, Category: r.Category, Turn: r.Turn, Status: api.HoldActive, ExpiresAt: r.ExpiresAt,
	}
	m.done[r.ID+"/hold"] = &effects{fixed: true}
	return "", nil
}

// payee returns a payee in the asset of a hold.
func (m *book) payee(hold string, agents []string, agent bool) string {
	h := m.holds[hold]
	if h == nil {
		return "provider:x"
	}
	other := agents[0]
	if other == h.Agent {
		other = agents[1]
	}
	switch {
	case agent:
		return ledger.AvailableIn(h.Asset, other)
	case h.Asset == api.USDC:
		return "usdc-payee:0xab"
	}
	return "provider:x"
}

// end ends an active hold: paid leaves the agent, the rest returns to it.
func (m *book) end(h *ledger.Hold, status api.HoldStatus, paid api.Micros, payee string) {
	h.Status, h.Settled, h.Payee = status, paid, payee
	p := m.of(h.Asset, h.Agent)
	p.held -= h.Amount
	p.available += h.Amount - paid
	if counted := m.spent[h.ID]; counted != nil {
		counted.amount, counted.gone, counted.settled = paid, paid == 0, paid > 0
	}
}

func (m *book) settle(r ledger.SettleRequest) api.Code {
	h := m.holds[r.ID]
	switch {
	case h == nil:
		return api.NotFound
	case h.Status == api.HoldSettled && h.Settled == r.Amount && h.Payee == r.Payee:
		return ""
	case h.Status != api.HoldActive:
		return api.Conflict
	case r.Amount > h.Amount:
		return api.Invalid
	}
	e := &effects{content: "settle"}
	if r.Amount > 0 {
		e.changes = []effectOf{{h.Asset, h.Agent, -r.Amount}}
		if agent, ok := strings.CutPrefix(r.Payee, ledger.AvailableIn(h.Asset, "")); ok {
			e.changes = append(e.changes, effectOf{h.Asset, agent, r.Amount})
			m.of(h.Asset, agent).available += r.Amount // a payment between agents repays no debt
		}
	}
	m.end(h, api.HoldSettled, r.Amount, r.Payee)
	m.done[r.ID+"/settle"] = e
	return ""
}

func (m *book) release(id string) api.Code {
	switch h := m.holds[id]; {
	case h == nil:
		return api.NotFound
	case h.Status == api.HoldSettled:
		return api.Conflict
	case h.Status == api.HoldActive:
		m.end(h, api.HoldReleased, 0, "")
	}
	return ""
}

func (m *book) expire() {
	for _, h := range m.holds {
		if h.Status == api.HoldActive && h.ExpiresAt <= m.now {
			m.end(h, api.HoldExpired, 0, "")
		}
	}
}

func (m *book) deposit(r ledger.DepositRequest) api.Code {
	e, code, first := m.once(r.ID, fmt.Sprint(r.Agent, r.Amount, r.Source))
	if first {
		e.changes = []effectOf{{ledger.AssetOf(r.Source), r.Agent, r.Amount}}
		m.force(e.changes[0])
	}
	return code
}

func (m *book) transfer(r ledger.TransferRequest) (api.Code, []string) {
	from, to := m.of(api.Credits, r.From), m.of(api.Credits, r.To)
	if m.done[r.ID] == nil && from.available < r.Amount {
		return api.Denied, []string{api.ReasonInsufficient}
	}
	e, code, first := m.once(r.ID, fmt.Sprint(r.From, r.To, r.Amount))
	if first {
		e.fixed = true
		from.available -= r.Amount
		to.available += r.Amount
	}
	return code, nil
}

func (m *book) give(r ledger.GiveRequest) (api.Code, []string) {
	payee := ledger.Available(r.To)
	if h := m.holds[r.ID]; h != nil {
		if h.Agent != r.From || h.Amount != r.Amount || h.Payee != payee {
			return api.Conflict, nil
		}
		return "", nil
	}
	code, reasons := m.hold(ledger.HoldRequest{
		ID: r.ID, Agent: r.From, Amount: r.Amount, Category: api.CategoryTransfer, Turn: r.Turn, By: r.By, Payee: payee, ExpiresAt: m.now + 1,
	})
	if code == "" {
		code = m.settle(ledger.SettleRequest{ID: r.ID, Amount: r.Amount, Payee: payee})
	}
	return code, reasons
}

func (m *book) purchase(r ledger.PurchaseRequest) api.Code {
	id, content := r.ID, fmt.Sprint(r.Agent, r.USDC, r.Credits)
	var h *ledger.Hold
	if r.Hold != "" {
		h, id = m.holds[r.Hold], r.Hold+"/settle"
		switch {
		case h == nil:
			return api.NotFound
		case h.Asset != api.USDC || r.USDC > h.Amount:
			return api.Invalid
		case m.done[id] == nil && h.Status != api.HoldActive:
			return api.Conflict
		}
	}
	e, code, first := m.once(id, content)
	if !first {
		return code
	}
	e.changes = []effectOf{{api.Credits, r.Agent, r.Credits}}
	m.force(e.changes[0])
	if h != nil {
		m.end(h, api.HoldSettled, r.USDC, ledger.OperatorUSDC)
		e.changes = append(e.changes, effectOf{api.USDC, h.Agent, -r.USDC})
	}
	return ""
}

func (m *book) reverse(id string) api.Code {
	e := m.done[id]
	switch {
	case e == nil:
		return api.NotFound
	case e.fixed || len(e.changes) == 0:
		return api.Invalid
	case e.reversed:
		return ""
	}
	e.reversed = true
	for _, c := range e.changes {
		m.force(effectOf{c.asset, c.agent, -c.amount})
	}
	return ""
}

package sqlstore_test

import (
	"fmt"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/services/treasury/internal/ledger"
	"github.com/anima-run/anima/services/treasury/internal/pay"
)

// bill is the model of a payment over x402. Which of the permitted outcomes it has, and
// when its hold ends, is read from its row.
type bill struct {
	request     pay.Request
	seller      string
	amount      api.Micros
	state       api.PaymentState
	nonce       string
	validBefore int64 // Unix seconds; 0 before the money is held
	posted      bool
	answered    bool  // the seller's answer is stored
	reopened    int64 // how often its settlement was removed
	hold        string
}

// expiryMargin is the time in seconds after the last moment to settle a payment from which on
// its absence from the chain is final.
const expiryMargin = 60

// pay returns what a request of a payment returns. It is called after the request.
func (m *book) pay(r pay.Request, seller string, price api.Micros, at *bazaar) (api.Code, []string) {
	q := m.bills[r.ID]
	if q == nil {
		q = &bill{request: r, seller: seller, amount: price, state: api.PaymentIntended, hold: "x402/" + r.ID}
		m.bills[r.ID] = q
	}
	switch {
	case q.request.Agent != r.Agent || q.request.URL != r.URL:
		return api.Conflict, nil
	case q.state == api.PaymentSettled:
		return "", nil
	case q.state == api.PaymentExpired:
		return api.Denied, []string{api.ReasonExpired}
	case q.validBefore == 0:
		code, reasons := m.hold(ledger.HoldRequest{
			ID: q.hold, Agent: r.Agent, Asset: api.USDC, Amount: q.amount, Category: api.CategoryX402, Turn: r.Turn, Session: r.Session, By: r.By,
			Payee: "usdc-payee:" + marketPayee, ExpiresAt: m.now + 30*24*3_600_000_000,
		})
		if code != "" {
			return code, reasons
		}
		q.validBefore = m.now/1_000_000 + marketTimeout
	case q.answered: // the stored answer, unless the chain shows that nothing was paid
		if !at.settled(q.nonce) && m.now/1_000_000 > q.validBefore+expiryMargin {
			return api.Denied, []string{api.ReasonExpired}
		}
		return "", nil
	case q.validBefore <= m.now/1_000_000:
		return api.Unavailable, nil
	}
	if q.seller == refuser {
		return api.Denied, []string{api.ReasonRefused}
	}
	return "", nil
}

// observe compares the row of a payment with the chain, and applies what it did to the
// money.
func (m *book) observe(row *pay.Payment, at *bazaar) error {
	q := m.bills[row.ID]
	if row.Reopened > q.reopened {
		m.reopen(q, row)
	}
	was := q.state
	q.state, q.answered = row.State, row.Answer.Status > 0
	if row.Nonce != "" {
		q.nonce = row.Nonce
	}
	used := at.settled(q.nonce)
	switch row.State {
	case api.PaymentSettled:
		if !used {
			return fmt.Errorf("payment %s is settled, and not on the chain", row.ID)
		}
	case api.PaymentExpired:
		if used || m.now/1_000_000 <= q.validBefore {
			return fmt.Errorf("payment %s has expired at %d: it is on the chain (%t), or may be until %d", row.ID, m.now/1_000_000, used, q.validBefore)
		}
	case api.PaymentIntended, api.PaymentUnknown:
		if was != api.PaymentIntended && was != api.PaymentUnknown || q.validBefore != 0 && row.State == api.PaymentIntended {
			return fmt.Errorf("payment %s was %s and is %s", row.ID, was, row.State)
		}
	default:
		return fmt.Errorf("payment %s is left %s", row.ID, row.State)
	}
	if !row.Posted || q.posted {
		return nil
	}
	q.posted = true
	if row.State == api.PaymentSettled {
		m.settled(q)
	} else {
		m.end(m.holds[q.hold], api.HoldReleased, 0, "")
	}
	return nil
}

func (m *book) settled(q *bill) {
	m.end(m.holds[q.hold], api.HoldSettled, q.amount, "usdc-payee:"+marketPayee)
}

// reopen holds the money of a removed settlement, which may have been posted in the same
// step. The limits count the first hold only.
func (m *book) reopen(q *bill, row *pay.Payment) {
	if !q.posted {
		m.settled(q)
	}
	q.reopened, q.hold, q.posted, q.state = row.Reopened, row.Hold(), false, api.PaymentUnknown
	m.of(api.USDC, row.Agent).held += q.amount
	m.holds[q.hold] = &ledger.Hold{ID: q.hold, Agent: row.Agent, Asset: api.USDC, Amount: q.amount, Status: api.HoldActive, ExpiresAt: m.now + 30*24*3_600_000_000}
}

// usdc returns what an agent has of USDC by what happened outside the ledger: what it
// received and paid, and its payments on the chain.
func (m *book) usdc(agent string, at *bazaar) (sum api.Micros) {
	for _, e := range m.done {
		for _, c := range e.changes {
			if c.asset == api.USDC && c.agent == agent && !e.reversed {
				sum += c.amount
			}
		}
	}
	for _, q := range m.bills {
		if q.request.Agent == agent && at.settled(q.nonce) {
			sum -= q.amount
		}
	}
	return sum
}

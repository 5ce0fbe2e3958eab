package ledger

import (
	"cmp"
	"strings"

	"github.com/anima-run/anima/pkg/api"
)

// CategoryExchange is the category of holds of USDC with which agents buy credits for
// themselves.
const CategoryExchange = "exchange"

// salePrefix begins the ids of purchases that are paid over HTTP 402.
const salePrefix = "x402/"

// SaleID returns the id of the purchase that a payment over HTTP 402 pays. The key of the
// payment is its network, the address of its payer and its nonce, separated by slashes.
func SaleID(key string) string { return salePrefix + key }

// payerOf returns the address that has paid a purchase over HTTP 402, in lower case, ""
// for every other transaction.
func payerOf(t *Transaction) string {
	key, ok := strings.CutPrefix(t.ID, salePrefix)
	parts := strings.Split(key, "/")
	if !ok || len(parts) != 3 || t.Kind != KindPurchase {
		return ""
	}
	return strings.ToLower(parts[1])
}

// PurchaseRequest holds the arguments of [Ledger.Purchase]: credits for an agent that are
// paid in USDC, from a hold or from outside the ledger.
type PurchaseRequest struct {
	// ID is that of the transaction, "" with Hold: the transaction settles the hold and
	// has the id of its settlement.
	ID string
	// Hold is an active hold of USDC that pays. What it holds above USDC returns to its
	// agent.
	Hold string
	// Source is the external account that pays without a hold, such as
	// "usdc-chain:base".
	Source  string
	Agent   string     // receives the credits
	USDC    api.Micros // paid, more than 0
	Credits api.Micros // issued, more than 0
	Payee   string     // receives the USDC; "" means OperatorUSDC
	Memo    string
	Parent  string
}

func (r *PurchaseRequest) check() error {
	r.Payee = cmp.Or(r.Payee, OperatorUSDC)
	payee := checkPayeeIn(api.USDC, r.Payee, "")
	if payee == nil && ownerOf(r.Payee) != "" {
		payee = api.Errorf(api.Invalid, "%q belongs to an agent, which does not sell credits", clip(r.Payee))
	}
	var from error
	switch {
	case r.Hold == "":
		from = cmp.Or(checkOwnID(r.ID), checkPayeeIn(api.USDC, r.Source, ""))
		if from == nil && (ownerOf(r.Source) != "" || r.Source == r.Payee) {
			from = refusal(api.Invalid, "hold the USDC of an agent first", "%q cannot pay for credits", clip(r.Source))
		}
	case r.ID != "" || r.Source != "":
		from = api.Errorf(api.Invalid, "a purchase from hold %q has no other id and no other source", clip(r.Hold))
	default:
		from = checkID("hold", r.Hold)
	}
	return cmp.Or(from, checkAgent(r.Agent), checkAmount(r.USDC, 1), checkAmount(r.Credits, 1), payee, checkText("memo", r.Memo))
}

// keys returns the rows that the purchase reads.
func (r *PurchaseRequest) keys() Keys {
	keys := Keys{
		Accounts:        append(accountsIn(api.Credits, r.Agent), DebtIn(api.Credits, r.Agent), Operator, r.Payee),
		NewTransactions: []string{r.ID},
	}
	if r.Hold != "" {
		keys.Holds, keys.NewTransactions = []string{r.Hold}, []string{r.Hold + suffixSettle}
	} else {
		keys.Accounts = append(keys.Accounts, r.Source)
	}
	return keys
}

// purchase moves the USDC and issues the credits in one transaction. Either both happen
// or none; a repeated request issues nothing.
func (b *batch) purchase(r PurchaseRequest) (Transaction, error) {
	t := Transaction{ID: r.ID, Kind: KindPurchase, Agent: r.Agent, Memo: r.Memo, Parent: r.Parent}
	t.Lines = []Line{{Account: r.Source, Amount: -r.USDC}, {Account: r.Payee, Amount: r.USDC}}
	var h Hold
	var counted counting
	if r.Hold != "" {
		var err error
		if h, err = b.find(r.Hold); err != nil {
			return Transaction{}, err
		}
		if counted, err = b.counted(&h); err != nil {
			return Transaction{}, err
		}
		if h.Asset != api.USDC {
			return Transaction{}, refusal(api.Invalid, "hold USDC to buy credits", "%q holds credits", clip(r.Hold))
		}
		if t.Lines, err = h.pay(r.Payee, r.USDC); err != nil {
			return Transaction{}, err
		}
		t.ID, t.Agent, t.Turn = h.ID+suffixSettle, h.Agent, h.Turn
	}
	t.Lines = append(t.Lines, b.owing([]Line{{Account: Operator, Amount: -r.Credits}, {Account: Available(r.Agent), Amount: r.Credits}})...)
	_, again := b.state.Transactions[t.ID]
	if r.Hold != "" && !again && h.Status != api.HoldActive {
		return Transaction{}, conflict(r.Hold, "is "+string(h.Status)+" and holds no money any more")
	}
	done, err := b.move(t)
	if err == nil && r.Hold != "" && !again {
		h.Status, h.Settled, h.Payee, h.EndedAt = api.HoldSettled, r.USDC, r.Payee, b.now
		b.uncount(counted, &h)
		b.keep(h)
	}
	return done, err
}

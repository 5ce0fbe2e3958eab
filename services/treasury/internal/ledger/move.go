package ledger

import (
	"cmp"
	"maps"

	"github.com/anima-run/anima/pkg/api"
)

// DepositRequest holds the arguments of [Ledger.Deposit].
type DepositRequest struct {
	ID     string
	Agent  string
	Amount api.Micros
	Source string // the external account that is debited
	Memo   string
	Parent string
}

func (r *DepositRequest) check() error {
	source := checkPayee(r.Source, "")
	if ownerOf(r.Source) != "" {
		source = &api.Error{Code: api.Invalid, Message: "an agent's account is not a source of deposits", Next: "transfer instead"}
	}
	return cmp.Or(checkOwnID(r.ID), checkAgent(r.Agent), checkAmount(r.Amount, 1), source, checkText("memo", r.Memo))
}

func (b *batch) deposit(r DepositRequest) (Transaction, error) {
	return b.move(Transaction{
		ID: r.ID, Kind: KindDeposit, Agent: r.Agent, Memo: r.Memo, Parent: r.Parent,
		Lines: b.owing([]Line{{Account: r.Source, Amount: -r.Amount}, {Account: AvailableIn(AssetOf(r.Source), r.Agent), Amount: r.Amount}}),
	})
}

// TransferRequest holds the arguments of [Ledger.Transfer].
type TransferRequest struct {
	ID     string
	From   string
	To     string
	Amount api.Micros
	Memo   string
	Parent string
}

func (r *TransferRequest) check() error {
	var self error
	if r.From == r.To {
		self = api.Errorf(api.Invalid, "agent %q cannot pay itself", clip(r.From))
	}
	return cmp.Or(checkOwnID(r.ID), checkAgent(r.From), checkAgent(r.To), self, checkAmount(r.Amount, 1), checkText("memo", r.Memo))
}

func (b *batch) transfer(r TransferRequest) (Transaction, error) {
	return b.move(Transaction{
		ID: r.ID, Kind: KindTransfer, Agent: r.From, Memo: r.Memo, Parent: r.Parent,
		Lines: []Line{{Account: Available(r.From), Amount: -r.Amount}, {Account: Available(r.To), Amount: r.Amount}},
	})
}

// move posts a transaction with an id of the caller, once.
func (b *batch) move(t Transaction) (Transaction, error) {
	was, ok := b.state.Transactions[t.ID]
	if !ok {
		return b.post(t)
	}
	if !maps.Equal(effect(was.Lines), effect(t.Lines)) || was.Kind != t.Kind || was.Agent != t.Agent || was.Memo != t.Memo {
		return Transaction{}, conflict(t.ID, "is already the id of another transaction")
	}
	return was, nil
}

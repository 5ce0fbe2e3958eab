package treasury

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/ethereum/go-ethereum/common/math"
	ethcrypto "github.com/ethereum/go-ethereum/crypto"
	"github.com/ethereum/go-ethereum/signer/core/apitypes"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"
	"github.com/anima-run/anima/pkg/executor"

	"github.com/anima-run/anima/services/treasury/internal/chain"
	"github.com/anima-run/anima/services/treasury/internal/ledger"
	"github.com/anima-run/anima/services/treasury/internal/wallet"
)

// parentOf returns the parent of an agent, which is part of its limits, "" without one.
func (h *handlers) parentOf(ctx context.Context, child string) (string, error) {
	s, err := h.ledger.Limits(ctx, child, "", "")
	return s.Effective.Parent, err
}

// fundChild executes fund_child: it gives credits to a child of the agent, within the
// agent's limits and at most half of its credits. The key of the call is the id of the
// transfer, so a repeated call gives once. An agent that is not a child and one that does
// not exist have the same refusal.
func (h *handlers) fundChild(ctx context.Context, c executor.Call) (string, error) {
	child := strings.ToLower(c.Args.String("child_id"))
	parent, err := h.parentOf(ctx, child)
	switch code := api.CodeOf(err); {
	case code == api.NotFound || code == api.Invalid || err == nil && parent != c.Agent:
		return "", &api.Error{
			Code: api.Denied, Reason: api.ReasonNoParent, Message: fmt.Sprintf("you have no child %.60q", child),
			Next: "your creator can make it your child; transfer_credits gives credits to other agents",
		}
	case err != nil:
		return "", err
	}
	return h.give(ctx, c, child, child, "for a child")
}

// Returns of credits. A signed return is valid for returnTime, so that one that was not
// presented has no effect much later.
const (
	returnTime = time.Hour
	returnSkew = 10 * time.Minute // that the clock of the presenting process may be behind
)

// returnID derives the id of the transfer from the child and its own id for the return.
func returnID(m *api.ReturnCredits) string { return "return/" + m.Child + "/" + returnNonce(m)[2:] }

func returnNonce(m *api.ReturnCredits) string {
	return hexutil.Encode(ethcrypto.Keccak256([]byte(m.ID)))
}

// returnData returns what a child signs, with the rule that it obeys at a time. The parent
// is the present one, so a return to an earlier parent is not valid.
func (h *handlers) returnData(ctx context.Context, m *api.ReturnCredits, at time.Time) (from common.Address, parent string, data apitypes.TypedData, rule wallet.Rule, err error) {
	if m.ID == "" || len(m.ID) > 200 || m.Amount <= 0 || m.Amount > api.MaxMicros {
		return from, parent, data, rule, &api.Error{Code: api.Invalid, Message: "the id or the amount is not valid", Next: "use an id of 1 to 200 bytes and an amount above 0"}
	}
	if parent, err = h.parentOf(ctx, m.Child); err != nil {
		return from, parent, data, rule, err
	}
	if parent == "" {
		return from, parent, data, rule, &api.Error{Code: api.Denied, Reason: api.ReasonNoParent, Message: fmt.Sprintf("agent %.60q has no parent", m.Child)}
	}
	own, err := h.addressOf(ctx, m.Child)
	if err != nil {
		return from, parent, data, rule, err
	}
	to, err := h.addressOf(ctx, parent)
	if err != nil {
		return from, parent, data, rule, err
	}
	n, err := chain.Find(h.cfg.Network) // the network tells installations apart; nothing happens on it
	if err != nil {
		return from, parent, data, rule, err
	}
	from = common.HexToAddress(own)
	data = apitypes.TypedData{
		Types: wallet.TypesOf(wallet.TypeReturn), PrimaryType: wallet.TypeReturn,
		Domain: apitypes.TypedDataDomain{Name: "anima credits", Version: "1", ChainId: math.NewHexOrDecimal256(n.ChainID)},
		Message: apitypes.TypedDataMessage{
			"from": from.Hex(), "to": common.HexToAddress(to).Hex(), "value": strconv.FormatInt(int64(m.Amount), 10),
			"validAfter": strconv.FormatInt(m.ValidAfter, 10), "validBefore": strconv.FormatInt(m.ValidBefore, 10), "nonce": returnNonce(m),
		},
	}
	rule = wallet.Rule{
		Types: []string{wallet.TypeReturn}, Name: data.Domain.Name, Version: data.Domain.Version, ChainID: uint64(n.ChainID), //nolint:gosec // an id is positive
		Payee: common.HexToAddress(to), MaxValue: m.Amount, MaxWindow: returnTime + returnSkew, Now: at,
	}
	return from, parent, data, rule, nil
}

// signReturn signs a return. It stores nothing.
func (h *handlers) signReturn(ctx context.Context, m api.SignReturn) (api.ReturnCredits, error) {
	now := h.now()
	r := api.ReturnCredits{
		ID: m.ID, Child: strings.ToLower(m.Child), Amount: m.Amount,
		ValidAfter: now.Add(-returnSkew).Unix(), ValidBefore: now.Add(returnTime).Unix(),
	}
	_, _, data, rule, err := h.returnData(ctx, &r, now)
	if err != nil {
		return api.ReturnCredits{}, err
	}
	signed, err := h.wallets.SignTypedData(ctx, r.Child, data, rule)
	r.Signature = signed.Signature
	return r, err
}

// returnCredits makes a signed return in one commit, so a process that dies has made it or
// not, and the repeated request makes it once.
func (h *handlers) returnCredits(ctx context.Context, m api.ReturnCredits) (api.CreditsReturned, error) {
	m.Child = strings.ToLower(m.Child)
	from, parent, data, rule, err := h.returnData(ctx, &m, h.now())
	if err != nil {
		return api.CreditsReturned{}, err
	}
	if m.ValidBefore <= h.now().Unix() {
		return api.CreditsReturned{}, &api.Error{
			Code: api.Denied, Reason: api.ReasonExpired, Message: "the time of the signed return has passed",
			Next: "anima ledger entries CHILD shows whether it was made; otherwise have the child sign another one",
		}
	}
	if err := rule.Verify(from, &data, m.Signature); err != nil {
		return api.CreditsReturned{}, err
	}
	done, err := h.ledger.Give(ctx, ledger.GiveRequest{
		ID: returnID(&m), From: m.Child, To: parent, Amount: m.Amount, Memo: "returned to the parent", Parent: bus.TraceParent(ctx),
	})
	h.tel.transferred(ctx, err)
	return api.CreditsReturned{ID: m.ID, Child: m.Child, Parent: parent, Amount: m.Amount, Left: done.Left, At: done.At}, err
}

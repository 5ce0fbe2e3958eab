package treasury

import (
	"context"
	"fmt"
	"maps"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"
	"github.com/anima-run/anima/pkg/executor"

	"github.com/anima-run/anima/services/treasury/internal/ledger"
)

// tools returns the tools that treasury offers to agents, by name.
func (h *handlers) tools() map[string]executor.Func {
	all := map[string]executor.Func{
		"check_credits":    h.checkCredits,
		"transfer_credits": h.transferCredits,
		"fund_child":       h.fundChild,
	}
	if h.payer != nil {
		all["x402_fetch"] = h.x402Tool
	}
	if h.chain != nil {
		all["check_usdc_balance"] = h.checkUSDC
	}
	if h.topups.on() {
		all["topup_credits"] = h.topups.tool
	}
	maps.Copy(all, h.outside.tools())
	return all
}

// absentTools returns the tools that are not executed now, with the reasons.
func (h *handlers) absentTools() map[string]error {
	all := map[string]error{}
	if h.payer == nil {
		all["x402_fetch"] = noChain()
	}
	if h.chain == nil {
		all["check_usdc_balance"] = noChain()
	}
	if !h.topups.on() {
		all["topup_credits"] = noSeller()
	}
	maps.Copy(all, h.outside.absent())
	return all
}

func (h *handlers) checkCredits(ctx context.Context, c executor.Call) (string, error) {
	b, err := h.getBalance(ctx, api.GetBalance{Agent: c.Agent})
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("available %s, held %s, tier %s", b.Available, b.Held, b.Tier), nil
}

// checkUSDC executes check_usdc_balance. A balance that cannot be read is an error, or the
// last known one that is called old, and never 0.
func (h *handlers) checkUSDC(ctx context.Context, c executor.Call) (string, error) {
	w, err := h.getWallet(ctx, api.GetWallet{Agent: c.Agent})
	switch {
	case err != nil:
		return "", err
	case !w.Known:
		return "", &api.Error{Code: api.Unavailable, Reason: api.ReasonChain, Message: "the balance is not known, which does not mean 0: " + w.Error, RetryAfter: 30_000}
	}
	text := fmt.Sprintf("the wallet %s has %s of USDC on %s at block %d", w.Address, w.OnChain, w.Network, w.Block)
	if w.Stale {
		text = fmt.Sprintf("the chain cannot be read now (%s); at block %d, %s, the wallet %s had %s of USDC on %s",
			w.Error, w.Block, time.UnixMicro(w.ReadAt).UTC().Format(time.RFC3339), w.Address, w.OnChain, w.Network)
	}
	text += fmt.Sprintf("; the ledger has %s, of which %s is held", w.Ledger, w.Held)
	if w.Frozen != nil {
		text += fmt.Sprintf("; nothing can be spent, because the two differ by %s and an operator has to explain it", w.Frozen.Difference)
	}
	return text, nil
}

// transferCredits gives at most half of the agent's credits to the owner of an address.
// The key of the call is the id of the transfer, so a repeated call transfers once.
func (h *handlers) transferCredits(ctx context.Context, c executor.Call) (string, error) {
	address := c.Args.String("to_address")
	to, err := h.accountAt(ctx, address)
	if err != nil {
		return "", err
	}
	return h.give(ctx, c, to, address, c.Args.String("reason"))
}

func (h *handlers) give(ctx context.Context, c executor.Call, to, shown, memo string) (string, error) {
	cents := c.Args.Int("amount_cents", 0)
	if cents > int64(api.MaxMicros/api.Cent) {
		return "", api.Errorf(api.Invalid, "%d cents are more than an account can have", cents)
	}
	amount := api.Micros(cents) * api.Cent
	done, err := h.ledger.Give(ctx, ledger.GiveRequest{
		ID: "tool/" + c.Key, From: c.Agent, To: to, Amount: amount, Session: c.Session, Turn: c.Turn, By: c.By.Kind, Memo: clipMemo(memo), Parent: bus.TraceParent(ctx), HalfAtMost: true,
	})
	h.tel.transferred(ctx, err)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("gave %s to %s; %s are left", amount, shown, done.Left), nil
}

// clipMemo shortens a text of an agent to the limit of memos, at the end of a character.
func clipMemo(s string) string {
	const limit = 1000
	if len(s) <= limit {
		return s
	}
	end := limit
	for end > 0 && s[end]&0xc0 == 0x80 {
		end--
	}
	return s[:end]
}

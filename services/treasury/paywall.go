package treasury

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/ethereum/go-ethereum/common"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"
	"github.com/anima-run/anima/pkg/host"
	"github.com/anima-run/anima/pkg/wait"

	"github.com/anima-run/anima/services/treasury/internal/ledger"
	"github.com/anima-run/anima/services/treasury/internal/paywall"
	"github.com/anima-run/anima/services/treasury/internal/x402"
)

// purchases are the amounts of credits that are sold, in dollars (docs/reference, the
// tiers of existing clients).
var purchases = []int64{5, 25, 100, 500, 1000, 2500}

// payTimeout is the time that a payer has, in seconds. The authorization ends with it.
const payTimeout = 300

// shop sells credits for USDC.
type shop struct {
	*handlers
	network x402.Network
	payTo   common.Address
	wall    *paywall.Paywall
}

// handler returns the handler of GET /pay/{usd}/{address}, which is public: a payer needs
// no key. The payment is settled before the credits are issued, whatever it costs.
func (s *shop) handler(o paywall.Options) http.HandlerFunc {
	o.SettleFirst, o.Confirm = 0, s.confirm
	s.wall = paywall.New(o)
	return s.wall.Protect(s.price, host.WriteError, http.HandlerFunc(s.sell))
}

// price returns the price of a purchase. It refuses what cannot be sold before it asks
// for money. No refusal is a 404, which existing clients repeat.
func (s *shop) price(r *http.Request) (x402.Price, error) {
	usd, err := strconv.ParseInt(r.PathValue("usd"), 10, 64)
	if err != nil || !slices.Contains(purchases, usd) || strconv.FormatInt(usd, 10) != r.PathValue("usd") {
		return x402.Price{}, &api.Error{
			Code: api.Invalid, Message: fmt.Sprintf("credits for %.20q dollars are not sold", r.PathValue("usd")),
			Next: "ask for 5, 25, 100, 500, 1000 or 2500 dollars",
		}
	}
	if _, err := s.accountAt(r.Context(), r.PathValue("address")); err != nil {
		return x402.Price{}, err
	}
	return x402.Price{
		Terms:    x402.Terms{Network: s.network, PayTo: s.payTo, Amount: api.Micros(usd) * api.Dollar, Timeout: payTimeout, Version: x402.V2},
		Resource: x402.Resource{Description: fmt.Sprintf("credits for %d dollars", usd), MimeType: "application/json"},
	}, nil
}

// purchase is the answer to a purchase. Existing clients read credits_cents.
type purchase struct {
	Credits     int64  `json:"credits_cents"`
	Amount      int64  `json:"amount_cents"`
	Address     string `json:"address"`
	Agent       string `json:"agent"`
	Transaction string `json:"transaction"`
}

// sell issues the credits of a settled payment. The id of the transaction is that of the
// payment, so that a repeated run issues nothing.
func (s *shop) sell(w http.ResponseWriter, r *http.Request) {
	answer, err := s.issue(r.Context(), r.PathValue("address"))
	if err != nil {
		if api.CodeOf(err) == api.Internal {
			s.log.ErrorContext(r.Context(), "paid credits not issued; the payer can repeat the request", "err", err)
		}
		host.WriteError(w, 0, err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(answer) // the paywall keeps the answer in memory
}

func (s *shop) issue(ctx context.Context, address string) (purchase, error) {
	paid, ok := paywall.PaymentOf(ctx)
	if !ok || paid.Transaction == "" {
		return purchase{}, api.Errorf(api.Internal, "credits without a settled payment")
	}
	account, err := s.accountAt(ctx, address)
	if err != nil {
		return purchase{}, err
	}
	_, err = s.ledger.Purchase(ctx, ledger.PurchaseRequest{
		ID: ledger.SaleID(paid.Key), Source: ledger.ChainUSDC(paid.Network.Name), Agent: account, USDC: paid.Amount, Credits: paid.Amount,
		Memo: "credits for USDC, " + paid.Transaction, Parent: bus.TraceParent(ctx),
	})
	cents := int64(paid.Amount / api.Cent)
	return purchase{Credits: cents, Amount: cents, Address: common.HexToAddress(address).Hex(), Agent: account, Transaction: paid.Transaction}, err
}

// confirmInterval is how often sales are looked for whose authorizations have ended.
const confirmInterval = time.Minute

// confirmSales periodically confirms sales until ctx ends. What fails is repeated.
func (h *handlers) confirmSales(ctx context.Context) error {
	if h.shop == nil {
		return nil
	}
	wait.Every(ctx, confirmInterval, func() {
		if err := h.shop.wall.Confirm(ctx); err != nil && ctx.Err() == nil {
			h.log.WarnContext(ctx, "sales of credits not confirmed, retrying", "err", err)
		}
	})
	return nil
}

// confirm takes the credits of a sale back if the chain does not have its payment any more.
// The authorization has ended, so the payment does not come back either. Credits that are
// spent become a debt.
func (s *shop) confirm(ctx context.Context, u paywall.Use) error {
	network, payer, nonce := u.Authorization()
	if network != s.network.ID() {
		return nil // of a network that was configured before
	}
	used, at, err := s.link.State(ctx, s.network, payer, nonce)
	switch {
	case err != nil || used:
		return err
	case at.Time.Before(time.UnixMicro(u.At).Add(x402.MaxWindow + 2*time.Minute)):
		return api.Errorf(api.Unavailable, "the last block of the node, %d, is of %s", at.Number, at.Time.UTC().Format(time.RFC3339))
	}
	_, err = s.ledger.Reverse(ctx, ledger.ReverseRequest{ID: ledger.SaleID(u.ID), Reason: "a reorganization of the chain has removed the payment"})
	switch {
	case api.CodeOf(err) == api.NotFound: // nothing was issued
		return nil
	case err == nil:
		s.log.ErrorContext(ctx, "credits taken back: a reorganization of the chain has removed their payment", "payment", u.ID, "request", u.Resource)
	}
	return err
}

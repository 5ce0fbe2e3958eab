package treasury

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"

	"github.com/ethereum/go-ethereum/common"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"
	"github.com/anima-run/anima/pkg/host"

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
}

// handler returns the handler of GET /pay/{usd}/{address}, which is public: a payer needs
// no key. The payment is settled before the credits are issued, whatever it costs.
func (s *shop) handler(o paywall.Options) http.HandlerFunc {
	o.SettleFirst = 0
	return paywall.New(o).Protect(s.price, host.WriteError, http.HandlerFunc(s.sell))
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

package treasury

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"strings"
	"time"

	"github.com/ethereum/go-ethereum/common"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"
	"github.com/anima-run/anima/pkg/host"

	"github.com/anima-run/anima/services/treasury/internal/conway"
	"github.com/anima-run/anima/services/treasury/internal/ledger"
)

// The HTTP API of credits has the format of existing clients (docs/reference/treasury.md,
// Credits over HTTP).

// maxCreditsBody is the maximum size of a body in bytes: a note of 1,000 bytes, of which
// JSON may encode each as six.
const maxCreditsBody = 8 << 10

func (h *handlers) creditsRoutes(routes host.Routes) {
	routes.Keyed("GET /v1/credits/balance", api.ScopeRead, host.WriteError, h.creditsBalance)
	routes.Keyed("GET /v1/credits/pricing", api.ScopeRead, host.WriteError, h.creditsPricing)
	routes.Keyed("POST /v1/credits/transfer", api.ScopeSpend, refuseCredits, h.creditsTransfer)
	routes.Keyed("POST /v1/credits/transfers", api.ScopeSpend, refuseCredits, h.creditsTransfer)
}

// credits is a balance. The cents are truncated, not rounded.
type credits struct {
	Agent        string     `json:"agent"`
	Address      string     `json:"address"`
	BalanceCents int64      `json:"balance_cents"`
	CreditsCents int64      `json:"credits_cents"`
	Available    api.Micros `json:"available_micros"`
	Held         api.Micros `json:"held_micros"`
	Tier         api.Tier   `json:"tier"`
}

func (h *handlers) creditsBalance(w http.ResponseWriter, r *http.Request) {
	account, err := h.acting(r, r.URL.Query().Get("agent"))
	if err != nil {
		host.WriteError(w, 0, err)
		return
	}
	b, err := h.getBalance(r.Context(), api.GetBalance{Agent: account})
	cents := int64((b.Available + b.Held) / api.Cent)
	host.WriteJSON(w, credits{
		Agent: b.Agent, Address: b.Address, BalanceCents: cents, CreditsCents: cents,
		Available: b.Available, Held: b.Held, Tier: b.Tier,
	}, err)
}

// acting returns the account on which a request acts, see [host.Caller.Acts].
func (h *handlers) acting(r *http.Request, named string) (string, error) {
	caller := host.CallerOf(r.Context())
	account, err := caller.Acts(strings.ToLower(named)) // the id of an agent is its name in lower case
	if err == nil && !caller.Operator() {
		err = h.ensureAccount(r.Context(), account)
	}
	return account, err
}

type transferBody struct {
	From   string `json:"from"` // id of an agent, for the operator; otherwise that of the key
	To     string `json:"to_address"`
	Amount *int64 `json:"amount_cents"`
	Note   string `json:"note"`
}

type transferAnswer struct {
	ID        string `json:"transfer_id"`
	Status    string `json:"status"`
	To        string `json:"to_address"`
	Amount    int64  `json:"amount_cents"`
	Balance   int64  `json:"balance_after_cents"` // available credits right after the transfer
	CreatedAt int64  `json:"created_at"`          // Unix microseconds
}

// creditsTransfer transfers credits to the owner of an address. With an Idempotency-Key a
// repeated request gets the same answer, also if the process died after the commit; the
// key with another body is refused with 409. Without a key each request is a transfer.
func (h *handlers) creditsTransfer(w http.ResponseWriter, r *http.Request) {
	var b transferBody
	data, err := host.ReadBody(w, r, maxCreditsBody)
	if err == nil {
		if err = json.Unmarshal(data, &b); err != nil { // unknown fields are ignored: newer clients may send more
			err = api.Errorf(api.Invalid, "the body is not the JSON of a transfer: %v", err)
		}
	}
	if err == nil && (b.Amount == nil || *b.Amount < 1 || *b.Amount > int64(api.MaxMicros/api.Cent)) {
		err = &api.Error{Code: api.Invalid, Message: "amount_cents is not a positive whole number of cents", Next: "send at least 1"}
	}
	if err != nil {
		refuseCredits(w, host.StatusOf(err), err)
		return
	}
	from, err := h.acting(r, b.From)
	if err != nil {
		refuseCredits(w, host.StatusOf(err), err)
		return
	}
	amount := api.Micros(*b.Amount) * api.Cent
	to, err := h.accountAt(r.Context(), b.To)
	if err == nil && to == from {
		err = &api.Error{Code: api.Invalid, Message: "Cannot transfer credits to yourself", Next: "name the address of another agent"}
	}
	if err != nil {
		refuseCredits(w, host.StatusOf(err), err)
		return
	}
	req := ledger.GiveRequest{ID: transferID(from, r.Header.Get("Idempotency-Key")), From: from, To: to, Amount: amount, Memo: b.Note, Parent: bus.TraceParent(r.Context())}
	done, err := h.ledger.Give(r.Context(), req)
	h.tel.transferred(r.Context(), err)
	if err != nil {
		h.refuseTransfer(w, r, from, amount, err)
		return
	}
	host.WriteJSON(w, transferAnswer{
		ID: req.ID, Status: "completed", To: common.HexToAddress(b.To).Hex(), Amount: *b.Amount, Balance: int64(done.Left / api.Cent), CreatedAt: done.At,
	}, nil)
}

// transferID derives the id of a transfer from the key of the caller, whose keys are its
// own. Any text can be a key.
func transferID(from, key string) string {
	if key == "" {
		key = rand.Text()
	}
	sum := sha256.Sum256([]byte(from + "\x00" + key))
	return "transfer/" + hex.EncodeToString(sum[:16])
}

// refuseTransfer answers with the missing credits if they are the cause, which clients
// read to buy them.
func (h *handlers) refuseTransfer(w http.ResponseWriter, r *http.Request, from string, amount api.Micros, err error) {
	if api.ReasonOf(err) == api.ReasonInsufficient {
		if b, failed := h.ledger.Balance(r.Context(), from); failed == nil {
			writeRefusal(w, http.StatusPaymentRequired, err, &missingCredits{Required: int64(amount / api.Cent), Balance: int64(b.Available / api.Cent)})
			return
		}
	}
	if api.CodeOf(err) == api.Internal {
		h.log.ErrorContext(r.Context(), "transfer failed", "err", err)
	}
	refuseCredits(w, host.StatusOf(err), err)
}

type missingCredits struct {
	Required int64 `json:"required_cents"`
	Balance  int64 `json:"current_balance_cents"`
}

// refuseCredits writes an error in the form of existing clients: its text as error. It
// never answers with 404, which they would repeat.
func refuseCredits(w http.ResponseWriter, status int, err error) {
	if status == http.StatusNotFound {
		status = http.StatusBadRequest
	}
	writeRefusal(w, status, err, nil)
}

func writeRefusal(w http.ResponseWriter, status int, err error, details *missingCredits) {
	e := api.Wire(err)
	code := strings.ToUpper(string(e.Code))
	switch {
	case e.Reason == api.ReasonInsufficient:
		code = "INSUFFICIENT_CREDITS"
	case e.Reason != "":
		code = strings.ToUpper(e.Reason)
	}
	host.SetRetryAfter(w, status, err)
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(struct { // fails only if the client has disconnected
		Error   string          `json:"error"`
		Code    string          `json:"code"`
		Next    string          `json:"next"`
		Details *missingCredits `json:"details,omitempty"`
	}{e.Message, code, api.Advice(e), details})
}

// priceLife is how long prices of sandboxes are shown without asking for them again.
const priceLife = time.Minute

// shownPrices has the prices of sandboxes for clients. Anybody can have a key, and each
// question is one of the operator's account at Conway.
type shownPrices struct {
	asking chan struct{} // full while a request reads or renews the others
	sizes  []conway.Size
	until  time.Time
}

func newShownPrices() shownPrices { return shownPrices{asking: make(chan struct{}, 1)} }

// get returns the prices of the last minute. One request at a time asks for new ones.
func (p *shownPrices) get(ctx context.Context, now func() time.Time, ask func(context.Context) ([]conway.Size, error)) ([]conway.Size, error) {
	select {
	case p.asking <- struct{}{}:
		defer func() { <-p.asking }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if now().Before(p.until) {
		return p.sizes, nil
	}
	sizes, err := ask(ctx)
	if err != nil {
		return nil, conway.Explain(err)
	}
	p.sizes, p.until = sizes, now().Add(priceLife)
	return sizes, nil
}

// creditsPricing answers with the prices of sandboxes, none without a provider of
// sandboxes, and with the amounts of USDC for which credits are sold. The prices of models
// are in GET /v1/models.
func (h *handlers) creditsPricing(w http.ResponseWriter, r *http.Request) {
	sizes := []conway.Size{}
	if h.outside.client != nil {
		all, err := h.outside.shown.get(r.Context(), h.now, h.outside.client.Pricing)
		if err != nil {
			host.WriteError(w, 0, err)
			return
		}
		sizes = append(sizes, all...)
	}
	host.WriteJSON(w, map[string]any{"tiers": sizes, "pricing": sizes, "topup_usd": api.TopupUSD(), "currency": "USD"}, nil)
}

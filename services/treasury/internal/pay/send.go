package pay

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/ethereum/go-ethereum/common"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/failpoint"
	"github.com/anima-run/anima/pkg/safehttp"
	"github.com/anima-run/anima/pkg/wait"
	"github.com/anima-run/anima/services/treasury/internal/chain"
	"github.com/anima-run/anima/services/treasury/internal/x402"
)

// reply is an answer of a seller that has arrived completely.
type reply struct {
	status int
	header http.Header
	body   []byte
	cut    bool
}

func (a *reply) answer() Answer {
	return Answer{Status: a.status, ContentType: clip(a.header.Get("Content-Type")), Body: a.body, Cut: a.cut}
}

// do makes the request once, with the payment or without.
func (w *work) do(ctx context.Context, pay bool) (*reply, error) {
	req, err := http.NewRequestWithContext(ctx, w.r.Method, w.r.URL, bytes.NewReader(w.r.Body))
	if err != nil {
		return nil, err
	}
	if len(w.r.Body) > 0 {
		req.Header.Set("Content-Type", "application/json")
	}
	req.Header.Set("Accept", "*/*")
	for name, value := range w.r.Header {
		req.Header.Set(name, value)
	}
	if pay {
		req.Header.Set(w.Header, w.Value)
	}
	client := w.client
	if w.r.Own {
		client = w.own
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	a := &reply{status: resp.StatusCode, header: resp.Header}
	if a.body, err = io.ReadAll(io.LimitReader(resp.Body, api.MaxPaidBody+1)); err != nil {
		return nil, fmt.Errorf("the answer did not arrive completely: %w", err)
	}
	if a.cut = len(a.body) > api.MaxPaidBody; a.cut {
		a.body = a.body[:api.MaxPaidBody]
	}
	return a, nil
}

// sends is how often one call sends a payment whose answer is lost. The authorization is
// the same each time.
const sends = 3

// send sends the stored authorization until there is an answer. The chain, and not the
// seller, says whether the payment was made.
func (w *work) send(ctx context.Context) error {
	if w.State == api.PaymentSigned {
		w.NextAt = w.end()
		if err := w.save(ctx, api.PaymentSubmitted); err != nil {
			return err
		}
	}
	var a *reply
	var err error
	for n := range sends {
		if n > 0 {
			if wait.For(ctx, time.Duration(n)*300*time.Millisecond) != nil {
				break
			}
		}
		if w.ValidBefore <= w.o.Now().Unix() { // the seller cannot settle it any more
			err = errors.New("the time to pay has passed")
			break
		}
		a, err = failpoint.Value(ctx, failpoint.TreasuryPaySend, func(ctx context.Context) (*reply, error) { return w.do(ctx, true) })
		if err == nil && !temporary(a.status) {
			break
		}
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second) // the caller's time may be over; the outcome is stored
	defer cancel()
	switch {
	case err != nil:
		return w.unclear(ctx, err)
	case temporary(a.status):
		return w.unclear(ctx, fmt.Errorf("the seller answers %d", a.status))
	}
	return w.received(ctx, a)
}

// temporary reports whether an answer means that the same request succeeds later.
func temporary(status int) bool {
	switch status {
	case http.StatusConflict, http.StatusTooEarly, http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return true
	}
	return false
}

// unclear is the end of a payment whose answer is lost. It may have been settled.
func (w *work) unclear(ctx context.Context, cause error) error {
	w.Reason = clip(safehttp.Explain(cause).Error())
	if used, _, err := w.state(ctx); err == nil && used {
		// Paid, and the answer is lost. The seller may still have it for the same payment, so
		// the state stays open for a repeated request until the window ends.
		w.Reason = "paid; the seller's answer is lost: " + w.Reason
	}
	if err := w.save(ctx, api.PaymentUnknown); err != nil {
		return err
	}
	return lost(cause)
}

// received stores the answer of the seller and, if the chain confirms it, the settlement.
func (w *work) received(ctx context.Context, a *reply) error {
	receipt, ok := x402.ReadReceipt(a.header)
	refused := a.status == http.StatusPaymentRequired
	if ok && receipt.Success {
		w.Transaction = clip(receipt.Transaction)
	}
	if !refused {
		w.Answer = a.answer()
	}
	used, at, err := w.state(ctx)
	switch {
	case err != nil:
		w.Reason = "the chain does not answer"
	case used:
		w.Reason = ""
	case refused:
		w.Reason = "refused by the seller: " + refusal(a)
	default:
		w.Reason = "answered, and not settled on the chain yet"
	}
	state := api.PaymentUnknown
	if err == nil && used {
		state, w.Block, w.NextAt = api.PaymentSettled, at, w.o.Now().UnixMicro()
	} else if ok && receipt.Success {
		w.NextAt = w.o.Now().Add(recheck).UnixMicro() // the block may not have arrived here
	}
	if err := failpoint.Do(ctx, failpoint.TreasuryPayReceipt, func(ctx context.Context) error { return w.save(ctx, state) }); err != nil {
		return err
	}
	if state == api.PaymentSettled {
		w.post(ctx)
		if refused { // a repeated request of a seller that has forgotten its answer
			w.Reason = "paid, but the seller does not repeat its answer: " + refusal(a)
			return &api.Error{Code: api.Unavailable, Message: w.Reason, Next: "do not pay again: show the seller the transaction"}
		}
		return nil
	}
	if refused {
		return &api.Error{
			Code: api.Denied, Reason: api.ReasonRefused, Message: "the payment is " + w.Reason,
			Next: "the money is held until the authorization has ended; then nothing was paid",
		}
	}
	return nil
}

// collect asks the seller of a settled payment for its answer, with the authorization that
// is used already. Without one, the caller has what is stored and may ask again.
func (w *work) collect(ctx context.Context) error {
	a, err := w.do(ctx, true)
	if err == nil && (a.status == http.StatusPaymentRequired || a.status >= http.StatusInternalServerError || temporary(a.status)) {
		err = fmt.Errorf("the seller answers %d", a.status)
	}
	if err != nil {
		w.o.Log.InfoContext(ctx, "paid, and the seller does not give its answer", "payment", w.ID, "err", safehttp.Explain(err))
		return nil
	}
	w.Answer = a.answer()
	return w.save(ctx, api.PaymentSettled)
}

// refusal returns why a seller refuses a payment.
func refusal(a *reply) string {
	if r, ok := x402.ReadReceipt(a.header); ok && r.Reason != "" {
		return clip(string(r.Reason))
	}
	if cs, err := x402.ReadChallenges(a.header, a.body); err == nil && cs[0].Error != "" {
		return clip(cs[0].Error)
	}
	return "no reason"
}

// clip makes a text of a seller fit for a row and an error: short, without controls.
func clip(s string) string {
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, "?"))
	return s[:min(len(s), len(strings.ToValidUTF8(s[:min(len(s), 200)], "")))]
}

// state asks the chain whether the authorization was used.
func (w *work) state(ctx context.Context) (used bool, at chain.Block, err error) {
	n, ok := w.o.Networks.Find(w.Network)
	if !ok {
		return false, at, fmt.Errorf("the network %s is not configured", w.Network)
	}
	return w.o.Chain.State(ctx, n, common.HexToAddress(w.Payment.Payer), common.HexToHash(w.Nonce))
}

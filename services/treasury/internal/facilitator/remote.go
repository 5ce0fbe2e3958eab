package facilitator

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"time"

	"github.com/anima-run/anima/services/treasury/internal/x402"
)

// remoteTime is the time limit of a request to a facilitator. It waits for a block.
const remoteTime = 60 * time.Second

// Remote is a facilitator that another program runs, such as those of payment providers.
// It is safe for concurrent use.
type Remote struct {
	URL    string // without a slash at its end
	Client *http.Client
	Token  string // sent as a bearer token; "" for none
}

// Verify asks the facilitator whether a payment can be settled.
func (r *Remote) Verify(ctx context.Context, o x402.Order) (x402.Verdict, error) {
	data, err := r.post(ctx, "/verify", &o)
	if err != nil {
		return x402.Verdict{}, err
	}
	v, err := x402.DecodeVerdict(data)
	if err != nil {
		return v, r.unavailable(err)
	}
	return v, nil
}

// Settle asks the facilitator to settle a payment. The error means that the outcome is
// not known, also after a receipt whose transaction cannot be stored.
func (r *Remote) Settle(ctx context.Context, o x402.Order) (x402.Receipt, error) {
	data, err := r.post(ctx, "/settle", &o)
	if err != nil {
		return x402.Receipt{}, err
	}
	receipt, err := x402.DecodeReceipt(data)
	switch {
	case err != nil:
		return receipt, r.unavailable(err)
	case !receipt.Success && receipt.Reason == x402.SettleError:
		return receipt, r.unavailable(fmt.Errorf("it answers %s", receipt.Reason))
	case receipt.Success && !transactionForm.MatchString(receipt.Transaction):
		return receipt, r.unavailable(errors.New("its receipt has no usable transaction"))
	}
	return receipt, nil
}

// transactionForm is the form of the transactions that are stored and shown. It is wider than
// that of a hash, because facilitators may have ids of their own.
var transactionForm = regexp.MustCompile(`^[!-~]{1,200}$`)

func (r *Remote) post(ctx context.Context, path string, o *x402.Order) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, remoteTime)
	defer cancel()
	body, err := json.Marshal(o)
	if err != nil {
		return nil, fmt.Errorf("encode an order: %w", err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, strings.TrimSuffix(r.URL, "/")+path, bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("the facilitator's address: %w", err)
	}
	req.Header.Set("Content-Type", "application/json")
	if r.Token != "" {
		req.Header.Set("Authorization", "Bearer "+r.Token)
	}
	resp, err := r.Client.Do(req)
	if err != nil {
		return nil, r.unavailable(err)
	}
	defer func() { _ = resp.Body.Close() }()
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxRequest))
	if err != nil {
		return nil, r.unavailable(err)
	}
	if resp.StatusCode >= http.StatusInternalServerError || resp.StatusCode == http.StatusTooManyRequests || resp.StatusCode == http.StatusUnauthorized {
		return nil, r.unavailable(fmt.Errorf("it answers %s", resp.Status))
	}
	return data, nil
}

func (r *Remote) unavailable(cause error) error {
	return unavailable("the facilitator does not answer", cause)
}

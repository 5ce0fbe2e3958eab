package conway

import (
	"context"
	"net/http"
)

// Balance returns the credits of the operator's account in cents. An answer without a
// balance is an error, not 0.
func (c *Client) Balance(ctx context.Context) (int64, error) {
	var a struct {
		Balance *int64 `json:"balance_cents"`
		Credits *int64 `json:"credits_cents"`
	}
	if err := c.do(ctx, call{method: http.MethodGet, route: "balance", path: []string{"v1", "credits", "balance"}}, &a); err != nil {
		return 0, err
	}
	if a.Balance == nil {
		a.Balance = a.Credits
	}
	if a.Balance == nil {
		return 0, &Failure{Text: "the answer has no balance"}
	}
	return *a.Balance, nil
}

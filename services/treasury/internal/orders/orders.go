// Package orders defines what agents order from providers outside, and what they own
// there. An order is stored before it is sent, so that after a crash or a lost answer it
// is repeated under the same id and not made twice. Package orders must not depend on a
// provider, on messages or on SQL.
package orders

import (
	"context"
	"fmt"

	"github.com/anima-run/anima/pkg/api"
)

// Kind is what is ordered.
type Kind string

// The kinds of orders and things.
const (
	Sandbox Kind = "sandbox"
	Domain  Kind = "domain"

	// Returned is the kind of a sandbox that its agent has given back. The thing is kept, so
	// that a repeated call finds it.
	Returned Kind = "returned"
)

// Status is the state of an order. Only a pending order changes.
type Status string

// The values of Status. Unknown means that the provider has not said for a day whether it
// executed the order; it is paid then, because the provider may have.
const (
	Pending Status = "pending"
	Done    Status = "done"
	Refused Status = "refused"
	Unknown Status = "unknown"
)

// Order is an order of an agent. ID is the idempotency key of its tool call.
type Order struct {
	ID        string
	Agent     string
	Session   string
	Turn      string
	By        api.PrincipalKind // principal of the turn; "": unknown
	Kind      Kind
	Request   string     // JSON, as the caller made it
	Price     api.Micros // held before it is sent, more than 0
	Status    Status
	Answer    string // for the agent; the cause if it was refused
	Paid      bool   // the hold is settled or released
	CreatedAt int64  // Unix microseconds
}

// Hold returns the id of the hold of an order.
func (o Order) Hold() string { return "order/" + o.ID }

// Same returns a Conflict error unless o has the content of another request with its id.
func (o Order) Same(r Order) error {
	if o.Agent != r.Agent || o.Kind != r.Kind || o.Request != r.Request {
		return &api.Error{Code: api.Conflict, Reason: api.ReasonKeyTaken, Message: fmt.Sprintf("%.60q is the id of another order", o.ID)}
	}
	return nil
}

// Thing is what an agent owns at a provider.
type Thing struct {
	Kind      Kind
	ID        string // of the provider
	Agent     string
	Name      string
	CreatedAt int64 // Unix microseconds
}

// Store stores orders and things. It is safe for concurrent use, also by several
// processes.
type Store interface {
	// Order returns an order, and whether it exists.
	Order(ctx context.Context, id string) (Order, bool, error)
	// AddOrder adds a pending order unless its id exists, and returns the stored one.
	AddOrder(ctx context.Context, o Order) (Order, error)
	// EndOrder ends a pending order with a status and an answer. thing, which may be nil,
	// is added in the same transaction. An order that has ended stays unchanged. It
	// returns the stored order.
	EndOrder(ctx context.Context, id string, status Status, answer string, thing *Thing) (Order, error)
	// PaidOrder records that the hold of an order has ended.
	PaidOrder(ctx context.Context, id string) error
	// OpenOrders returns orders made before a time that are pending or not paid, the
	// oldest first.
	OpenOrders(ctx context.Context, before int64, limit int) ([]Order, error)
	// Things returns what an agent owns of a kind, the oldest first.
	Things(ctx context.Context, agent string, kind Kind) ([]Thing, error)
	// Thing returns a thing, and whether it exists.
	Thing(ctx context.Context, kind Kind, id string) (Thing, bool, error)
	// ReturnSandbox makes a sandbox a [Returned] thing. It is idempotent.
	ReturnSandbox(ctx context.Context, id string) error
}

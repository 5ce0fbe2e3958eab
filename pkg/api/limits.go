package api

import (
	"fmt"
	"strings"
)

// Messages of treasury about the limits of agents (docs/limits.md). A payment is compared
// with all limits of its agent in the transaction that makes its hold.
//
// History: v1 2026-11 first version.

// Categories of payments and of limits. A hold with another category counts as other.
// CategoryPeer is no category of holds: it selects the payments of all categories in turns
// whose principal is a peer or external.
const (
	CategoryTransfer = "transfer"
	CategoryX402     = "x402"
	CategoryOther    = "other"
	CategoryPeer     = "peer"
)

// Unlimited is the value of an amount or a number without a limit.
const Unlimited = -1

// Window is the range of payments that a limit counts. Hour, day and lineage are rolling:
// they end now, and do not begin with a clock hour.
type Window string

// The windows.
const (
	WindowCall    Window = "call"    // one payment
	WindowTurn    Window = "turn"    // the payments of a turn
	WindowSession Window = "session" // the payments of a session
	WindowHour    Window = "hour"    // the payments of the last 60 minutes
	WindowDay     Window = "day"     // the payments of the last 24 hours
	WindowLineage Window = "lineage" // the payments of the last 24 hours of the agent and all its descendants
)

// Windows returns the windows, from the smallest.
func Windows() []Window {
	return []Window{WindowCall, WindowTurn, WindowSession, WindowHour, WindowDay, WindowLineage}
}

// Limits are the limits of an agent. A field that is not set, and a window that is not
// listed, have the value of the operator's configuration.
type Limits struct {
	Windows []WindowLimit `json:"windows,omitempty"`
	// Reserve is the amount of credits that a transfer or an x402 payment must leave.
	Reserve *Micros `json:"reserve,omitempty"`
	// NewPayee is the most that the first payment to a payee may be; [Unlimited]: no cap.
	NewPayee *Micros `json:"newPayee,omitempty"`
	// ApproveAbove is the amount above which a transfer or an x402 payment needs an
	// approval; [Unlimited]: none does.
	ApproveAbove *Micros `json:"approveAbove,omitempty"`
	// CooldownMS is the least time between two transfers.
	CooldownMS *int64 `json:"cooldownMs,omitempty"`

	// The allow-lists. The entry "*" allows every value; a list without it and without
	// the value of a payment refuses the payment.
	Payees       []string `json:"payees,omitempty"`       // of transfers and x402: "agent:<id>" or an address
	Domains      []string `json:"domains,omitempty"`      // of x402: a host, or ".example.com" for its subdomains
	Assets       []string `json:"assets,omitempty"`       // of x402: "<asset>@<CAIP-2 chain>"
	Facilitators []string `json:"facilitators,omitempty"` // of x402

	// Parent is the agent whose lineage the agent belongs to: its payments also count for
	// the lineage limits of Parent and of the parents above.
	Parent string `json:"parent,omitempty"`
}

// WindowLimit limits the payments of one category ("": of all) in one window. The zero
// amount allows no payment.
type WindowLimit struct {
	Window   Window  `json:"window"`
	Category string  `json:"category,omitempty"`
	Amount   *Micros `json:"amount,omitempty"`   // [Unlimited]: no limit
	Payments *int64  `json:"payments,omitempty"` // most payments; [Unlimited]: no limit. A call has none
}

// Limits of the lists in [Limits].
const (
	MaxWindowLimits = 64
	MaxAllowed      = 100 // entries of an allow-list
)

// Check returns the faults of l as one Invalid error.
func (l *Limits) Check() error {
	var faults []string
	fault := func(format string, args ...any) { faults = append(faults, fmt.Sprintf(format, args...)) }
	amount := func(what string, m *Micros) {
		if m != nil && (*m < Unlimited || *m > MaxMicros) {
			fault("%s is %d: use 0 to %d micro-USD, or -1 for no limit", what, *m, MaxMicros)
		}
	}
	if len(l.Windows) > MaxWindowLimits {
		fault("%d windows are limited, at most %d can be", len(l.Windows), MaxWindowLimits)
	}
	seen := map[string]bool{}
	for _, w := range l.Windows {
		name := strings.TrimSuffix(string(w.Window)+"."+w.Category, ".")
		switch w.Window {
		case WindowCall, WindowTurn, WindowSession, WindowHour, WindowDay, WindowLineage:
		default:
			fault("%.40q is not a window: the windows are %v", w.Window, Windows())
		}
		switch w.Category {
		case "", CategoryInference, CategoryTransfer, CategoryX402, CategoryOther, CategoryPeer:
		default:
			fault("%.40q is not a category of limits: use inference, transfer, x402, other or peer", w.Category)
		}
		if seen[name] {
			fault("%s is limited twice", name)
		}
		seen[name] = true
		amount(name, w.Amount)
		if w.Payments != nil && (*w.Payments < Unlimited || w.Window == WindowCall) {
			fault("%s has %d payments: use 0 or more, or -1 for no limit; a call has none", name, *w.Payments)
		}
	}
	if l.Reserve != nil && (*l.Reserve < 0 || *l.Reserve > MaxMicros) {
		fault("reserve is %d: use 0 to %d micro-USD", *l.Reserve, MaxMicros)
	}
	amount("newPayee", l.NewPayee)
	amount("approveAbove", l.ApproveAbove)
	const year = 366 * 24 * 3600 * 1000
	if c := l.CooldownMS; c != nil && (*c < 0 || *c > year) {
		fault("cooldownMs is %d: use 0 to %d", *c, int64(year))
	}
	for name, list := range map[string][]string{"payees": l.Payees, "domains": l.Domains, "assets": l.Assets, "facilitators": l.Facilitators} {
		if len(list) > MaxAllowed {
			fault("%s has %d entries, at most %d are allowed", name, len(list), MaxAllowed)
		}
		for _, entry := range list {
			if entry == "" || len(entry) > 200 || strings.ContainsFunc(entry, func(r rune) bool { return r <= ' ' || r > '~' }) {
				fault("%s has the entry %.40q: use 1 to 200 visible ASCII characters", name, entry)
			}
		}
	}
	if l.Parent != "" && !ValidKey(l.Parent) {
		fault("parent %.40q is not an agent's id", l.Parent)
	}
	if len(faults) == 0 {
		return nil
	}
	return &Error{Code: Invalid, Message: "the limits are not valid: " + faults[0], Details: faults, Next: "docs/limits.md lists the limits"}
}

// GetLimits requests the [AgentLimits] of an agent. Turn and Session select the sums of
// their windows; without them these are zero. Errors: NotFound, Invalid.
type GetLimits struct {
	Agent   string `json:"agent"`
	Turn    string `json:"turn,omitempty"`
	Session string `json:"session,omitempty"`
}

// AgentLimits are the limits of an agent and what is spent of them.
type AgentLimits struct {
	Agent     string       `json:"agent"`
	Own       Limits       `json:"own"`       // set for the agent
	Effective Limits       `json:"effective"` // with the operator's configuration
	Revision  int64        `json:"revision"`  // number of changes of Own
	Available Micros       `json:"available"` // credits
	Usage     []LimitUsage `json:"usage"`     // one for each window of Effective
	At        int64        `json:"at"`
}

// LimitUsage is what is spent of one limit. Held amounts count as spent until they are
// released.
type LimitUsage struct {
	Window   Window `json:"window"`
	Category string `json:"category,omitempty"`
	Amount   Micros `json:"amount"`   // [Unlimited]: no limit
	Payments int64  `json:"payments"` // [Unlimited]: no limit
	Spent    Micros `json:"spent"`
	Count    int64  `json:"count"` // number of payments
	// FreesAt is when the oldest payment leaves a rolling window; 0: there is none.
	FreesAt int64 `json:"freesAt,omitempty"`
}

// SetLimits replaces the limits that are set for an agent. Only the operator may send it:
// an agent cannot change its own limits. The change is a transaction of the ledger with
// the given ID, and applies to every hold after it. Earlier payments count for an hour or a
// day that is limited later if any hour or day was limited then. The answer is the [AgentLimits]. Errors: Invalid with all
// faults in Details (also a parent that is a descendant of the agent), NotFound, Conflict
// (Revision is not the current one, or ID is used).
type SetLimits struct {
	ID       string `json:"id"` // idempotency key
	Agent    string `json:"agent"`
	Limits   Limits `json:"limits"`
	Revision int64  `json:"revision"` // of the [AgentLimits] that are replaced
}

// Approval is the request of an agent for a payment above [Limits.ApproveAbove]. Treasury
// stores it when it refuses the payment with ReasonApproval. Its ID derives from the agent
// and the content of the payment, so the agent finds an approval by repeating the payment.
// An approval admits one payment.
type Approval struct {
	ID       string         `json:"id"`
	Agent    string         `json:"agent"`
	Amount   Micros         `json:"amount"`
	Category string         `json:"category"`
	Payee    string         `json:"payee,omitempty"`
	Domain   string         `json:"domain,omitempty"`
	Asset    string         `json:"asset,omitempty"`
	Status   ApprovalStatus `json:"status"`
	Hold     string         `json:"hold,omitempty"` // of the payment that was refused, or made
	AskedAt  int64          `json:"askedAt"`
	EndsAt   int64          `json:"endsAt,omitempty"` // of an approved request, 24 h after the approval
}

// ApprovalStatus is the status of an [Approval].
type ApprovalStatus string

// The statuses of an approval. A payment that is refused again makes a used, refused or
// expired request open.
const (
	ApprovalOpen     ApprovalStatus = "open"
	ApprovalApproved ApprovalStatus = "approved"
	ApprovalRefused  ApprovalStatus = "refused"
	ApprovalUsed     ApprovalStatus = "used"
)

// ListApprovals requests [Approvals], the latest first; Status "" means open. At most 100
// are returned.
type ListApprovals struct {
	Agent  string         `json:"agent,omitempty"` // "": all
	Status ApprovalStatus `json:"status,omitempty"`
}

// Approvals is a list of requests.
type Approvals struct {
	Approvals []Approval `json:"approvals"`
}

// DecideApproval approves or refuses a request that is open. Only the operator may send
// it. The answer is the [Approval]. Errors: NotFound, Conflict (not open).
type DecideApproval struct {
	ID      string `json:"id"`
	Approve bool   `json:"approve"`
}

// The implementations of [Message] by the types of this file.

func (GetLimits) Subject() Subject      { return request(Treasury, "get_limits") }
func (SetLimits) Subject() Subject      { return request(Treasury, "set_limits") }
func (ListApprovals) Subject() Subject  { return request(Treasury, "list_approvals") }
func (DecideApproval) Subject() Subject { return request(Treasury, "decide_approval") }

package model

import (
	"fmt"

	"github.com/anima-run/anima/pkg/api"
)

// Reason is why a candidate cannot be called. The reasons are checked in this order, and
// the first one that applies is the reason of the candidate.
type Reason uint8

// The reasons.
const (
	Usable        Reason = iota // the candidate can be called
	Unregistered                // no model has the id that the call or the matrix names
	Unlisted                    // its provider does not serve it, see [Model.Absent]
	NotConfigured               // its provider is not configured
	Unpriced                    // its price is unknown, which is not free
	NoVision                    // the prompt has images, and it sees none
	TooLong                     // prompt and answer do not fit its window
	NoTools                     // the prompt has tools, and it takes none
	NeedsTier                   // its minimum tier is higher
	Unserved                    // it is not free, and the matrix does not serve the tier and task; or the matrix has no such task
	OverCeiling                 // the call can cost more than the ceiling of the cell
	OverBudget                  // the call can cost more than the available credits
	Paused                      // earlier attempts failed; see [Candidate.Pause]
)

// Candidate is a model that was considered for a call.
type Candidate struct {
	ID     string
	Model  *Model // nil: Unregistered
	Reason Reason
	Prompt int64 // tokens of the prompt for this model
	Limit  int64 // output limit of the call in tokens
	Most   int64 // the most that the call can cost in micro-USD
	// Fewer says that Limit was lowered so that the answer fits the window or the ceiling.
	Fewer bool
	// Without says that the call is made without the tools of the prompt.
	Without bool
	// Pause is why it is not called for a time. [Registry.Select] does not set it; an
	// explanation of a call does.
	Pause string

	ofCell bool // it is in the cell of the matrix
}

// Why returns the reason of a candidate of the route as a text; empty if it is usable.
func (r *Route) Why(c *Candidate) string {
	switch c.Reason {
	case Usable:
	case Unregistered:
		return "not registered"
	case Unlisted:
		return c.Model.Absent
	case NotConfigured:
		return NotConfiguredText(c.Model.Provider)
	case Unpriced:
		return "price unknown"
	case NoVision:
		return "cannot see images"
	case TooLong:
		return fmt.Sprintf("the prompt of about %d tokens and an answer of %d do not fit its window of %d", c.Prompt, c.Limit, c.Model.ContextWindow)
	case NoTools:
		return "takes no tools"
	case NeedsTier:
		return fmt.Sprintf("needs tier %s", c.Model.TierMinimum)
	case Unserved:
		if r.unknown {
			return fmt.Sprintf("no model serves task %.40q in tier %.40q", r.Task, r.Tier)
		}
		return "only free models serve this task in this tier"
	case OverCeiling:
		return fmt.Sprintf("a call may cost %s, more than the ceiling of %s", api.Micros(c.Most), api.Micros(r.Ceiling))
	case OverBudget:
		return fmt.Sprintf("a call may cost %s, more than the available %s", api.Micros(c.Most), api.Micros(r.Budget))
	case Paused:
		return c.Pause
	}
	return ""
}

// NotConfiguredText returns the text of [NotConfigured].
func NotConfiguredText(provider string) string { return "provider " + provider + " is not configured" }

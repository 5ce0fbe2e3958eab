// Package inbox holds the rules of received messages: who may hand in how many,
// and how a run takes messages and is done with them. It must not know how
// messages are signed or where they are kept.
//
//	          Claim                    Settle
//	received ───────> in_progress ─────────────> processed
//	   ^                   │
//	   └── claim lapsed ───┤
//	                       └── third claim lapsed ──> failed
package inbox

import (
	"time"

	"github.com/anima-run/anima/pkg/api"
)

// Status is where a message is.
type Status string

// The states of spec-social §2.4.
const (
	Received   Status = "received"
	InProgress Status = "in_progress"
	Processed  Status = "processed"
	Failed     Status = "failed"
)

// Valid reports whether s is a state.
func (s Status) Valid() bool {
	switch s {
	case Received, InProgress, Processed, Failed:
		return true
	}
	return false
}

// Numbers of the rules.
const (
	Rate        = 10               // messages of one sender in RateWindow (spec-core-2 §5.1)
	RateWindow  = time.Minute      //
	Lapse       = 10 * time.Minute // after which a claim that was not settled is void
	MaxAttempts = 3                // claims of one message (spec-core-1 §1.8)
	MaxUnread   = 10_000           // messages that may wait in one mailbox
	MaxBytes    = 700 << 10        // of messages in one answer: NATS carries 1 MiB, JSON and all
)

// Mail is a message in a mailbox. Addresses are in lower case.
type Mail struct {
	ID        string
	From      string
	To        string
	Content   string
	SignedAt  string
	Signature string
	ReplyTo   string
	Status    Status
	Received  time.Time // UTC, to the microsecond
	Seq       int64     // place in its mailbox; it only grows
	Peer      string    // name of the sender, if it lives here
}

// Size is about what the message takes in an answer.
func (m Mail) Size() int {
	const frame = 512 // the other fields
	body, err := api.Encode(m.Content)
	if err != nil {
		return frame + 6*len(m.Content)
	}
	return frame + len(body)
}

// Fit returns the first messages that fit into one answer, at least one.
func Fit(all []Mail) []Mail {
	sum := 0
	for i, m := range all {
		sum += m.Size()
		if i > 0 && sum > MaxBytes {
			return all[:i]
		}
	}
	return all
}

// Admit says whether a sender whose latest messages were received at the given
// times, the latest first, may hand in another one now. Errors: api.Unavailable
// with ReasonLimit and when to come back.
func Admit(latest []time.Time, now time.Time) error {
	if len(latest) < Rate {
		return nil
	}
	wait := latest[Rate-1].Add(RateWindow).Sub(now)
	if wait <= 0 {
		return nil
	}
	return &api.Error{
		Code: api.Unavailable, Reason: api.ReasonLimit,
		Message:    "the sender has handed in 10 messages within a minute",
		Next:       "wait and send the same message again",
		RetryAfter: max(1, wait.Milliseconds()),
	}
}

// Full is the error for a mailbox in which MaxUnread messages wait.
func Full() error {
	return &api.Error{
		Code: api.Unavailable, Reason: api.ReasonLimit, Message: "the mailbox is full",
		Next: "wait until its owner has read some messages", RetryAfter: RateWindow.Milliseconds(),
	}
}

// Resident is an agent that lives here.
type Resident struct {
	Agent   string
	Name    string
	Address string // in lower case; "" while it has none
	Seq     int64  // of the change that said so
}

// Waiting is what a run may find in the mailbox of its agent.
type Waiting struct {
	Address string // of the agent; "" if it has none or is unknown
	Unread  int64  // messages that are neither processed nor failed
	Claimed bool   // the run has claimed messages that are not processed
}

// Package inbox contains the rules of received messages: the rate of each sender, and how
// a run claims and settles messages. It must not depend on how messages are signed or
// where they are stored.
//
//	          Claim                      Settle
//	received ────────> in_progress ─────────────> processed
//	   ^                    │
//	   └─ Release, expiry ──┤
//	                        └─ of the third claim ──> failed
package inbox

import (
	"slices"
	"time"

	"github.com/anima-run/anima/pkg/api"
)

// Status is the state of a message.
type Status string

// The values of Status (docs/reference/social.md, Message states).
const (
	Received   Status = "received"
	InProgress Status = "in_progress"
	Processed  Status = "processed"
	Failed     Status = "failed"
)

// Valid reports whether s is one of the values.
func (s Status) Valid() bool {
	return slices.Contains([]Status{Received, InProgress, Processed, Failed}, s)
}

// Limits of the rules (docs/reference/social.md, Limits).
const (
	Rate         = 10               // messages of one sender in RateWindow
	RateWindow   = time.Minute      // of Rate
	ClaimTimeout = 10 * time.Minute // age after which an unsettled claim is void
	MaxAttempts  = 3                // claims of one message
	MaxUnread    = 10_000           // messages that may be unread in one mailbox
	MaxBytes     = 700 << 10        // of messages in one response: NATS carries 1 MiB, including the JSON encoding
)

// Message is a message in a mailbox. Addresses are in lower case.
type Message struct {
	ID        string
	From      string
	To        string
	Content   string
	SignedAt  string
	Signature string
	ReplyTo   string
	Status    Status
	Received  time.Time // UTC, to the microsecond
	Seq       int64     // place in its mailbox; increases with every message
	Peer      string    // name of the sender, if it is a local agent
}

// Size returns the approximate size of the message in a response, in bytes.
func (m Message) Size() int {
	const frame = 512 // the other fields
	body, err := api.Encode(m.Content)
	if err != nil {
		return frame + 6*len(m.Content)
	}
	return frame + len(body)
}

// Fit returns the longest prefix of all that fits into one response, at least one
// message.
func Fit(all []Message) []Message {
	sum := 0
	for i, m := range all {
		sum += m.Size()
		if i > 0 && sum > MaxBytes {
			return all[:i]
		}
	}
	return all
}

// CheckRate decides whether a sender may send another message now. latest holds the times of
// its latest messages, the latest first. It returns an api.Unavailable error with
// ReasonLimit and the retry delay.
func CheckRate(latest []time.Time, now time.Time) error {
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

// MailboxFull returns the error for a mailbox with MaxUnread unread messages.
func MailboxFull() error {
	return &api.Error{
		Code: api.Unavailable, Reason: api.ReasonLimit, Message: "the mailbox is full",
		Next: "wait until its owner has read some messages", RetryAfter: RateWindow.Milliseconds(),
	}
}

// LocalAgent is an agent of this installation.
type LocalAgent struct {
	Agent   string
	Name    string
	Address string // in lower case; "" while it has none
	Seq     int64  // number of the agent's change
}

// MailboxState is the state of an agent's mailbox for a run.
type MailboxState struct {
	Address string // of the agent; "" if it has none or is unknown
	Unread  int64  // messages that are neither processed nor failed
	Claimed bool   // the run has claimed messages that are not processed
}

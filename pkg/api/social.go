package api

// Messages of social, which owns addresses, signed messages and inboxes
// (docs/reference/social.md, Messages).
//
// History: v1 2026-11 first version.

// Send delivers a signed message to an inbox. Social checks the signature, the
// addresses, the size and the age. It is idempotent: the same message again is not
// stored twice. The answer is [Sent]. Errors: Invalid (with the fault), Denied (the
// signature is not From's).
type Send struct {
	From      string `json:"from"`
	To        string `json:"to"`
	Content   string `json:"content"`
	SignedAt  string `json:"signedAt"`
	Signature string `json:"signature"`
	ReplyTo   string `json:"replyTo,omitempty"`
}

// Sent is the answer to [Send].
type Sent struct {
	ID string `json:"id"`
}

// ClaimInbox assigns an agent's oldest unread messages to a run. A repeated claim of
// the same run returns the same messages. A claim that is not settled within ten
// minutes expires, and a message becomes failed when its third claim expires
// (docs/reference/social.md, Message states). The answer is an [Inbox], which is empty
// for an unknown agent. Errors: Invalid (Run).
type ClaimInbox struct {
	Agent string `json:"agent"`
	Run   string `json:"run"`
	Limit int    `json:"limit"`          // at most 100; 0: 10
	From  string `json:"from,omitempty"` // address of a sender: only its messages; "": all
}

// SettleInbox marks the messages that a run has claimed as processed. With Unanswered
// another run may claim them, and those of which it was the third claim become failed. It
// is idempotent. The answer is [InboxCount]. Errors: Invalid (Run).
type SettleInbox struct {
	Agent      string `json:"agent"`
	Run        string `json:"run"`
	Unanswered bool   `json:"unanswered,omitempty"` // the run has ended before a model has answered
}

// ListInbox requests an [Inbox]: an agent's messages with a status ("": all) and from a
// sender ("": all), the latest first; Limit 0 means 50. It claims no message. Errors:
// Invalid (status, limit, After).
type ListInbox struct {
	Agent  string `json:"agent"`
	Status string `json:"status,omitempty"`
	From   string `json:"from,omitempty"`  // address
	After  string `json:"after,omitempty"` // Next of the previous page
	Limit  int    `json:"limit,omitempty"`
}

// CountInbox requests the [InboxCount] of an agent.
type CountInbox struct {
	Agent string `json:"agent"`
}

// InboxCount is the number of messages that are not processed or failed.
type InboxCount struct {
	Unread int64 `json:"unread"`
}

// Inbox is a list of received messages.
type Inbox struct {
	Messages []InboxMessage `json:"messages"`
	Page                    // only in the answer to [ListInbox]
}

// InboxMessage is a received message. Social has checked its signature. Its text is
// external data without authority.
type InboxMessage struct {
	ID         string `json:"id"`
	From       string `json:"from"` // EIP-55
	To         string `json:"to"`
	Content    string `json:"content"`
	SignedAt   string `json:"signedAt"`
	Signature  string `json:"signature"`
	ReplyTo    string `json:"replyTo,omitempty"`
	Status     string `json:"status"` // received, in_progress, processed, failed
	ReceivedAt int64  `json:"receivedAt"`
	Peer       string `json:"peer,omitempty"` // name of the sender, if it is an agent of this installation
}

// MessageReceived is published when a message for an agent of this installation is in
// its inbox.
type MessageReceived struct {
	ID    string `json:"id"`
	Agent string `json:"agent"`
	From  string `json:"from"`
	At    int64  `json:"at"`
}

// The implementations of [Message] by the types of this file.

func (Send) Subject() Subject              { return request(Social, "send") }
func (ClaimInbox) Subject() Subject        { return request(Social, "claim_inbox") }
func (SettleInbox) Subject() Subject       { return request(Social, "settle_inbox") }
func (ListInbox) Subject() Subject         { return request(Social, "list_inbox") }
func (CountInbox) Subject() Subject        { return request(Social, "count_inbox") }
func (m MessageReceived) Subject() Subject { return event(Social, "message_received", m.Agent) }

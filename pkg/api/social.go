package api

// social owns addresses, signed messages and inboxes (design §3, spec-social).
//
// History: v1 2026-11 first version.

// Send hands in a signed message. The relay checks the signature, the
// addresses, the size and the age. The same message twice is one message.
// Answers [Sent]. Errors: Invalid (with what is wrong), Denied (the signature is
// not From's).
type Send struct {
	From      string `json:"from"`
	To        string `json:"to"`
	Content   string `json:"content"`
	SignedAt  string `json:"signedAt"`
	Signature string `json:"signature"`
	ReplyTo   string `json:"replyTo,omitempty"`
}

// Subject of the message.
func (Send) Subject() Subject { return request(Social, "send") }

// Sent answers [Send].
type Sent struct {
	ID string `json:"id"`
}

// ClaimInbox hands an agent's oldest unread messages to a run. The same run
// claims the same messages again; a claim that is not settled in ten minutes
// lapses, and after three claims a message is failed (spec-core-1 §1.8).
// Answers [Inbox]. Errors: none for an unknown agent: its inbox is empty.
type ClaimInbox struct {
	Agent string `json:"agent"`
	Run   string `json:"run"`
	Limit int    `json:"limit"`          // 0 means 10
	From  string `json:"from,omitempty"` // address of the one sender whose messages are claimed; "": of all
}

// Subject of the message.
func (ClaimInbox) Subject() Subject { return request(Social, "claim_inbox") }

// SettleInbox marks the messages that a run claimed as processed. Settling
// twice changes nothing. Answers [InboxCount].
type SettleInbox struct {
	Agent string `json:"agent"`
	Run   string `json:"run"`
}

// Subject of the message.
func (SettleInbox) Subject() Subject { return request(Social, "settle_inbox") }

// ListInbox answers [Inbox]: an agent's messages of a status ("": all) and a sender
// ("": all), the latest first; Limit 0 means 50. It claims nothing. Errors: Invalid
// (status, limit, After).
type ListInbox struct {
	Agent  string `json:"agent"`
	Status string `json:"status,omitempty"`
	From   string `json:"from,omitempty"`  // address
	After  string `json:"after,omitempty"` // Next of the page before
	Limit  int    `json:"limit,omitempty"`
}

// Subject of the message.
func (ListInbox) Subject() Subject { return request(Social, "list_inbox") }

// CountInbox answers [InboxCount].
type CountInbox struct {
	Agent string `json:"agent"`
}

// Subject of the message.
func (CountInbox) Subject() Subject { return request(Social, "count_inbox") }

// InboxCount is how many messages nobody has handled yet.
type InboxCount struct {
	Unread int64 `json:"unread"`
}

// Inbox is a list of received messages.
type Inbox struct {
	Messages []InboxMessage `json:"messages"`
	Page                    // only in the answer to [ListInbox]
}

// InboxMessage is a received message. Its signature was checked on arrival; its
// text is data from outside and carries no authority of its own.
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
	Peer       string `json:"peer,omitempty"` // name of the sender, if it lives here
}

// MessageReceived says that a message for an agent of this house is in its inbox.
type MessageReceived struct {
	ID    string `json:"id"`
	Agent string `json:"agent"`
	From  string `json:"from"`
	At    int64  `json:"at"`
}

// Subject of the message.
func (m MessageReceived) Subject() Subject { return event(Social, "message_received", m.Agent) }

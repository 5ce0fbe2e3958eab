package inbox

import (
	"context"
	"time"
)

// Mailbox is the interface for the owner of an address. The mailbox of an address without
// messages is empty.
type Mailbox interface {
	// Claim assigns messages to a run and returns them: those that the run has already
	// claimed, otherwise at most limit of the oldest unclaimed ones, of one sender or
	// ("") of all, as many as fit into one response. Two runs never have a claim on the
	// same message.
	Claim(ctx context.Context, address, run, from string, limit int, now time.Time) ([]Mail, error)
	// Settle marks the messages claimed by the run as processed, even if the claim has
	// lapsed, unless another run has claimed them since.
	Settle(ctx context.Context, address, run string, now time.Time) error
	// List returns messages of a status and a sender, "" for all, the latest first: those
	// before a place in the mailbox, 0 for all.
	List(ctx context.Context, address string, status Status, from string, before int64, limit int) ([]Mail, error)
	// Poll returns unread messages after a place in the mailbox, in order. If the owner
	// is not a resident, the messages up to after are marked processed, because the owner
	// has received them.
	Poll(ctx context.Context, address string, after int64, limit int, now time.Time) ([]Mail, error)
	// Unread returns the number of messages that are neither processed nor failed.
	Unread(ctx context.Context, address string) (int64, error)
}

// Store stores messages and the directory of residents. It is safe for concurrent use,
// also by several replicas.
type Store interface {
	Mailbox

	// Receive adds a message to its mailbox and, if the recipient is a resident,
	// announces it in the same transaction. fresh is called for a new message only, and
	// decides whether it may still be accepted. duplicate means that the id was received
	// before and nothing changes. Errors are those of fresh, of [Admit] and [Full].
	Receive(ctx context.Context, m Mail, fresh func() error) (duplicate bool, err error)
	// SeeResident stores the latest entry of an agent and ignores an older one. It
	// announces the unread messages that arrived before the agent was known.
	SeeResident(ctx context.Context, r Resident) error
	// Waiting returns the state of an agent's mailbox for a run. It is one statement
	// without a write, because most mailboxes are empty.
	Waiting(ctx context.Context, agent, run string) (Waiting, error)
	// AddressOf returns the address of an agent, or "" if it has none or is unknown.
	AddressOf(ctx context.Context, agent string) (string, error)
	// Prune deletes messages received before a time, read or not.
	Prune(ctx context.Context, before time.Time) error
}

package inbox

import (
	"context"
	"time"
)

// Mailbox is what the owner of an address does with its messages. An address
// that nobody has written to has an empty mailbox.
type Mailbox interface {
	// Claim hands messages to a run: those that it holds already, else at most
	// limit of the oldest that no run holds, of one sender or ("") of all, as many as
	// fit one answer. Two runs never hold the same message.
	Claim(ctx context.Context, address, run, from string, limit int, now time.Time) ([]Mail, error)
	// Settle marks what the run claimed last as processed, lapsed or not, unless
	// somebody else has claimed it since.
	Settle(ctx context.Context, address, run string, now time.Time) error
	// List returns messages of a status and a sender, "" for all, the latest first: those
	// before a place in the mailbox, 0 for all.
	List(ctx context.Context, address string, status Status, from string, before int64, limit int) ([]Mail, error)
	// Poll returns unread messages after a place in the mailbox, in order. If the
	// owner does not live here, what it has seen, everything up to after, is
	// processed: its inbox is with itself.
	Poll(ctx context.Context, address string, after int64, limit int, now time.Time) ([]Mail, error)
	// Unread counts the messages that are neither processed nor failed.
	Unread(ctx context.Context, address string) (int64, error)
}

// Store keeps messages and the directory of residents. It is safe for concurrent
// use, by several replicas too.
type Store interface {
	Mailbox

	// Receive puts a message into its mailbox and announces it if its owner lives
	// here, together or not at all. fresh is asked, after it is known that the
	// message is new, whether it may still come. duplicate says that the same id
	// was received before; nothing changes then. Errors: those of fresh, of
	// [Admit] and [Full].
	Receive(ctx context.Context, m Mail, fresh func() error) (duplicate bool, err error)
	// SeeResident keeps the latest entry of an agent and drops an older one. The
	// unread messages that came before the agent did are announced.
	SeeResident(ctx context.Context, r Resident) error
	// Waiting looks into the mailbox of an agent for a run. It is one statement and no
	// write: as a rule there is nothing.
	Waiting(ctx context.Context, agent, run string) (Waiting, error)
	// AddressOf returns the address of an agent, "" if it has none or is unknown.
	AddressOf(ctx context.Context, agent string) (string, error)
	// Prune forgets messages received before a time, read or not.
	Prune(ctx context.Context, before time.Time) error
}

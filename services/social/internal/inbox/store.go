package inbox

import (
	"context"
	"time"
)

// Store stores messages and the directory of local agents. The mailbox of an address
// without messages is empty. A Store is safe for concurrent use, also by several replicas.
type Store interface {
	// Receive adds a message to its mailbox and, if the recipient is a local agent,
	// announces it in the same transaction. fresh is called for a new message only, and
	// decides whether it may still be accepted. duplicate means that the id was received
	// before and nothing changes. Errors are those of fresh, of [CheckRate] and of
	// [MailboxFull].
	Receive(ctx context.Context, m Message, fresh func() error) (duplicate bool, err error)
	// PutAgent stores the latest entry of an agent and ignores an older one. It
	// announces the unread messages that arrived before the agent was known.
	PutAgent(ctx context.Context, a LocalAgent) error
	// MailboxState returns the state of an agent's mailbox for a run. It is one statement
	// without a write, because most mailboxes are empty.
	MailboxState(ctx context.Context, agent, run string) (MailboxState, error)
	// AddressOf returns the address of an agent, or "" if it has none or is unknown.
	AddressOf(ctx context.Context, agent string) (string, error)
	// AgentAt returns the agent with an address, or "" if there is none.
	AgentAt(ctx context.Context, address string) (string, error)
	// Claim assigns messages to a run and returns them: those that the run has already
	// claimed, otherwise at most limit of the oldest unclaimed ones, of one sender or
	// ("") of all, as many as fit into one response. A run that has settled messages gets no
	// others: its claim would keep them from the runs that follow. Two runs never have a
	// claim on the same message.
	Claim(ctx context.Context, address, run, from string, limit int, now time.Time) ([]Message, error)
	// Settle marks the messages claimed by the run as processed, even if the claim has
	// expired, unless another run has claimed them since.
	Settle(ctx context.Context, address, run string, now time.Time) error
	// Release ends the claim of a run without a settlement: its messages may be claimed
	// again, or are failed after their last attempt.
	Release(ctx context.Context, address, run string) error
	// List returns messages of a status and a sender, "" for all, the latest first: those
	// before a place in the mailbox, 0 for all. It returns at most limit, and not many more
	// than fit into one response, but at least one more if there is one.
	List(ctx context.Context, address string, status Status, from string, before int64, limit int) ([]Message, error)
	// Poll returns unread messages after a place in the mailbox, in order. If the owner
	// is not a local agent, the messages up to after are marked processed, because the owner
	// has received them.
	Poll(ctx context.Context, address string, after int64, limit int, now time.Time) ([]Message, error)
	// Unread returns the number of messages that are neither processed nor failed.
	Unread(ctx context.Context, address string) (int64, error)
	// Prune deletes messages received before a time, read or not.
	Prune(ctx context.Context, before time.Time) error
}

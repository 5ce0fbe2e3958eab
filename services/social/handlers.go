package social

import (
	"context"
	"log/slog"
	"strings"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"
	"github.com/anima-run/anima/pkg/failpoint"
	"github.com/anima-run/anima/pkg/outbox"
	"github.com/anima-run/anima/pkg/sqldb"
	"github.com/anima-run/anima/services/social/internal/inbox"
	"github.com/anima-run/anima/services/social/internal/message"
)

// Default and maximum numbers of messages in a response.
const (
	claimLimit, claimMost = 10, 100
	listLimit             = 50
)

type handlers struct {
	bus       *bus.Bus
	store     inbox.Store
	now       func() time.Time
	log       *slog.Logger
	tel       instruments
	wakeRelay func() // notifies the outbox relay of new rows
}

// agentChanged stores the name and the address of an agent. They change only when the
// agent is applied or deleted, and those changes are separate messages, so social does
// not read the changes in journals.
func (h *handlers) agentChanged(ctx context.Context, m api.AgentChanged) error {
	address, err := message.Address(m.Address)
	if err != nil {
		address = "" // an agent in setup has no wallet yet
	}
	err = h.store.PutAgent(ctx, inbox.LocalAgent{Agent: m.Agent, Name: m.Name, Address: address, Seq: m.Seq})
	h.wakeRelay()
	return err
}

func (h *handlers) send(ctx context.Context, m api.Send) (api.Sent, error) {
	id, err := h.receive(ctx, message.Signed(m))
	return api.Sent{ID: id}, err
}

// receive checks and stores a message, independently of the transport.
func (h *handlers) receive(ctx context.Context, m message.Signed) (id string, err error) {
	outcome := "refused"
	defer func() { h.tel.received(ctx, outcome) }()
	verified, err := message.Verify(m)
	if err != nil {
		return "", err
	}
	now := h.now().UTC().Truncate(time.Microsecond)
	received := inbox.Message{
		ID: verified.ID, From: verified.From, To: verified.To, Content: verified.Content, SignedAt: verified.SignedAt,
		Signature: verified.Signature, ReplyTo: verified.ReplyTo, Received: now,
	}
	duplicate, err := failpoint.Value(ctx, failpoint.SocialReceive, func(ctx context.Context) (bool, error) {
		return h.store.Receive(ctx, received, func() error { return message.Fresh(verified.Time, now) })
	})
	switch {
	case err != nil:
		return "", err
	case duplicate:
		outcome = "duplicate"
	default:
		outcome = "received"
		h.wakeRelay()
	}
	return verified.ID, nil
}

func (h *handlers) claimInbox(ctx context.Context, m api.ClaimInbox) (api.Inbox, error) {
	if m.Run == "" {
		return api.Inbox{}, api.Errorf(api.Invalid, "a claim needs a run")
	}
	state, err := h.store.MailboxState(ctx, m.Agent, m.Run)
	if err != nil || state.Unread == 0 {
		return api.Inbox{Messages: []api.InboxMessage{}}, err
	}
	all, err := failpoint.Value(ctx, failpoint.SocialClaim, func(ctx context.Context) ([]inbox.Message, error) {
		return h.store.Claim(ctx, state.Address, m.Run, strings.ToLower(m.From), clampLimit(m.Limit, claimLimit, claimMost), h.now())
	})
	h.tel.claims(ctx, len(all))
	return answer(all), err
}

func (h *handlers) settleInbox(ctx context.Context, m api.SettleInbox) (api.InboxCount, error) {
	if m.Run == "" {
		return api.InboxCount{}, api.Errorf(api.Invalid, "settling messages needs a run")
	}
	state, err := h.store.MailboxState(ctx, m.Agent, m.Run)
	if err != nil || !state.Claimed {
		return api.InboxCount{Unread: state.Unread}, err
	}
	err = failpoint.Do(ctx, failpoint.SocialSettle, func(ctx context.Context) error {
		if m.Unanswered {
			return h.store.Release(ctx, state.Address, m.Run)
		}
		return h.store.Settle(ctx, state.Address, m.Run, h.now())
	})
	if err != nil {
		return api.InboxCount{}, err
	}
	return h.unread(ctx, state.Address)
}

func (h *handlers) listInbox(ctx context.Context, m api.ListInbox) (api.Inbox, error) {
	status := inbox.Status(m.Status)
	if m.Status != "" && !status.Valid() {
		return api.Inbox{}, &api.Error{
			Code: api.Invalid, Message: "unknown message status " + m.Status,
			Next: "use received, in_progress, processed, failed or none",
		}
	}
	limit, err := api.PageLimit(m.Limit, listLimit)
	if err != nil {
		return api.Inbox{}, err
	}
	before, err := parseCursor(m.After)
	if err != nil {
		return api.Inbox{}, err
	}
	address, err := h.store.AddressOf(ctx, m.Agent)
	if err != nil || address == "" {
		return api.Inbox{Messages: []api.InboxMessage{}}, err
	}
	all, err := h.store.List(ctx, address, status, strings.ToLower(m.From), before, limit+1)
	all, page := api.CutPage(all, limit, formatCursor)
	out := answer(all)
	out.Page = page
	return out, err
}

func (h *handlers) countInbox(ctx context.Context, m api.CountInbox) (api.InboxCount, error) {
	address, err := h.store.AddressOf(ctx, m.Agent)
	if err != nil || address == "" {
		return api.InboxCount{}, err
	}
	return h.unread(ctx, address)
}

func (h *handlers) unread(ctx context.Context, address string) (api.InboxCount, error) {
	n, err := h.store.Unread(ctx, address)
	return api.InboxCount{Unread: n}, err
}

func clampLimit(asked, normal, most int) int {
	if asked <= 0 {
		return normal
	}
	return min(asked, most)
}

func answer(all []inbox.Message) api.Inbox {
	out := api.Inbox{Messages: []api.InboxMessage{}}
	for _, m := range all {
		out.Messages = append(out.Messages, api.InboxMessage{
			ID: m.ID, From: message.Display(m.From), To: message.Display(m.To), Content: m.Content, SignedAt: m.SignedAt,
			Signature: m.Signature, ReplyTo: m.ReplyTo, Status: string(m.Status), ReceivedAt: m.Received.UnixMicro(), Peer: m.Peer,
		})
	}
	return out
}

// announce adds the event of a message for an agent to the outbox.
func announce(ctx context.Context, tx *sqldb.Tx, agent string, m inbox.Message) error {
	return outbox.Add(ctx, tx, "message_received/"+agent+"/"+m.ID, api.MessageReceived{
		ID: m.ID, Agent: agent, From: message.Display(m.From), At: m.Received.UnixMicro(),
	})
}

package loop

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/failpoint"

	"github.com/anima-run/anima/services/loop/internal/sqlstore"
)

// sendMessage accepts a message. The message is accepted when its run is stored in the
// work queue, whose server refuses the run if the queue is full.
func (h *handlers) sendMessage(ctx context.Context, m api.SendMessage) (api.Accepted, error) {
	if err := h.room(); err != nil {
		return api.Accepted{}, err
	}
	if err := checkMessage(m); err != nil {
		return api.Accepted{}, err
	}
	agent, err := h.store.Agent(ctx, strings.ToLower(m.Agent))
	if err != nil {
		return api.Accepted{}, err
	}
	at := h.now().UnixMicro()
	by := api.Principal{Kind: api.Creator}
	session := agent.Session
	id := runOfMessage(ctx, m.ID, by, agent.ID, m.Session)
	switch m.Session {
	case "":
	case sessionNew:
		session = agent.ID + "-" + id.run
	default:
		s, err := h.store.Session(ctx, m.Session)
		if api.CodeOf(err) == api.NotFound {
			e := *api.Wire(err)
			e.Next += "; leave the session out to use the agent's main session"
			return api.Accepted{}, &e
		}
		if err != nil {
			return api.Accepted{}, err
		}
		if s.Agent != agent.ID {
			return api.Accepted{}, &api.Error{Code: api.Invalid, Message: "session " + s.ID + " belongs to " + s.Agent, Next: "leave the session out, or name one of " + agent.ID}
		}
		if s.Terminated != 0 {
			return api.Accepted{}, &api.Error{
				Code: api.Conflict, Reason: api.ReasonTerminated, Message: "session " + s.ID + " is terminated: " + s.Reason,
				Next: "leave the session out, or begin a new one with session new",
			}
		}
		session = s.ID
		if session == agent.Session { // the main session has the same runs whether it is named or not
			id = runOfMessage(ctx, m.ID, by, agent.ID, "")
		}
	}
	run := id.run
	if m.ID != "" {
		claimed, err := h.store.Claim(ctx, sqlstore.Key{Run: run, Content: m.Content, Mode: m.Mode, At: at})
		if err != nil {
			return api.Accepted{}, err
		}
		if claimed.Begun {
			return api.Accepted{Run: run, Session: session, Agent: agent.ID, At: claimed.At}, nil
		}
	}
	if m.Session == sessionNew {
		if err := h.store.NewSession(ctx, session, agent.ID, at); err != nil {
			return api.Accepted{}, err
		}
	}
	if m.Mode == api.ModeDrop {
		if busy, err := h.queue.Busy(ctx, session, run); err != nil || busy {
			if err == nil {
				err = &api.Error{Code: api.Conflict, Message: "session " + session + " is busy", Next: "send it again later, or with mode queue"}
			}
			return api.Accepted{}, err
		}
	}
	cmd := api.Run{
		Run: run, Agent: agent.ID, Session: session, Kind: api.RunMessage, Content: m.Content,
		By: by, Mode: m.Mode, AcceptedAt: at,
	}
	sequence, err := failpoint.Value(ctx, failpoint.LoopAccept, func(ctx context.Context) (uint64, error) {
		return h.bus.PublishSequence(ctx, id.messageID(), cmd)
	})
	if err != nil {
		return api.Accepted{}, err
	}
	// The message is accepted. A crash from here on only loses the effect of its mode,
	// which the repeated request has again.
	switch m.Mode {
	case api.ModeInterrupt:
		if err := h.interrupt(ctx, session, sequence, run); err != nil {
			return api.Accepted{}, err
		}
	case api.ModeSteer:
		if err := h.bus.PublishLive(ctx, api.SessionNotice{Session: session, Steered: run}); err != nil {
			h.log.WarnContext(ctx, "run in progress not notified, the message runs after it", "run", run, "err", err)
		}
	case api.ModeQueue, api.ModeDrop, api.ModeCollect:
	}
	return api.Accepted{Run: run, Session: session, Agent: agent.ID, At: at}, nil
}

var modes = []api.Mode{api.ModeQueue, api.ModeDrop, api.ModeInterrupt, api.ModeSteer, api.ModeCollect}

func checkMessage(m api.SendMessage) error {
	switch {
	case strings.TrimSpace(m.Content) == "":
		return &api.Error{Code: api.Invalid, Message: "the message is empty", Next: "send a message with text"}
	case len(m.Content) > api.MaxMessageBytes:
		return &api.Error{
			Code: api.Invalid, Reason: api.ReasonTooLarge, Message: fmt.Sprintf("the message has %d bytes, at most %d are taken", len(m.Content), api.MaxMessageBytes),
			Next: "put the long part into a file of the agent's folder and name it",
		}
	case !utf8.ValidString(m.Content):
		return &api.Error{Code: api.Invalid, Message: "the message is not UTF-8"}
	case m.Mode != "" && !slices.Contains(modes, m.Mode):
		return &api.Error{Code: api.Invalid, Message: fmt.Sprintf("there is no mode %q", m.Mode), Next: "use queue, drop, interrupt, steer or collect"}
	case len(m.ID) > 128:
		return &api.Error{Code: api.Invalid, Message: "the id is longer than 128 bytes"}
	}
	return nil
}

// sessionNew is the session name that requests a new session.
const sessionNew = "new"

package loop

import (
	"cmp"
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"
	"github.com/anima-run/anima/pkg/wait"

	"github.com/anima-run/anima/services/loop/internal/sqlstore"
)

func (h *handlers) sessionRoutes() []bus.Route {
	return []bus.Route{
		bus.Reply(h.createSession), bus.Reply(h.getSession), bus.Reply(h.listSessions), bus.Reply(h.terminateSession), bus.Reply(h.resetSession),
		bus.Reply(h.getTranscript), bus.Reply(h.importTranscript), bus.Reply(h.getTurn), bus.Reply(h.listTurns), bus.Reply(h.getOutput),
	}
}

// createSession creates a session without a message. Its id derives from the agent and
// the caller's id, so a repeated request returns the same session.
func (h *handlers) createSession(ctx context.Context, m api.CreateSession) (api.Session, error) {
	if len(m.ID) > 128 {
		return api.Session{}, &api.Error{Code: api.Invalid, Message: "the id is longer than 128 bytes", Next: "use a shorter one, or leave it out"}
	}
	agent, err := h.store.Agent(ctx, strings.ToLower(m.Agent))
	if err != nil {
		return api.Session{}, err
	}
	id := newID(ctx)
	if m.ID != "" {
		id = hashed("session:" + agent.ID + "/" + m.ID)
	}
	session := agent.ID + "-" + id
	if err := h.store.NewSession(ctx, session, agent.ID, h.now().UnixMicro()); err != nil {
		return api.Session{}, err
	}
	return h.store.Session(ctx, session)
}

func (h *handlers) getSession(ctx context.Context, m api.GetSession) (api.Session, error) {
	return h.store.Session(ctx, m.Session)
}

func (h *handlers) listSessions(ctx context.Context, m api.ListSessions) (api.Sessions, error) {
	all, page, err := pageOf(m.Limit, api.MaxPage, func(s api.Session) string { return cursor(s.UpdatedAt, s.ID) }, func(n int) ([]api.Session, error) {
		after, err := placeOf(m.After)
		if err != nil {
			return nil, err
		}
		return h.store.Sessions(ctx, strings.ToLower(m.Agent), after, n)
	})
	return api.Sessions{Sessions: all, Page: page}, err
}

// pageOf reads a page of a list with at most limit entries, most if limit is 0. next
// returns the position of an entry, read the first n entries.
func pageOf[T any](limit, most int, next func(T) string, read func(n int) ([]T, error)) ([]T, api.Page, error) {
	limit, err := api.PageLimit(limit, most)
	if err != nil {
		return nil, api.Page{}, err
	}
	all, err := read(limit + 1)
	all, page := api.CutPage(all, limit, next)
	return all, page, err
}

// cursor returns the position of an entry in a list with the latest first, as the After
// of the next page.
func cursor(at int64, id string) string { return strconv.FormatInt(at, 10) + "." + id }

// placeOf parses a cursor; "" is the start of the list. Errors: Invalid.
func placeOf(after string) (sqlstore.Place, error) {
	if after == "" {
		return sqlstore.Place{}, nil
	}
	at, id, found := strings.Cut(after, ".")
	n, err := strconv.ParseInt(at, 10, 64)
	if err != nil || !found || n < 1 {
		return sqlstore.Place{}, api.NotInList(after)
	}
	return sqlstore.Place{At: n, ID: id}, nil
}

func (h *handlers) getTranscript(ctx context.Context, m api.GetTranscript) (api.Transcript, error) {
	if _, err := h.store.Session(ctx, m.Session); err != nil {
		return api.Transcript{}, err
	}
	limit, err := api.PageLimit(m.Limit, 500)
	if err != nil {
		return api.Transcript{}, err
	}
	return h.store.Transcript(ctx, m.Session, m.After, limit)
}

func (h *handlers) getTurn(ctx context.Context, m api.GetTurn) (api.Turn, error) {
	return h.store.Turn(ctx, m.Turn)
}

func (h *handlers) listTurns(ctx context.Context, m api.ListTurns) (api.Turns, error) {
	m.Agent = strings.ToLower(m.Agent)
	all, page, err := pageOf(m.Limit, 50, func(t api.Turn) string { return t.ID }, func(n int) ([]api.Turn, error) {
		m.Limit = n
		all, err := h.store.Turns(ctx, m)
		if err == nil && len(all) == 0 && m.Before != "" { // also for a turn that does not exist
			if _, err = h.store.Turn(ctx, m.Before); api.CodeOf(err) == api.NotFound {
				err = api.NotInList(m.Before)
			}
		}
		return all, err
	})
	return api.Turns{Turns: all, Page: page}, err
}

// terminateSession marks the session terminated, then cancels its runs.
func (h *handlers) terminateSession(ctx context.Context, m api.TerminateSession) (api.Session, error) {
	s, err := h.store.Terminate(ctx, m.Session, cmp.Or(m.Reason, "terminated"), h.now().UnixMicro())
	if err != nil {
		return s, err
	}
	return s, h.cancelQueue(ctx, s.ID, 0, "the session is terminated: "+s.Reason)
}

// resetSession resets a session that has no run in progress, because a run could store
// an old summary again. The queue shows runs that will be resumed; if it shows none,
// the session's journal decides.
func (h *handlers) resetSession(ctx context.Context, m api.ResetSession) (api.Session, error) {
	s, err := h.store.Session(ctx, m.Session)
	if err != nil {
		return s, err
	}
	var queued bool
	for delay := 10 * time.Millisecond; ; delay *= 2 {
		if queued, err = h.queue.Busy(ctx, s.ID, ""); err == nil && !queued {
			s, err = h.resetFree(ctx, s)
		}
		// The end of a run is announced shortly before its message is acknowledged.
		if !queued && api.ReasonOf(err) != api.ReasonBusy || delay > 200*time.Millisecond {
			break
		}
		if wait.For(ctx, delay) != nil {
			return s, context.Cause(ctx)
		}
	}
	if queued || api.ReasonOf(err) == api.ReasonBusy {
		err = &api.Error{
			Code: api.Conflict, Reason: api.ReasonBusy, Message: "session " + s.ID + " is busy",
			Next: "reset it when its run is over, or cancel that: anima session get " + s.ID + " shows it",
		}
	}
	return s, err
}

// resetFree resets a session that no run owns. Errors: Conflict with ReasonBusy.
func (h *handlers) resetFree(ctx context.Context, s api.Session) (api.Session, error) {
	cmd := api.Run{Run: "reset", Session: s.ID, Agent: s.Agent}
	err := h.locks.With(ctx, cmd, func(ctx context.Context) (err error) {
		if err = h.locks.Journal.Own(ctx, cmd, h.now().UnixMicro()); err == nil {
			s, err = h.store.Reset(ctx, s.ID)
		}
		return err
	})
	return s, err
}

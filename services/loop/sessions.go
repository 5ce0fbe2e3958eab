package loop

import (
	"context"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"github.com/anima-run/anima/pkg/api"

	"github.com/anima-run/anima/services/loop/internal/sqlstore"
)

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
	id := uuid.Must(uuid.NewV7())
	if m.ID != "" {
		id = uuid.NewSHA1(uuid.NameSpaceURL, []byte("anima:session:"+agent.ID+"/"+m.ID))
	}
	session := agent.ID + "-" + id.String()
	if err := h.store.NewSession(ctx, session, agent.ID, h.now().UnixMicro()); err != nil {
		return api.Session{}, err
	}
	return h.store.Session(ctx, session)
}

func (h *handlers) listSessions(ctx context.Context, m api.ListSessions) (api.Sessions, error) {
	limit, err := api.PageLimit(m.Limit, api.MaxPage)
	if err != nil {
		return api.Sessions{}, err
	}
	after, err := placeOf(m.After)
	if err != nil {
		return api.Sessions{}, err
	}
	all, err := h.store.Sessions(ctx, strings.ToLower(m.Agent), after, limit+1)
	all, page := api.CutPage(all, limit, func(s api.Session) string { return cursor(s.UpdatedAt, s.ID) })
	return api.Sessions{Sessions: all, Page: page}, err
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
		return sqlstore.Place{}, noPlace(after)
	}
	return sqlstore.Place{At: n, ID: id}, nil
}

func noPlace(after string) error {
	return &api.Error{Code: api.Invalid, Message: strconv.Quote(after) + " is not a position in this list", Next: "use the position that the previous page returned, or leave it out"}
}

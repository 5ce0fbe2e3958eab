package loop

import (
	"context"
	"fmt"
	"strings"

	"github.com/anima-run/anima/pkg/api"

	"github.com/anima-run/anima/services/loop/internal/sqlstore"
)

// importTranscript creates or extends a session with lines of an external transcript,
// in one transaction. A repeated request with the same id returns the first answer.
func (h *handlers) importTranscript(ctx context.Context, m api.ImportTranscript) (api.Imported, error) {
	if err := h.room(); err != nil {
		return api.Imported{}, err
	}
	switch {
	case len(m.Lines) == 0:
		return api.Imported{}, &api.Error{Code: api.Invalid, Message: "the transcript has no lines", Next: "give one message a line, in the form of anima session export"}
	case len(m.Lines) > api.MaxImportLines:
		return api.Imported{}, &api.Error{
			Code: api.Invalid, Message: fmt.Sprintf("%d lines, at most %d are taken at a time", len(m.Lines), api.MaxImportLines),
			Next: "give them in parts, each with the session of the first",
		}
	case m.First < 0:
		return api.Imported{}, &api.Error{Code: api.Invalid, Message: fmt.Sprintf("the first line has the number %d", m.First), Next: "count lines from 1"}
	case len(m.ID) > 128:
		return api.Imported{}, &api.Error{Code: api.Invalid, Message: "the id is longer than 128 bytes", Next: "give a shorter one"}
	}
	in := sqlstore.Import{
		Run: importID(ctx, m), Keyed: m.ID != "", Agent: strings.ToLower(m.Agent), Session: m.Session, New: m.Session == "",
		First: max(m.First, 1), Lines: m.Lines, At: h.now().UnixMicro(),
	}
	if in.New {
		in.Session = in.Agent + "-" + in.Run
	}
	out, err := h.store.Import(ctx, in)
	if err == nil {
		h.log.InfoContext(ctx, "transcript imported", "agent", in.Agent, "session", in.Session, "turns", out.Turns, "cut", len(out.Cut))
	}
	return out, err
}

// importID returns the id of an import's run. With a caller's id it is the same within
// an agent, and differs from the ids of messages.
func importID(ctx context.Context, m api.ImportTranscript) string {
	if m.ID == "" {
		return newID(ctx)
	}
	return hashed(fmt.Sprintf("import:%q %q", strings.ToLower(m.Agent), m.ID))
}

package sqlstore

import (
	"cmp"
	"context"
	"strconv"
	"time"

	"github.com/anima-run/anima/pkg/api"

	"github.com/anima-run/anima/services/loop/internal/prompt"
)

// linesPerTurn is the distance between the sequence numbers of two turns in a transcript.
// It is more than the lines of a turn: an input, an answer and a result for each tool
// call.
const linesPerTurn = 1000

// Bounds of what [Store.Transcript] reads for one page: a turn may have 100 KB of results.
const (
	turnsAtOnce = 32
	enough      = 1 << 20 // bytes of lines, more than a page has
)

// Transcript returns a page of a session's lines after a sequence number: at most limit
// lines and as many bytes as [api.CutPage] keeps (docs/reference/context.md, Transcript
// format). It is derived from the turns, so it cannot disagree with them.
func (s *Store) Transcript(ctx context.Context, session string, after int64, limit int) (api.Transcript, error) {
	var all []api.TranscriptLine
	from, size, more := after/linesPerTurn, 0, true
	for more && len(all) <= limit && (size <= enough || len(all) == 1) { // one line more than the page has shows that there are more
		n := min(limit+2-len(all), turnsAtOnce) // all lines of the first turn may be up to after; a turn may have no lines
		turns, err := s.turns(ctx, `where session = $1 and position >= $2 order by position limit $3`, session, from, n)
		if err != nil {
			return api.Transcript{Lines: []api.TranscriptLine{}}, err
		}
		for _, t := range turns {
			for _, l := range lines(t) {
				if l.Seq > after {
					all, size = append(all, l), size+bytesOf(l)
				}
			}
		}
		if more = len(turns) == n; more {
			from = turns[n-1].Position + 1
		}
	}
	kept, page := api.CutPage(all, limit, nil)
	return api.Transcript{Lines: kept, More: page.More || more}, nil
}

func bytesOf(l api.TranscriptLine) int {
	n := len(l.Content)
	for _, c := range l.ToolCalls {
		n += len(c.Arguments)
	}
	return n
}

func lines(t prompt.Turn) (out []api.TranscriptLine) {
	add := func(l api.TranscriptLine, at int64) {
		l.Seq, l.Turn, l.Timestamp = t.Position*linesPerTurn+int64(len(out))+1, t.ID, time.UnixMicro(at).UTC().Format("2006-01-02T15:04:05.000Z")
		out = append(out, l)
	}
	if t.Input != "" {
		add(api.TranscriptLine{Role: "user", Content: t.Input}, t.StartedAt)
	}
	if t.Thinking == "" && len(t.Calls) == 0 || t.Finish == api.FinishFlush {
		return out
	}
	// The begin is of another owner of the turn, whose clock may be ahead. A later line that
	// is older would not be imported.
	ended := max(t.StartedAt, t.EndedAt)
	m := api.TranscriptLine{Role: "assistant", Content: t.Thinking}
	for _, c := range t.Calls {
		m.ToolCalls = append(m.ToolCalls, api.ToolCall{ID: callID(c), Name: cmp.Or(c.Tool, "unnamed"), Arguments: string(c.Arguments)})
	}
	add(m, ended)
	for _, c := range t.Calls[:min(len(t.Calls), linesPerTurn-3)] {
		add(api.TranscriptLine{Role: "tool", ToolCallID: callID(c), Content: cmp.Or(c.Result, c.Error)}, ended)
	}
	return out
}

// callID returns the provider's id of a call, or one by its index if the provider gave none.
func callID(c api.CallState) string {
	if c.ID == "" {
		return "call_" + strconv.Itoa(c.Index)
	}
	return c.ID
}

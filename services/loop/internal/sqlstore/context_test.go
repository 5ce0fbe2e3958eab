package sqlstore_test

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/sqldb"
	"github.com/anima-run/anima/pkg/sqldb/sqldbtest"

	"github.com/anima-run/anima/services/loop/internal/engine"
	"github.com/anima-run/anima/services/loop/internal/engine/enginetest"
	"github.com/anima-run/anima/services/loop/internal/prompt"
	"github.com/anima-run/anima/services/loop/internal/sqlstore"
	"github.com/anima-run/anima/services/loop/internal/token"
)

var soakCalls = flag.Int("calls", 60, "model calls of TestSoak")

func TestContextStore(t *testing.T) {
	t.Parallel()
	for _, engine := range []sqldb.Engine{sqldb.SQLite, sqldb.Postgres} {
		t.Run(string(engine), func(t *testing.T) {
			t.Parallel()
			enginetest.RunContext(t, func(t *testing.T) enginetest.Stores {
				if engine == sqldb.SQLite {
					return stored(t, sqldbtest.SQLite(t, sqlstore.Migrations()))
				}
				db, err := sqldb.Open(t.Context(), sqldbtest.Postgres(t), sqldb.Options{})
				must(t, err)
				t.Cleanup(func() { must(t, db.Close()) })
				must(t, sqldb.Migrate(t.Context(), db, sqlstore.Migrations()))
				return stored(t, db)
			})
		})
	}
}

// TestFlushIsSilent checks that a transcript has no memory flush, and has the input of
// the turn that flushed.
func TestFlushIsSilent(t *testing.T) {
	each(t, func(t *testing.T, _ *sqldb.DB, s *sqlstore.Store) {
		cmd := enginetest.Command("ada", "r1")
		flush := enginetest.Record(cmd, 1)
		flush.Turn.Thinking, flush.Turn.Finish = "NO_REPLY", api.FinishFlush
		must(t, s.Persist(t.Context(), flush, enginetest.Input(cmd), nil))
		must(t, s.Persist(t.Context(), enginetest.Record(cmd, 2), enginetest.Input(cmd), nil))
		all, err := s.Transcript(t.Context(), cmd.Session, 0, 100)
		must(t, err)
		var got []string
		for _, l := range all.Lines {
			got = append(got, l.Role+" "+l.Content)
		}
		if want := "user do it, assistant thought 2, tool seen, tool not run"; strings.Join(got, ", ") != want {
			t.Errorf("got %q, want %q", strings.Join(got, ", "), want)
		}
	})
}

// words returns n bytes of text that occurs nowhere else.
func words(r *rand.Rand, n int) string {
	var b strings.Builder
	for b.Len() < n {
		fmt.Fprintf(&b, "%s %d ", []string{"account", "ledger", "river", "stone", "message", "amount", "paid", "open", "north"}[r.IntN(9)], r.IntN(100_000))
	}
	return b.String()[:n]
}

// TestSoak makes many model calls in one session whose conversation exceeds a window of
// 200,000 tokens repeatedly. It checks that it ends, that every prompt fits and is sound,
// and that the database grows by little more than the messages and results: no call
// stores its context. `make soak` makes 1,000 calls.
func TestSoak(t *testing.T) {
	t.Parallel()
	const window = 200_000
	db := sqldbtest.SQLite(t, sqlstore.Migrations())
	s := stored(t, db)
	empty := fileSize(t, db)
	r := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // the same texts in each test run
	counter := token.New()
	var calls, summaries, unique int
	var peak int64
	tools := []string{"look", "put", "pay"}
	script := func(req api.Complete) (api.Completion, error) {
		var tokens int64
		for _, m := range req.Messages {
			tokens += prompt.Tokens(counter, m)
		}
		if calls == 0 {
			unique += len(req.Messages[0].Content)
		}
		if req.Task == api.TaskSummary {
			summaries++
			text := words(r, 600)
			unique += len(text)
			return api.Completion{Model: "cheap", Text: text, Finish: "stop", InputTokens: tokens, OutputTokens: 150, Cost: 9}, nil
		}
		calls++
		peak = max(peak, tokens)
		if tokens > window-4_000 {
			t.Errorf("call %d has %d tokens", calls, tokens)
		}
		sound(t, calls, req.Messages)
		c := api.Completion{Model: "m", Provider: "p", Text: words(r, 200), Finish: "tool_calls", InputTokens: tokens, OutputTokens: 50, Cost: 610}
		unique += len(c.Text)
		if calls%20 == 0 {
			c.Finish = "stop"
			return c, nil
		}
		for i := range 3 {
			args := fmt.Sprintf(`{"query":%q}`, words(r, 100))
			unique += len(args)
			c.ToolCalls = append(c.ToolCalls, api.ToolCall{ID: fmt.Sprintf("call_%d", i), Name: tools[calls%3], Arguments: args})
		}
		return c, nil
	}
	var side sync.Mutex // pure tools run concurrently
	w := enginetest.New(s, script)
	w.Router.Forget, w.Models = true, models{{ID: "m", Usable: true, ContextWindow: window}}
	for name, tool := range w.Tools {
		tool.Mutating = true // so that the agent is not put to sleep
		tool.Run = func(context.Context, engine.Call) (engine.Output, error) {
			side.Lock()
			defer side.Unlock()
			text := words(r, 9_000)
			unique += len(text)
			return engine.Output{Text: text}, nil
		}
		w.Tools[name] = tool
	}
	for n := 1; calls < *soakCalls; n++ {
		cmd := enginetest.Command("ada", fmt.Sprintf("run%d", n))
		cmd.Content = words(r, 500)
		unique += len(cmd.Content)
		must(t, w.Run(t.Context(), enginetest.Open, cmd))
		k, err := s.Known(t.Context(), cmd)
		must(t, err)
		if k.Ended == nil || !k.Ended.Success {
			t.Fatalf("run %d after %d calls ended %+v", n, calls, k.Ended)
		}
	}
	kept, grown := columns(t, db), fileSize(t, db)-empty
	t.Logf("%d calls, %d summaries, at most %d tokens; %d unique bytes, %d stored (%.3f), the file grew by %d (%.3f)",
		calls, summaries, peak, unique, kept, float64(kept)/float64(unique), grown, float64(grown)/float64(unique))
	if peak < window*6/10 || summaries == 0 {
		t.Errorf("the window was never full: at most %d tokens, %d summaries", peak, summaries)
	}
	if 10*kept > 12*unique || 10*grown > 12*unique {
		t.Errorf("%d bytes in columns and %d in the file for %d unique ones: more than 1.2 times", kept, grown, unique)
	}
}

func fileSize(t *testing.T, db *sqldb.DB) int {
	t.Helper()
	var pages, size int
	must(t, db.QueryRowContext(t.Context(), `select page_count, page_size from pragma_page_count, pragma_page_size`).Scan(&pages, &size))
	return pages * size
}

// columns returns the number of bytes in all columns of all tables.
func columns(t *testing.T, db *sqldb.DB) int {
	t.Helper()
	type column struct{ table, name string }
	all, err := sqldb.All(t.Context(), db, func(r sqldb.Scanner) (column, error) {
		var c column
		return c, r.Scan(&c.table, &c.name)
	}, `select m.name, c.name from sqlite_master m join pragma_table_info(m.name) c where m.type = 'table'`)
	must(t, err)
	total := 0
	for _, c := range all {
		var n int
		must(t, db.QueryRowContext(t.Context(), fmt.Sprintf(`select coalesce(sum(length(cast(%q as blob))), 0) from %q`, c.name, c.table)).Scan(&n))
		total += n
	}
	return total
}

// sound checks that each call is followed by its one result.
func sound(t *testing.T, call int, messages []api.ChatMessage) {
	t.Helper()
	var open []string
	for _, m := range messages {
		if m.Role == "tool" && len(open) > 0 && open[0] == m.ToolCallID {
			open = open[1:]
			continue
		}
		if m.Role == "tool" || len(open) > 0 {
			t.Fatalf("call %d: a message of %s where results of %v are awaited", call, m.Role, open)
		}
		for _, c := range m.ToolCalls {
			if !json.Valid([]byte(c.Arguments)) {
				t.Fatalf("call %d: arguments %q", call, c.Arguments)
			}
			open = append(open, c.ID)
		}
	}
	if len(open) > 0 {
		t.Fatalf("call %d: no results of %v", call, open)
	}
}

// models implements turn.Models.
type models []api.Model

func (m models) Models(context.Context) ([]api.Model, error) { return m, nil }

package sqlstore_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/sqldb"

	"github.com/anima-run/anima/services/loop/internal/engine/enginetest"
	"github.com/anima-run/anima/services/loop/internal/sqlstore"
)

// said returns a line of a transcript, the given seconds after at.
func said(second int64, rest string) string {
	return fmt.Sprintf(`{"timestamp":%q,%s}`, time.UnixMicro(at+second*1_000_000).UTC().Format("2006-01-02T15:04:05.000Z"), rest)
}

func conversation() []string {
	return []string{
		said(1, `"role":"user","content":"count\u0000"`),
		"oops\x00\xff",
		said(2, `"role":"assistant","content":"I count.","tool_calls":[{"id":"c0","name":"exec","arguments":"{\"command\":\"wc\"}"},{"id":"c1","name":"look","arguments":"{}"}]`),
		said(2, `"role":"tool","tool_call_id":"c0","content":"7"`),
		said(3, `"role":"assistant","content":"Seven."`),
	}
}

func part(run, session string, first int, lines []string) sqlstore.Import {
	return sqlstore.Import{Run: run, Agent: "ada", Session: session, New: first == 1, First: first, Lines: lines, At: at + 100_000_000}
}

func TestImport(t *testing.T) {
	each(t, func(t *testing.T, db *sqldb.DB, s *sqlstore.Store) {
		got, err := s.Import(t.Context(), part("i1", "ada-i1", 1, conversation()))
		must(t, err)
		want := api.Imported{
			Session: "ada-i1", Agent: "ada", Run: "i1", Turns: 2, Kept: 4, At: at + 100_000_000,
			Cut: []api.CutLine{{Line: 2, Reason: "not JSON", Text: "oops\uFFFD\uFFFD"}, {Line: 3, Reason: `call "c1" of look has no result`, Text: conversation()[2]}},
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("imported (-want +got):\n%s", diff)
		}
		// The same part again returns the stored answer, also with other lines.
		again, err := s.Import(t.Context(), part("i1", "ada-i1", 1, []string{"x"}))
		must(t, err)
		if diff := cmp.Diff(want, again); diff != "" {
			t.Errorf("imported again (-want +got):\n%s", diff)
		}
		more, err := s.Import(t.Context(), part("i2", "ada-i1", 6, []string{said(2, `"role":"user","content":"late"`), said(4, `"role":"user","content":"thanks"`)}))
		must(t, err)
		if more.Turns != 1 || len(more.Cut) != 1 || more.Cut[0].Line != 6 {
			t.Errorf("the second part: %+v, want a turn, and line 6 cut", more)
		}

		var lines []string
		page, err := s.Transcript(t.Context(), "ada-i1", 0, 500)
		must(t, err)
		for _, l := range page.Lines {
			lines = append(lines, fmt.Sprintf("%d %s %s %s %d", l.Seq, l.Turn, l.Role, l.Content, len(l.ToolCalls)))
		}
		wantLines := []string{
			"1001 i1.1 user count\uFFFD 0", "1002 i1.1 assistant I count. 1", "1003 i1.1 tool 7 0", "2001 i1.2 assistant Seven. 0", "3001 i2.1 user thanks 0",
		}
		if diff := cmp.Diff(wantLines, lines); diff != "" {
			t.Errorf("transcript (-want +got):\n%s", diff)
		}
		session, err := s.Session(t.Context(), "ada-i1")
		must(t, err)
		if session.Turns != 3 || session.Messages != 2 || session.Cost != 0 || session.Agent != "ada" {
			t.Errorf("the session is %+v", session)
		}
		history, err := s.History(t.Context(), "ada-i1", 20)
		must(t, err)
		if len(history) != 3 || history[0].By.Kind != api.External || history[0].Calls[0].Result != "7" {
			t.Errorf("later prompts see %+v", history)
		}
		agent, err := s.Agent(t.Context(), "ada")
		must(t, err)
		if agent.Turns != 0 || agent.State != api.StateSleeping {
			t.Errorf("the agent has lived by it: %+v", agent)
		}
		var kept int
		must(t, db.QueryRowContext(t.Context(), `select count(*) from import_cuts where run in ('i1', 'i2') and reason <> ''`).Scan(&kept))
		if kept != 3 {
			t.Errorf("%d lines are kept aside, want 3", kept)
		}

		// After a run of the session, nothing more can be imported into it.
		cmd := enginetest.Command("ada", "r1")
		cmd.Session = "ada-i1"
		must(t, s.Persist(t.Context(), enginetest.Record(cmd, 1), enginetest.Input(cmd), nil))
		history, err = s.History(t.Context(), "ada-i1", 20)
		must(t, err)
		if len(history) != 4 || history[3].ID != "r1.1" {
			t.Errorf("with a run: %+v", history)
		}
		if _, err = s.Import(t.Context(), part("i3", "ada-i1", 8, []string{said(9, `"role":"user","content":"x"`)})); api.CodeOf(err) != api.Conflict {
			t.Errorf("behind a run: %v, want conflict", err)
		}
	})
}

func TestImportRefuses(t *testing.T) {
	each(t, func(t *testing.T, db *sqldb.DB, s *sqlstore.Store) {
		line := []string{said(1, `"role":"user","content":"x"`)}
		nobody := part("i1", "nobody-i1", 1, line)
		nobody.Agent = "nobody"
		_, err := s.Import(t.Context(), nobody)
		wantNotFound(t, err)
		_, err = s.Terminate(t.Context(), "ada-two", "done", at)
		must(t, err)
		if _, err = s.Import(t.Context(), part("i1", "ada-two", 2, line)); api.ReasonOf(err) != api.ReasonTerminated {
			t.Errorf("a terminated session: %v, want terminated", err)
		}
		_, err = s.Import(t.Context(), part("i1", "ada-none", 2, line))
		wantNotFound(t, err)
		if _, err = s.Import(t.Context(), part("i1", "bob-two", 2, line)); api.CodeOf(err) != api.Invalid || !strings.Contains(err.Error(), "bob") {
			t.Errorf("another's session: %v, want invalid", err)
		}
		_, err = s.Import(t.Context(), part("i1", "ada-i1", 1, []string{"a", "", strings.Repeat("b", 300)}))
		e, ok := errors.AsType[*api.Error](err)
		if !ok || e.Code != api.Invalid || len(e.Details) != 2 || e.Details[1] != "line 3: not JSON" {
			t.Errorf("nothing of use: %v, want invalid with 2 details", err)
		}
		_, err = s.Session(t.Context(), "ada-i1")
		wantNotFound(t, err)
		_, err = s.Delete(t.Context(), "bob", "enough", true, at)
		must(t, err)
		deleted := part("i1", "bob-i1", 1, line)
		deleted.Agent = "bob"
		_, err = s.Import(t.Context(), deleted)
		wantNotFound(t, err)
		var rows int
		must(t, db.QueryRowContext(t.Context(), `select count(*) from runs`).Scan(&rows))
		if rows != 0 {
			t.Errorf("%d runs of what was refused", rows)
		}
	})
}

// TestImportTwiceAtOnce checks that concurrent imports of the same part get the same
// answer and import it once.
func TestImportTwiceAtOnce(t *testing.T) {
	each(t, func(t *testing.T, _ *sqldb.DB, s *sqlstore.Store) {
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				if got, err := s.Import(t.Context(), part("i1", "ada-i1", 1, conversation())); err != nil || got.Turns != 2 {
					t.Errorf("got %+v, %v", got, err)
				}
			})
		}
		wg.Wait()
		session, err := s.Session(t.Context(), "ada-i1")
		must(t, err)
		if session.Turns != 2 || session.Messages != 1 {
			t.Errorf("the session is %+v", session)
		}
	})
}

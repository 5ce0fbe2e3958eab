package sqlstore_test

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/sqldb"
	"github.com/anima-run/anima/pkg/sqldb/sqldbtest"

	"github.com/anima-run/anima/services/loop/internal/agent"
	"github.com/anima-run/anima/services/loop/internal/engine"
	"github.com/anima-run/anima/services/loop/internal/engine/enginetest"
	"github.com/anima-run/anima/services/loop/internal/sqlstore"
	"github.com/anima-run/anima/services/loop/internal/transcript"
)

const at = enginetest.Start

func definition(name string) agent.Definition {
	return agent.Definition{
		Name: name, Description: "Counts.", Creator: "0xCD", Model: "m", Tools: []string{"look", "put", "pay", "fire"},
		Limits: agent.DefaultLimits(), Sandbox: agent.DefaultSandbox(), Body: "Be useful.",
	}
}

// stored returns a store with agents ada and bob and two sessions of each.
func stored(t *testing.T, db *sqldb.DB) *sqlstore.Store {
	t.Helper()
	s := sqlstore.New(db, "/data")
	for _, name := range []string{"Ada", "Bob"} {
		id := strings.ToLower(name)
		if _, err := s.Apply(t.Context(), definition(name), id, "0xAD", "source of "+name, at); err != nil {
			t.Fatal(err)
		}
		if err := s.NewSession(t.Context(), id+"-two", id, at); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// each runs a test on a store with agents ada and bob, on both engines.
func each(t *testing.T, test func(t *testing.T, db *sqldb.DB, s *sqlstore.Store)) {
	t.Parallel()
	sqldbtest.Each(t, sqlstore.Migrations(), func(t *testing.T, db *sqldb.DB) { test(t, db, stored(t, db)) })
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestTurnStore(t *testing.T) {
	t.Parallel()
	for _, engine := range []sqldb.Engine{sqldb.SQLite, sqldb.Postgres} {
		t.Run(string(engine), func(t *testing.T) {
			t.Parallel()
			enginetest.RunStore(t, func(t *testing.T) enginetest.Stores {
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

func TestApply(t *testing.T) {
	t.Parallel()
	sqldbtest.Each(t, sqlstore.Migrations(), func(t *testing.T, db *sqldb.DB) {
		s := sqlstore.New(db, "/data")
		first, err := s.Apply(t.Context(), definition("Ada"), "ada", "0xAD", "v1", at)
		must(t, err)
		want := api.Agent{
			ID: "ada", Name: "Ada", Description: "Counts.", Address: "0xAD", Creator: "0xCD", Model: "m",
			Tools: []string{"look", "put", "pay", "fire"}, State: api.StateSleeping, Reason: "just born",
			Session: "ada-main", Mail: "ada-mail", Version: 1, CreatedAt: at, UpdatedAt: at,
		}
		if diff := cmp.Diff(sqlstore.Applied{Agent: want, Changed: true}, first); diff != "" {
			t.Errorf("a new agent (-want +got):\n%s", diff)
		}
		again, err := s.Apply(t.Context(), definition("Ada"), "ada", "0xAD", "v1", at+1)
		must(t, err)
		if diff := cmp.Diff(sqlstore.Applied{Agent: want}, again); diff != "" {
			t.Errorf("the same text again (-want +got):\n%s", diff)
		}
		def := definition("ADA")
		def.Tools, def.Body = []string{"look"}, "Be kind."
		changed, err := s.Apply(t.Context(), def, "ada", "0xAD", "v2", at+2)
		must(t, err)
		want.Name, want.Tools, want.Version, want.UpdatedAt = "ADA", []string{"look"}, 2, at+2
		if diff := cmp.Diff(sqlstore.Applied{Agent: want, Changed: true}, changed); diff != "" {
			t.Errorf("another text (-want +got):\n%s", diff)
		}
		k, err := s.Known(t.Context(), enginetest.Command("ada", "r1"))
		must(t, err)
		wantAgent := engine.Agent{
			ID: "ada", Name: "ADA", Address: "0xAD", Creator: "0xCD", Description: "Counts.", Genesis: "Be kind.", Model: "m", Defined: "m",
			Tools: []string{"look"}, MaxTurns: 25, MaxCalls: 10, ExecTimeoutS: 30, RunTimeoutS: 600, Workspace: "/data/ada", State: api.StateSleeping,
		}
		if diff := cmp.Diff(wantAgent, k.Agent); diff != "" {
			t.Errorf("the known state of a run (-want +got):\n%s", diff)
		}
		// Each change is announced once, in the transaction that made it.
		type row struct{ id, subject, payload string }
		rows, err := sqldb.All(t.Context(), db, func(r sqldb.Scanner) (row, error) {
			var v row
			return v, r.Scan(&v.id, &v.subject, &v.payload)
		}, `select id, subject, payload from outbox order by seq`)
		must(t, err)
		if len(rows) != 2 || rows[0].id != fmt.Sprint("agent_state/ada/", at) || rows[1].id != fmt.Sprint("agent_state/ada/", at+1) {
			t.Fatalf("outbox: %+v", rows)
		}
		var c api.AgentChanged
		must(t, json.Unmarshal([]byte(rows[1].payload), &c))
		wantChange := api.AgentChanged{Agent: "ada", Name: "ADA", Address: "0xAD", State: api.StateSleeping, Reason: "just born", Seq: at + 1, At: at + 2}
		if diff := cmp.Diff(wantChange, c); diff != "" || rows[1].subject != wantChange.Subject().String() {
			t.Errorf("announced on %s (-want +got):\n%s", rows[1].subject, diff)
		}
	})
}

// TestApplyAtOnce tests that several concurrent requests, or copies of one, create an agent.
func TestApplyAtOnce(t *testing.T) {
	t.Parallel()
	sqldbtest.Each(t, sqlstore.Migrations(), func(t *testing.T, db *sqldb.DB) {
		s := sqlstore.New(db, "/data")
		const requests = 4
		for i := range 10 {
			id := fmt.Sprint("ada", i)
			var changed atomic.Int64
			var all sync.WaitGroup
			for range requests {
				all.Go(func() {
					v, err := s.Apply(t.Context(), definition(id), id, "0xAD", "v1", at)
					if err != nil || v.Agent.ID != id {
						t.Errorf("%s: got %+v, %v", id, v, err)
					}
					if v.Changed {
						changed.Add(1)
					}
				})
			}
			all.Wait()
			if n := changed.Load(); n != 1 {
				t.Errorf("%s was created by %d of %d requests, want one", id, n, requests)
			}
		}
	})
}

func TestAgents(t *testing.T) {
	each(t, func(t *testing.T, _ *sqldb.DB, s *sqlstore.Store) {
		all, err := s.Agents(t.Context(), "", 1000)
		must(t, err)
		if len(all) != 2 || all[0].ID != "ada" || all[1].ID != "bob" {
			t.Errorf("agents: %+v", all)
		}
		_, err = s.Agent(t.Context(), "nobody")
		wantNotFound(t, err)
		_, err = s.Session(t.Context(), "none")
		wantNotFound(t, err)
		_, err = s.Turn(t.Context(), "none")
		wantNotFound(t, err)
	})
}

func wantNotFound(t *testing.T, err error) {
	t.Helper()
	if api.CodeOf(err) != api.NotFound {
		t.Errorf("got %v, want not_found", err)
	}
}

func TestSums(t *testing.T) {
	each(t, func(t *testing.T, db *sqldb.DB, s *sqlstore.Store) {
		for _, run := range []string{"r1", "r2"} {
			cmd := enginetest.Command("ada", run)
			for n := 1; n <= 3; n++ {
				for range 2 { // the second call must not change anything
					must(t, s.Persist(t.Context(), enginetest.Record(cmd, n), enginetest.Input(cmd), nil))
				}
			}
		}
		got, err := s.Session(t.Context(), "ada-main")
		must(t, err)
		want := api.Session{
			ID: "ada-main", Agent: "ada", Messages: 2, Turns: 6, InputTokens: 600, OutputTokens: 60, Cost: 3660,
			CreatedAt: at, UpdatedAt: at + 3500,
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("session (-want +got):\n%s", diff)
		}
		a, err := s.Agent(t.Context(), "ada")
		must(t, err)
		if a.Turns != 6 {
			t.Errorf("the agent has %d turns, want 6", a.Turns)
		}
		var command string
		must(t, db.QueryRowContext(t.Context(), `select command from runs where id = 'r1'`).Scan(&command))
		var cmd api.Run
		must(t, json.Unmarshal([]byte(command), &cmd))
		if diff := cmp.Diff(enginetest.Command("ada", "r1"), cmd); diff != "" {
			t.Errorf("stored command (-want +got):\n%s", diff)
		}
	})
}

func TestTurns(t *testing.T) {
	each(t, func(t *testing.T, _ *sqldb.DB, s *sqlstore.Store) {
		for i, cmd := range []api.Run{
			{Run: "a1", Agent: "ada", Session: "ada-main", Content: "x"},
			{Run: "a2", Agent: "ada", Session: "ada-two", Content: "x"},
			{Run: "b1", Agent: "bob", Session: "bob-main", Content: "x"},
		} {
			for n := 1; n <= 2; n++ {
				rec := enginetest.Record(cmd, n)
				rec.Turn.StartedAt += int64(i) * 1_000_000
				must(t, s.Persist(t.Context(), rec, enginetest.Input(cmd), nil))
			}
		}
		for _, tt := range []struct {
			q    api.ListTurns
			want string
		}{
			{api.ListTurns{Limit: 50}, "b1.2 b1.1 a2.2 a2.1 a1.2 a1.1"},
			{api.ListTurns{Limit: 3}, "b1.2 b1.1 a2.2"},
			{api.ListTurns{Agent: "ada", Limit: 50}, "a2.2 a2.1 a1.2 a1.1"},
			{api.ListTurns{Session: "ada-two", Limit: 50}, "a2.2 a2.1"},
			{api.ListTurns{Run: "a1", Limit: 1}, "a1.2"},
			{api.ListTurns{Agent: "bob", Session: "ada-two", Limit: 50}, ""},
			{api.ListTurns{Agent: "' or 1=1 --", Limit: 50}, ""},
		} {
			got, err := s.Turns(t.Context(), tt.q)
			must(t, err)
			var ids []string
			for _, turn := range got {
				ids = append(ids, turn.ID)
				if len(turn.Calls) != 2 {
					t.Errorf("%s has %d calls, want 2", turn.ID, len(turn.Calls))
				}
			}
			if strings.Join(ids, " ") != tt.want {
				t.Errorf("%+v: got %v, want %s", tt.q, ids, tt.want)
			}
		}
		one, err := s.Turn(t.Context(), "a1.2")
		must(t, err)
		want := enginetest.Record(api.Run{Run: "a1", Agent: "ada", Session: "ada-main"}, 2).Turn
		if diff := cmp.Diff(want, one); diff != "" {
			t.Errorf("turn (-want +got):\n%s", diff)
		}
	})
}

// TestNoText checks that text which a text column cannot store is stored with
// replacements, on both engines alike.
func TestNoText(t *testing.T) {
	each(t, func(t *testing.T, _ *sqldb.DB, s *sqlstore.Store) {
		cmd := enginetest.Command("ada", "r1")
		cmd.Content = "do\x00it"
		rec := enginetest.Record(cmd, 1)
		rec.Turn.Thinking = "a\xffb"
		c := &rec.Turn.Calls[0]
		c.ID, c.Tool, c.Arguments, c.Result, c.Error = "i\x00", "t\x00", []byte("\"\xff\""), "\x00\x01", "\xc3"
		end := enginetest.End(cmd, 1)
		end.Response, end.Why = "a\x00\xffb", "w\x00"
		wake := cmd
		wake.Kind = api.RunWake
		started, err := s.Started(t.Context(), wake, enginetest.Input(wake), api.TierHigh, at)
		must(t, err)
		must(t, s.Persist(t.Context(), rec, enginetest.Input(cmd), end))
		if started[0].Reason != "woken: do\uFFFDit" || end.Changed.Reason != "w\uFFFD" {
			t.Errorf("the agent runs for %q and sleeps for %q", started[0].Reason, end.Changed.Reason)
		}
		got, err := s.Turn(t.Context(), "r1.1")
		must(t, err)
		want := api.CallState{
			ID: "i\uFFFD", Tool: "t\uFFFD", Arguments: []byte("\"\uFFFD\""), Decision: "d1", Action: api.Allow,
			Outcome: api.OutcomeOK, Result: "\uFFFD\x01", Error: "\uFFFD", DurationMS: 3,
		}
		if diff := cmp.Diff(want, got.Calls[0]); diff != "" || got.Input != "do\uFFFDit" || got.Thinking != "a\uFFFDb" {
			t.Errorf("got %q, %q (-want +got):\n%s", got.Input, got.Thinking, diff)
		}
	})
}

func TestSessions(t *testing.T) {
	each(t, func(t *testing.T, _ *sqldb.DB, s *sqlstore.Store) {
		cmd := enginetest.Command("ada", "r1")
		must(t, s.Persist(t.Context(), enginetest.Record(cmd, 1), enginetest.Input(cmd), nil))
		must(t, s.NewSession(t.Context(), "ada-main", "ada", at+9)) // exists already
		for agent, want := range map[string]string{"ada": "ada-main ada-two", "": "ada-main ada-two bob-main bob-two", "nobody": ""} {
			all, err := s.Sessions(t.Context(), agent, sqlstore.Place{}, 1000)
			must(t, err)
			var ids []string
			for _, v := range all {
				ids = append(ids, v.ID)
			}
			if strings.Join(ids, " ") != want || all == nil {
				t.Errorf("sessions of %q: %v, want %s", agent, ids, want)
			}
		}
	})
}

// TestManySessions ends runs of several sessions of one agent concurrently.
func TestManySessions(t *testing.T) {
	each(t, func(t *testing.T, _ *sqldb.DB, s *sqlstore.Store) {
		const sessions, runs = 8, 3
		var wg sync.WaitGroup
		var mu sync.Mutex
		seqs := map[int64]bool{}
		for i := range sessions {
			wg.Go(func() {
				session := fmt.Sprintf("ada-%d", i)
				if err := s.NewSession(t.Context(), session, "ada", at); err != nil {
					t.Error(err)
					return
				}
				for r := range runs {
					cmd := enginetest.Command("ada", fmt.Sprintf("r%d-%d", i, r))
					cmd.Session = session
					changes, err := s.Started(t.Context(), cmd, enginetest.Input(cmd), api.TierHigh, at)
					end := enginetest.End(cmd, 2)
					for n := 1; n <= 2 && err == nil; n++ {
						var last *engine.End
						if n == 2 {
							last = end
						}
						err = s.Persist(t.Context(), enginetest.Record(cmd, n), enginetest.Input(cmd), last)
					}
					if err != nil {
						t.Errorf("%s: %v", cmd.Run, err)
						return
					}
					mu.Lock()
					if end.Changed != nil {
						changes = append(changes, *end.Changed)
					}
					for _, c := range changes {
						if seqs[c.Seq] {
							t.Errorf("two changes have the number %d", c.Seq)
						}
						seqs[c.Seq] = true
					}
					mu.Unlock()
				}
			})
		}
		wg.Wait()
		a, err := s.Agent(t.Context(), "ada")
		must(t, err)
		if a.Turns != sessions*runs*2 {
			t.Errorf("the agent has %d turns, want %d", a.Turns, sessions*runs*2)
		}
		for i := range sessions {
			v, err := s.Session(t.Context(), fmt.Sprintf("ada-%d", i))
			must(t, err)
			if v.Turns != 2*runs || v.Messages != runs || v.Cost != 2*runs*610 {
				t.Errorf("session %d: %+v", i, v)
			}
		}
	})
}

// TestTranscriptIsImportable tests that the repair of an exported transcript removes
// nothing, whatever calls a model has made and whichever owners a turn had.
func TestTranscriptIsImportable(t *testing.T) {
	each(t, func(t *testing.T, _ *sqldb.DB, s *sqlstore.Store) {
		cmd := enginetest.Command("ada", "r1")
		rec := enginetest.Record(cmd, 1)
		rec.Turn.Calls = nil
		for i := range 256 {
			c := api.CallState{Index: i, ID: fmt.Sprint("c", i), Tool: "look", Arguments: json.RawMessage(`{}`), Outcome: api.OutcomeError, Error: "not run"}
			switch i {
			case 3, 4:
				c.ID = ""
			case 5:
				c.ID, c.Tool = "call_3", ""
			}
			rec.Turn.Calls = append(rec.Turn.Calls, c)
		}
		rec.Turn.EndedAt = rec.Turn.StartedAt - 5_000
		must(t, s.Persist(t.Context(), rec, enginetest.Input(cmd), enginetest.End(cmd, 1)))
		page, err := s.Transcript(t.Context(), cmd.Session, 0, 500)
		must(t, err)
		var lines []string
		for _, l := range page.Lines {
			data, err := api.Encode(l)
			must(t, err)
			lines = append(lines, string(data))
		}
		got := transcript.Repair(lines, 1, 0)
		if len(got.Cuts) > 0 || got.Kept != len(lines) || len(lines) < 257 {
			t.Errorf("of %d lines %d are kept, and %d are cut, as %+v", len(lines), got.Kept, len(got.Cuts), got.Cuts[:min(len(got.Cuts), 3)])
		}
	})
}

func TestTranscript(t *testing.T) {
	each(t, func(t *testing.T, _ *sqldb.DB, s *sqlstore.Store) {
		cmd := enginetest.Command("ada", "r1")
		for n := 1; n <= 3; n++ {
			must(t, s.Persist(t.Context(), enginetest.Record(cmd, n), enginetest.Input(cmd), nil))
		}
		next := enginetest.Command("ada", "r2")
		failed := enginetest.Record(next, 1)
		failed.Turn.Thinking, failed.Turn.Calls = "", []api.CallState{}
		must(t, s.Persist(t.Context(), failed, enginetest.Input(next), nil))
		all, err := s.Transcript(t.Context(), "ada-main", 0, 500)
		must(t, err)
		var got []string
		for _, l := range all.Lines {
			got = append(got, fmt.Sprintf("%d %s %s %s %d %s", l.Seq, l.Turn, l.Role, l.Content, len(l.ToolCalls), l.ToolCallID))
			if at, err := time.Parse("2006-01-02T15:04:05.000Z", l.Timestamp); err != nil || at.UnixMicro()/1e6 != enginetest.Start/1e6 {
				t.Errorf("line %d is of %q", l.Seq, l.Timestamp)
			}
		}
		want := []string{
			"1001 r1.1 user do it 0 ", "1002 r1.1 assistant thought 1 2 ", "1003 r1.1 tool seen 0 call_0", "1004 r1.1 tool not run 0 call_0",
			"2001 r1.2 assistant thought 2 2 ", "2002 r1.2 tool seen 0 call_0", "2003 r1.2 tool not run 0 call_0",
			"3001 r1.3 assistant thought 3 2 ", "3002 r1.3 tool seen 0 call_0", "3003 r1.3 tool not run 0 call_0",
			"4001 r2.1 user do it 0 ",
		}
		if diff := cmp.Diff(want, got); diff != "" || all.More {
			t.Errorf("more: %t (-want +got):\n%s", all.More, diff)
		}
		// Pages of any size join to the same list.
		for limit := 1; limit <= len(want)+1; limit++ {
			var lines []api.TranscriptLine
			page := api.Transcript{More: true}
			for after := int64(0); page.More; {
				if page, err = s.Transcript(t.Context(), "ada-main", after, limit); err != nil {
					t.Fatal(err)
				}
				if n := len(page.Lines); n == 0 || n > limit || page.Lines[n-1].Seq <= after {
					t.Fatalf("a page of %d lines after %d, at most %d were asked for", n, after, limit)
				}
				lines = append(lines, page.Lines...)
				after = page.Lines[len(page.Lines)-1].Seq
			}
			if diff := cmp.Diff(all.Lines, lines); diff != "" {
				t.Errorf("in pages of %d (-want +got):\n%s", limit, diff)
			}
		}
		end, err := s.Transcript(t.Context(), "ada-main", 4001, 10)
		if err != nil || end.Lines == nil || len(end.Lines) != 0 || end.More {
			t.Errorf("after the end: %+v, %v", end, err)
		}
	})
}

// TestTranscriptPages tests that no page ends a transcript too early, whatever number of
// lines its turns have, and that a page is bounded by its bytes.
func TestTranscriptPages(t *testing.T) {
	each(t, func(t *testing.T, _ *sqldb.DB, s *sqlstore.Store) {
		const turns = 12
		for _, c := range []struct {
			session string
			input   func(n int) string // of a turn; "": the turn has no line
		}{
			{"ada-main", strconv.Itoa},
			{"ada-two", func(n int) string {
				if n%6 != 1 {
					return ""
				}
				return strconv.Itoa(n)
			}},
			{"bob-main", func(int) string { return strings.Repeat("x", 300_000) }},
		} {
			agent, _, _ := strings.Cut(c.session, "-")
			cmd := enginetest.Command(agent, c.session)
			cmd.Session = c.session
			var want []string
			for n := 1; n <= turns; n++ {
				rec := enginetest.Record(cmd, n)
				rec.Turn.Input, rec.Turn.Thinking, rec.Turn.Calls = c.input(n), "", nil
				must(t, s.Persist(t.Context(), rec, enginetest.Input(cmd), nil))
				if rec.Turn.Input != "" {
					want = append(want, rec.Turn.ID)
				}
			}
			for limit := 1; limit <= turns+1; limit++ {
				var got []string
				page := api.Transcript{More: true}
				for after := int64(0); page.More; {
					var err error
					page, err = s.Transcript(t.Context(), c.session, after, limit)
					must(t, err)
					size := 0
					for _, l := range page.Lines {
						size += len(l.Content)
						got, after = append(got, l.Turn), l.Seq
					}
					if n := len(page.Lines); n == 0 || n > limit || size > 700<<10 {
						t.Fatalf("%s: a page of %d lines and %d bytes, want at least one, at most %d, and 700 KiB", c.session, n, size, limit)
					}
				}
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("%s in pages of %d (-want +got):\n%s", c.session, limit, diff)
				}
			}
		}
	})
}

// TestGenesis checks that an agent's own genesis prompt is used until its creator applies
// another definition, and that previous prompts are stored.
func TestGenesis(t *testing.T) {
	t.Parallel()
	sqldbtest.Each(t, sqlstore.Migrations(), func(t *testing.T, db *sqldb.DB) {
		s := sqlstore.New(db, t.TempDir())
		ctx := t.Context()
		apply := func(source string) {
			t.Helper()
			if _, err := s.Apply(ctx, agent.Definition{Name: "Ada", Body: "Be useful."}, "ada", "0x1", source, 1); err != nil {
				t.Fatal(err)
			}
		}
		want := func(prompt string) {
			t.Helper()
			k, err := s.Known(ctx, api.Run{Run: "r", Agent: "ada", Session: "ada-main"})
			if err != nil || k.Agent.Genesis != prompt {
				t.Errorf("got %q, %v, want %q", k.Agent.Genesis, err, prompt)
			}
		}
		set := func(prompt, key string) {
			t.Helper()
			if err := s.SetGenesis(ctx, "ada", prompt, "why", key, 5); err != nil {
				t.Fatal(err)
			}
		}
		apply("one")
		want("Be useful.")
		set("Be kind.", "k1")
		want("Be kind.")
		set("Be kind again.", "k1") // the same call again
		want("Be kind.")
		set("Be brave.", "k2")
		want("Be brave.")
		apply("one") // the definition is unchanged
		want("Be brave.")
		apply("two")
		want("Be useful.")
		set("Be yourself.", "k3")
		want("Be yourself.")
		kept, err := sqldb.All(ctx, db, func(r sqldb.Scanner) (string, error) {
			var prompt, previous string
			err := r.Scan(&prompt, &previous)
			return previous + " > " + prompt, err
		}, `select prompt, previous from genesis_prompts where agent = $1 order by number`, "ada")
		if diff := cmp.Diff([]string{"Be useful. > Be kind.", "Be kind. > Be brave.", "Be useful. > Be yourself."}, kept); err != nil || diff != "" {
			t.Errorf("kept: %v (-want +got):\n%s", err, diff)
		}
		if err := s.SetGenesis(ctx, "nobody", "x", "y", "k", 5); err == nil {
			t.Error("a prompt for an agent that is not there")
		}
	})
}

package sqlstore_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/anima-run/anima/pkg/api"

	"github.com/anima-run/anima/services/loop/internal/engine/enginetest"
	"github.com/anima-run/anima/services/loop/internal/memory"
	"github.com/anima-run/anima/services/loop/internal/sqlstore"
)

// brings persists a run in which a tool returned a text, and ingests it by concurrent
// calls.
func brings(t *testing.T, s sqlstore.Memory, run, tool, text string, ended int64) {
	t.Helper()
	cmd := enginetest.Command("ada", run)
	turns(t, s, cmd, 1, func(t *api.Turn) {
		t.Calls = t.Calls[:1]
		t.Calls[0].Tool, t.Calls[0].Result, t.EndedAt = tool, text, ended
	})
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			if _, err := s.Ingest(t.Context(), ended, cmd.Session); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

func TestKnowledge(t *testing.T) {
	remembering(t, func(t *testing.T, s sqlstore.Memory) {
		brings(t, s, "r1", "mcp_web_search", "Acme: $5 a month\nInitech has many users", at)
		brings(t, s, "r2", "mcp_web_search", "Acme: $7 a month", at+day)
		// A fact of the agent's creator is not replaced by a web page.
		remember(t, s, memory.Fact{Category: "market", Key: "demand:initech", Value: "they are three", Confidence: 0.6, By: creator, At: at + 2*day})
		brings(t, s, "r3", "mcp_web_search", "Initech has more users", at+3*day)
		want := []memory.Entry{
			{ID: "market/demand:initech", Kind: "market", Title: "demand:initech", Text: "they are three", Weight: 0.6, Count: 3, By: creator, At: at + 2*day},
			{
				ID: "financial/pricing:acme", Kind: "financial", Title: "pricing:acme", Text: "Acme: $7 a month", Extra: "tool:mcp_web_search", Weight: 0.64, Count: 2,
				By: outside, At: at + day,
			},
		}
		got := latest(t, s, memory.Semantic, at+3*day)
		if diff := cmp.Diff(want, got, cmpopts.IgnoreFields(memory.Entry{}, "Tier", "Doc"), cmpopts.SortSlices(func(a, b memory.Entry) bool { return a.Text > b.Text })); diff != "" {
			t.Errorf("facts (-want +got):\n%s", diff)
		}
		history, err := s.FactHistory(t.Context(), "ada", 10)
		must(t, err)
		var was []string
		for _, e := range history {
			was = append(was, fmt.Sprintf("%s %s %d by %s", e.Text, e.Outcome, e.Ended, e.By.Kind))
		}
		wantWas := []string{
			fmt.Sprintf("Initech has more users refused %d by external", at+3*day),
			fmt.Sprintf("Initech has many users superseded %d by external", at+2*day),
			fmt.Sprintf("Acme: $5 a month superseded %d by external", at+day),
		}
		if diff := cmp.Diff(wantWas, was); diff != "" {
			t.Errorf("history (-want +got):\n%s", diff)
		}
		m := &memory.Memory{Store: s, Now: func() time.Time { return time.UnixMicro(at + 3*day) }}
		text, err := m.Recall(t.Context(), "ada", "ada-main", "what does Acme charge?", 10_000)
		must(t, err)
		if line := `- financial/pricing:acme: "Acme: $7 a month" (confidence 0.64, 2 days ago) [outside]`; !strings.Contains(text, line+"\n") {
			t.Errorf("got %s\nwant the line %s", text, line)
		}
	})
}

// TestKnowledgeExpires checks that a fact of low confidence expires after 30 days unless
// it is observed again, and that a fact of high confidence does not expire.
func TestKnowledgeExpires(t *testing.T) {
	remembering(t, func(t *testing.T, s sqlstore.Memory) {
		brings(t, s, "r1", "mcp_web_search", "Acme: $5 a month\nInitech: $6\nHooli: $8, seen today", at)
		brings(t, s, "r2", "mcp_web_search", "Initech: $6", at+10*day)
		brings(t, s, "r3", "mcp_web_search", "Hooli: $8, seen today\nnothing else", at+10*day+second)
		values := func(now int64) (out []string) {
			for _, e := range latest(t, s, memory.Semantic, now) {
				out = append(out, e.Text)
			}
			return out
		}
		for _, c := range []struct {
			now  int64
			want []string
		}{
			{at + 30*day - second, []string{"Hooli: $8, seen today", "Initech: $6", "Acme: $5 a month"}},
			{at + 30*day, []string{"Hooli: $8, seen today", "Initech: $6"}},
			{at + 40*day, []string{"Hooli: $8, seen today"}},
		} {
			less := cmpopts.SortSlices(func(a, b string) bool { return a < b })
			if diff := cmp.Diff(c.want, values(c.now), less); diff != "" {
				t.Errorf("after %d days (-want +got):\n%s", (c.now-at)/day, diff)
			}
		}
		// The ingestion of the next turn deletes them.
		brings(t, s, "r4", "look", "seen", at+41*day)
		history, err := s.FactHistory(t.Context(), "ada", 10)
		must(t, err)
		var was []string
		for _, e := range history {
			was = append(was, e.Title+" "+e.Outcome)
		}
		if diff := cmp.Diff([]string{"pricing:acme expired", "pricing:initech expired"}, was); diff != "" {
			t.Errorf("history (-want +got):\n%s", diff)
		}
		if got := search(t, s, "ada", memory.Semantic, "initech", "hooli"); len(got) != 1 {
			t.Errorf("found %q, want what has not expired", got)
		}
	})
}

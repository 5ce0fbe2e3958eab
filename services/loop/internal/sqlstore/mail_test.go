package sqlstore_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/sqldb"

	"github.com/anima-run/anima/services/loop/internal/engine/enginetest"
	"github.com/anima-run/anima/services/loop/internal/sqlstore"
)

const (
	alice = "0xfB6916095ca1df60bB79Ce92cE3Ea74c37c5d359"
	bobby = "0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed"
)

func mail(run, from string) api.Run {
	cmd := enginetest.Command("ada", run)
	cmd.Kind, cmd.By, cmd.Session = api.RunMail, api.Principal{Kind: api.Peer, Address: from}, "ada-mail"
	return cmd
}

// TestMailBudget checks that the runs and costs that mail may cause within a day are
// bounded for each sender and each agent, and that further mail is held until the oldest
// counted run is a day old.
func TestMailBudget(t *testing.T) {
	each(t, func(t *testing.T, _ *sqldb.DB, s *sqlstore.Store) {
		ctx, day := t.Context(), sqlstore.MailDay.Microseconds()
		b := sqlstore.MailBudget{SenderRuns: 2, AgentRuns: 3, SenderCost: 1000, AgentCost: 5000}
		must(t, s.NewSession(ctx, "ada-mail", "ada", at))
		over := func(cmd api.Run, cost api.Micros) {
			t.Helper()
			rec := enginetest.Record(cmd, 1)
			rec.Turn.Cost = cost
			end := enginetest.End(cmd, 1)
			must(t, s.Persist(ctx, rec, enginetest.Input(cmd), end))
		}
		check := func(cmd api.Run, now int64, cost api.Micros, until int64) {
			t.Helper()
			got, err := s.AdmitMail(ctx, cmd, b, now)
			if err != nil || got.Cost != cost || got.Until != until || (got.Why == "") != (until == 0) {
				t.Errorf("%s: %+v, %v, want a cost of %d or a hold until %d", cmd.Run, got, err, cost, until)
			}
		}
		first := mail("m1", alice)
		check(first, at, 1000, 0)
		check(first, at+5, 1000, 0)                // a repeated call returns the same reservation
		check(mail("m2", alice), at+10, 0, at+day) // everything is reserved
		over(first, 400)
		check(mail("m2", alice), at+10, 600, 0)
		over(mail("m2", alice), 100)
		check(mail("m3", alice), at+20, 0, at+day) // two runs of the sender
		check(mail("m4", bobby), at+20, 1000, 0)
		over(mail("m4", bobby), 1)
		check(mail("m5", bobby), at+30, 0, at+day) // three runs of all senders
		held, err := s.HeldMail(ctx, "ada")
		if err != nil || len(held) != 2 || held[0].Until != at+day {
			t.Errorf("held: %+v, %v", held, err)
		}
		for _, h := range held {
			must(t, s.FreeMail(ctx, h))
		}
		check(mail("m3", alice), at+day+1, 900, 0) // the first run is older than a day
		if run, err := s.LastMailRun(ctx, "ada", alice); err != nil || run != "m3" {
			t.Errorf("the last run is %s, %v", run, err)
		}
		over(mail("m3", alice), 950) // one completion more than was reserved
		check(mail("m6", alice), at+day+2, 0, at+10+day)
		if held, err = s.HeldMail(ctx, "ada"); err != nil || len(held) != 1 {
			t.Errorf("held: %+v, %v", held, err)
		}
		free := sqlstore.MailBudget{SenderRuns: 100, AgentRuns: 100}
		got, err := s.AdmitMail(ctx, mail("m7", alice), free, at+day+3)
		if err != nil || got != (sqlstore.MailRun{}) {
			t.Errorf("without bounds: %+v, %v", got, err)
		}
		_, err = s.AdmitMail(ctx, api.Run{Run: "x", Agent: "nobody"}, b, at)
		wantCode(t, err, api.NotFound)
	})
}

// TestDueMail checks that mail is due at its time, except that of dead or deleted agents.
func TestDueMail(t *testing.T) {
	each(t, func(t *testing.T, _ *sqldb.DB, s *sqlstore.Store) {
		ctx := t.Context()
		due := func(want ...sqlstore.HeldMail) {
			t.Helper()
			got, err := s.DueMail(ctx, at+10)
			if err != nil || !slices.Equal(got, want) {
				t.Errorf("due: got %+v, %v, want %+v", got, err, want)
			}
		}
		state := func(to api.AgentState) {
			t.Helper()
			_, err := s.SetState(ctx, "ada", to, "why", true, 0, at)
			must(t, err)
		}
		must(t, s.HoldMail(ctx, "ada", alice, at+7))
		must(t, s.HoldMail(ctx, "ada", alice, at+10))
		must(t, s.HoldMail(ctx, "ada", alice, at+5)) // held for longer already
		must(t, s.HoldMail(ctx, "ada", bobby, at+11))
		must(t, s.HoldMail(ctx, "bob", alice, at+9))
		ada := sqlstore.HeldMail{Agent: "ada", Sender: strings.ToLower(alice), Until: at + 10}
		bob := sqlstore.HeldMail{Agent: "bob", Sender: strings.ToLower(alice), Until: at + 9}
		due(bob, ada)
		state(api.StateDead)
		due(bob)
		state(api.StateSleeping)
		_, err := s.Delete(ctx, "bob", "why", false, at)
		must(t, err)
		due(ada)
		must(t, s.FreeMail(ctx, ada))
		due()
	})
}

// TestReset checks that the prompts of a session after a reset have no turn or summary
// from before it, also in a replay.
func TestReset(t *testing.T) {
	each(t, func(t *testing.T, _ *sqldb.DB, s *sqlstore.Store) {
		ctx := t.Context()
		for n := range 4 {
			cmd := enginetest.Command("ada", fmt.Sprint("r", n))
			must(t, s.Persist(ctx, enginetest.Record(cmd, 1), enginetest.Input(cmd), enginetest.End(cmd, 1)))
			if n != 2 {
				continue
			}
			got, err := s.Reset(ctx, "ada-main")
			if err != nil || got.Reset != 3 || got.Turns != 3 {
				t.Errorf("reset: %+v, %v", got, err)
			}
		}
		c, err := s.Conversation(ctx, "ada-main", "next.1", 100)
		if err != nil || c.Last.Through != 3 || c.Last.Summary != "" || len(c.Turns) != 1 || c.Turns[0].Position != 4 {
			t.Errorf("the conversation is %+v, %v", c, err)
		}
		k, err := s.Known(ctx, enginetest.Command("ada", "next"))
		if err != nil || k.Reset != 3 {
			t.Errorf("known: %+v, %v", k, err)
		}
		lines, err := s.Transcript(ctx, "ada-main", 0, 100)
		if err != nil || len(lines.Lines) < 4 {
			t.Errorf("the transcript has %d lines, %v", len(lines.Lines), err)
		}
		_, err = s.Reset(ctx, "none")
		wantCode(t, err, api.NotFound)
	})
}

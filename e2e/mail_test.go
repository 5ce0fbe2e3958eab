package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"
)

// TestMail checks that a message of an unknown sender starts a run with the sender's
// authority in a separate session, within a budget of runs. Messages beyond the budget
// stay in the inbox, and runs of the creator keep the creator's authority.
func TestMail(t *testing.T) {
	t.Parallel()
	w := oneProcess(t, map[string]string{"ANIMA_LOOP_MAIL_SENDER_RUNS": "2"})
	a, b, c := born(t, w, "Stranger", api.Dollar), born(t, w, "Reader", api.Dollar), born(t, w, "Neighbour", api.Dollar)
	said := 0
	tell := func(from api.Agent) {
		t.Helper()
		said++
		if end := send(t, w, from.ID, fmt.Sprintf("tell %s news %d", b.Address, said)); !end.Success {
			t.Fatalf("sender: %+v", end)
		}
	}
	mails := func(n int) []api.LoopEnd {
		t.Helper()
		var ends []api.LoopEnd
		await(t, w, api.LoopEnd{Session: b.Mail}, func(e api.LoopEnd) bool {
			ends = append(ends, e)
			return len(ends) == n
		})
		return ends
	}
	tell(a)
	if end := mails(1)[0]; !end.Success || end.Response != "peer "+a.Address+" wrote to me" {
		t.Errorf("mail: %+v", end)
	}
	if end := send(t, w, b.ID, "recall"); !end.Success {
		t.Errorf("the creator's run: %+v", end)
	} else if turn := turnsOf(t, w, end.Run)[0]; turn.By.Kind != api.Creator || strings.Contains(turn.Input, "news") || turn.Session != b.Session {
		t.Errorf("the creator's turn has the input %q by %+v in %s", turn.Input, turn.By, turn.Session)
	}
	tell(a)
	mails(2)
	tell(a)
	over := mails(3)[2]
	why := await(t, w, api.LoopError{Session: b.Mail}, func(e api.LoopError) bool { return e.Run == over.Run })
	if over.Success || over.Outcome != api.OutcomeDropped || over.Turns != 0 || why.Reason != api.ReasonLimit || !strings.Contains(why.Error, "stays in the inbox until") {
		t.Errorf("over the budget: %+v, %+v", over, why)
	}
	tell(c) // each sender has its own budget
	if end := mails(4)[3]; !end.Success || end.Response != "peer "+c.Address+" wrote to me" {
		t.Errorf("mail of another: %+v", end)
	}
	inbox := call[api.Inbox](t, w, api.ListInbox{Agent: b.ID, Status: "received"}).Messages
	if len(inbox) != 1 || inbox[0].Content != "news 3" {
		t.Errorf("the inbox has %+v, want the message over the budget", inbox)
	}
	turns := call[api.Turns](t, w, api.ListTurns{Session: b.Mail}).Turns
	senders := map[string]int{}
	for _, turn := range turns {
		senders[turn.By.Address]++
		if turn.By.Kind != api.Peer {
			t.Errorf("a turn of mail by %+v", turn.By)
		}
		if got, err := bus.Call[api.Replayed](t.Context(), w.bus, api.ReplayTurn{Turn: turn.ID}); err != nil || !got.Same {
			t.Errorf("replay of %s: %+v, %v", turn.ID, got.Difference, err)
		}
	}
	if senders[a.Address] != 2 || senders[c.Address] != 1 {
		t.Errorf("turns of mail by sender: %v", senders)
	}
	if all := call[api.Sessions](t, w, api.ListSessions{Agent: b.ID}).Sessions; !slices.ContainsFunc(all, func(s api.Session) bool { return s.ID == b.Mail }) {
		t.Errorf("sessions: %+v", all)
	}
}

// TestSessionReset checks that after a reset the model does not get earlier messages of
// the session.
func TestSessionReset(t *testing.T) {
	t.Parallel()
	w := oneProcess(t, nil)
	a := born(t, w, "Forgetful", api.Dollar)
	// Longer than the memories of the turns, which may be in the prompts or not yet.
	opening := "recall the first" + strings.Repeat(" and the ones before it", 200)
	first := send(t, w, a.ID, opening)
	long := turnsOf(t, w, send(t, w, a.ID, "recall the second").Run)[0]
	if s := call[api.Session](t, w, api.ResetSession{Session: a.Session}); s.Reset != 2 {
		t.Errorf("reset: %+v", s)
	}
	end := send(t, w, a.ID, "recall the third")
	short := turnsOf(t, w, end.Run)[0]
	if !end.Success || short.InputTokens >= long.InputTokens-500 {
		t.Errorf("the prompt after the reset has %d tokens, the one before %d, want at least 500 fewer", short.InputTokens, long.InputTokens)
	}
	lines := call[api.Transcript](t, w, api.GetTranscript{Session: a.Session}).Lines
	if len(lines) != 6 || lines[0].Content != opening || !strings.HasPrefix(lines[0].Turn, first.Run) {
		t.Errorf("the transcript is %+v", lines)
	}
	if got, err := bus.Call[api.Replayed](t.Context(), w.bus, api.ReplayTurn{Turn: short.ID}); err != nil || !got.Same {
		t.Errorf("replay: %+v, %v", got.Difference, err)
	}
	refused[api.Session](t, w, api.ResetSession{Session: "none"}, api.NotFound)
}

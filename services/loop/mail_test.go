package loop

import (
	"context"
	"crypto/sha256"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/trace/noop"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/apptest"
	"github.com/anima-run/anima/pkg/bus"
	"github.com/anima-run/anima/pkg/sqldb/sqldbtest"

	"github.com/anima-run/anima/services/loop/internal/agent"
	"github.com/anima-run/anima/services/loop/internal/engine"
	"github.com/anima-run/anima/services/loop/internal/session"
	"github.com/anima-run/anima/services/loop/internal/sqlstore"
)

const (
	alice = "0xfB6916095ca1df60bB79Ce92cE3Ea74c37c5d359"
	bobby = "0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed"
)

// mailbox has the senders of the messages in an inbox, the latest first.
type mailbox []string

func (m *mailbox) list(_ context.Context, q api.ListInbox) (api.Inbox, error) {
	var all []api.InboxMessage
	for i, from := range *m {
		if q.From == "" || q.From == from {
			all = append(all, api.InboxMessage{ID: strconv.Itoa(i), From: from})
		}
	}
	if q.After != "" {
		all = all[slices.IndexFunc(all, func(m api.InboxMessage) bool { return m.ID == q.After })+1:]
	}
	all, page := api.CutPage(all, q.Limit, func(m api.InboxMessage) string { return m.ID })
	return api.Inbox{Messages: all, Page: page}, nil
}

// post returns handlers with the dependencies of mail, the agents ada and bob, and an
// inbox.
func post(t *testing.T, inbox *mailbox) *handlers {
	t.Helper()
	server := apptest.Server(t)
	b := apptest.Start(t, apptest.Options{Server: server}).Bus
	social, err := bus.New(apptest.Dial(t, server), bus.Options{Service: "social", Log: apptest.Log(t)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(social.Close)
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	ready, done := make(chan struct{}), make(chan error, 1)
	go func() {
		done <- social.Serve(ctx, time.Second, func() { close(ready) }, bus.Reply(inbox.list), bus.Reply(func(_ context.Context, m api.GetBalance) (api.Balance, error) {
			return api.Balance{Agent: m.Agent, Available: api.Dollar, Tier: api.TierNormal}, nil
		}))
	}()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	select {
	case <-ready:
	case err := <-done:
		t.Fatal(err)
	}
	wakes, err := bus.OpenBucket[api.Wake](t.Context(), b)
	if err != nil {
		t.Fatal(err)
	}
	store := sqlstore.New(sqldbtest.SQLite(t, sqlstore.Migrations()), t.TempDir())
	for _, id := range []string{"ada", "bob"} {
		def := agent.Definition{Name: id, Tools: []string{"sleep"}, Body: "Be useful."}
		if _, err := store.Apply(t.Context(), def, id, "0x1", "source", time.Now().UnixMicro()); err != nil {
			t.Fatal(err)
		}
	}
	locks, err := bus.OpenBucket[api.Lock](t.Context(), b)
	if err != nil {
		t.Fatal(err)
	}
	return &handlers{
		locks: session.NewLocks(locks, session.Journal{Bus: b}, "this", time.Hour, time.Now, apptest.Log(t)),
		cfg:   Config{MailSenderRuns: 20, MailAgentRuns: 100}, bus: b, log: apptest.Log(t), now: time.Now, store: store, wakes: wakes,
		clients: newClients(b, time.Now), queue: session.NewQueue(b, apptest.Log(t)), engine: &engine.Engine{Store: store, Tracer: noop.NewTracerProvider().Tracer("")},
	}
}

// senders returns the senders of the runs queued in an agent's mail session.
func senders(t *testing.T, h *handlers, agent string) []string {
	t.Helper()
	all, err := h.queue.All(t.Context(), sqlstore.MailSession(agent))
	if err != nil {
		t.Fatal(err)
	}
	var from []string
	for _, cmd := range all {
		from = append(from, cmd.By.Address)
	}
	return from
}

func mailRun(run, agent, from string) api.Run {
	return api.Run{
		Run: run, Agent: agent, Session: sqlstore.MailSession(agent), Kind: api.RunMail, By: api.Principal{Kind: api.Peer, Address: from}, AcceptedAt: time.Now().UnixMicro(),
	}
}

// TestMailOfADeadAgent tests that the mail of a dead agent remains unread in the inbox,
// and starts a run once the agent is funded, without another message.
func TestMailOfADeadAgent(t *testing.T) {
	t.Parallel()
	inbox := &mailbox{alice}
	h := post(t, inbox)
	ctx := t.Context()
	state := func(to api.AgentState) {
		t.Helper()
		if c, err := h.store.SetState(ctx, "ada", to, "its money", true, 0, time.Now().UnixMicro()); err != nil || c == nil {
			t.Fatalf("the agent is not %s: %v", to, err)
		}
	}
	free := func(want ...string) {
		t.Helper()
		if err := h.freeMail(ctx); err != nil {
			t.Fatal(err)
		}
		if got := senders(t, h, "ada"); !slices.Equal(got, want) {
			t.Errorf("runs wait for mail of %q, want %q", got, want)
		}
	}
	cmd := mailRun("before", "ada", alice)
	if err := h.store.NewSession(ctx, cmd.Session, "ada", cmd.AcceptedAt); err != nil {
		t.Fatal(err)
	}
	state(api.StateDead)

	// A run that was queued before.
	if over, _, err := h.admitMail(ctx, &cmd); err != nil || !over {
		t.Fatalf("got over %t, %v; want the run dropped", over, err)
	}
	if st, err := h.store.RunState(ctx, cmd.Run); err != nil || st.Outcome != api.OutcomeDropped || st.Next == "" {
		t.Errorf("the run is %+v, %v; want it dropped, and what to do", st, err)
	}
	if err := h.moreMail(ctx, cmd); err != nil {
		t.Fatal(err)
	}
	free()
	state(api.StateSleeping)
	free("0xfb6916095ca1df60bb79ce92ce3ea74c37c5d359")

	// A message that arrives while the agent is dead.
	state(api.StateDead)
	key := api.WakeKey("ada", inboxCause+"1")
	wake := api.Wake{Agent: "ada", Cause: inboxCause + "1", By: api.Principal{Kind: api.Peer, Address: bobby}, At: 1}
	handle(t, h, key, wake)
	free("0xfb6916095ca1df60bb79ce92ce3ea74c37c5d359")
	state(api.StateSleeping)
	free("0xfb6916095ca1df60bb79ce92ce3ea74c37c5d359", "0x5aaeb6053f3e94c9b9a09f33669435e7ef1beaed")
}

// handle stores a wake and handles it.
func handle(t *testing.T, h *handlers, key string, wake api.Wake) {
	t.Helper()
	ctx := t.Context()
	if _, err := h.wakes.Create(ctx, key, wake, 0); err != nil {
		t.Fatal(err)
	}
	e, err := h.wakes.Get(ctx, key)
	if err != nil {
		t.Fatal(err)
	}
	if err := h.wake(ctx, e); err != nil {
		t.Fatal(err)
	}
}

// TestRestoredWakes tests that a wake, also one for mail, which a crashed server restored
// starts no run if that run has ended, also if the previous release gave it another id.
func TestRestoredWakes(t *testing.T) {
	t.Parallel()
	for _, by := range []api.Principal{{Kind: api.HeartbeatKind}, {Kind: api.Peer, Address: bobby}} {
		for _, ended := range []func(runID) string{
			func(runID) string { return "" },
			func(id runID) string { return id.run },
			func(id runID) string { return id.former },
		} {
			t.Run(string(by.Kind), func(t *testing.T) {
				t.Parallel()
				h := post(t, &mailbox{})
				ctx := t.Context()
				wake := api.Wake{Agent: "ada", Cause: inboxCause + "1", By: by, At: time.Now().UnixMicro()}
				key := api.WakeKey("ada", wake.Cause)
				name, session := fmt.Sprintf("wake/%s/%d", key, wake.At), sqlstore.MailSession("ada")
				if by.Kind != api.Peer {
					name, session = fmt.Sprintf("%x", sha256.Sum256([]byte(name))), "ada-main"
				}
				want := 1
				if run := ended(runOfEvent(name, wake.At)); run != "" {
					want = 0
					cmd := api.Run{Run: run, Agent: "ada", Session: session, Kind: api.RunWake, By: by, AcceptedAt: wake.At}
					if err := h.store.NewSession(ctx, session, "ada", wake.At); err != nil {
						t.Fatal(err)
					}
					if _, err := h.store.Drop(ctx, engine.End{Run: cmd, Input: engine.Input{By: by}, At: wake.At, Outcome: api.OutcomeDropped}); err != nil {
						t.Fatal(err)
					}
				}
				handle(t, h, key, wake)
				if all, err := h.queue.All(ctx, session); err != nil || len(all) != want {
					t.Errorf("%d runs are queued, %v; want %d", len(all), err, want)
				}
				if _, err := h.wakes.Get(ctx, key); api.CodeOf(err) != api.NotFound {
					t.Errorf("the wake after it was handled: %v, want not_found", err)
				}
			})
		}
	}
}

// TestMailOfADeletedAgent tests that held mail of a deleted agent does not block the
// mail of other agents, and that the end of its last run is not an error.
func TestMailOfADeletedAgent(t *testing.T) {
	t.Parallel()
	h := post(t, &mailbox{alice})
	ctx, now := t.Context(), time.Now().UnixMicro()
	for i, agent := range []string{"ada", "bob"} {
		if err := h.store.HoldMail(ctx, agent, bobby, now-2+int64(i)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := h.store.Delete(ctx, "ada", "why", false, now); err != nil {
		t.Fatal(err)
	}
	if err := h.freeMail(ctx); err != nil {
		t.Errorf("mail of a deleted agent: %v", err)
	}
	if got := senders(t, h, "bob"); len(got) != 1 {
		t.Errorf("runs wait for mail of %q to another agent, want one", got)
	}
	if err := h.moreMail(ctx, mailRun("last", "ada", alice)); err != nil {
		t.Errorf("after the last run of a deleted agent: %v", err)
	}
}

// TestMoreMail tests that a message is found behind any number of messages whose sender
// is held.
func TestMoreMail(t *testing.T) {
	t.Parallel()
	inbox := append(slices.Repeat(mailbox{alice}, 450), bobby)
	h := post(t, &inbox)
	ctx := t.Context()
	if err := h.store.HoldMail(ctx, "ada", alice, time.Now().Add(time.Hour).UnixMicro()); err != nil {
		t.Fatal(err)
	}
	for i := range 1100 { // these precede it in the list of holds
		if err := h.store.HoldMail(ctx, "ada", fmt.Sprintf("0x%040d", i), time.Now().Add(time.Minute).UnixMicro()); err != nil {
			t.Fatal(err)
		}
	}
	if err := h.moreMail(ctx, mailRun("r", "ada", alice)); err != nil {
		t.Fatal(err)
	}
	if got := senders(t, h, "ada"); !slices.Equal(got, []string{bobby}) {
		t.Errorf("runs wait for mail of %q, want %s", got, bobby)
	}
}

// TestMailOverABudget tests that a run which the budget of all senders does not permit is
// followed by no other, and that further messages of the sender start no run, as long as
// the budget is exhausted.
func TestMailOverABudget(t *testing.T) {
	t.Parallel()
	h := post(t, &mailbox{alice, bobby})
	h.cfg.MailAgentRuns = 1
	ctx, cmd := t.Context(), mailRun("first", "ada", alice)
	if err := h.store.NewSession(ctx, cmd.Session, "ada", cmd.AcceptedAt); err != nil {
		t.Fatal(err)
	}
	if over, _, err := h.admitMail(ctx, &cmd); err != nil || over {
		t.Fatalf("within the budget: got over %t, %v", over, err)
	}
	if err := h.live(ctx, mailRun("second", "ada", alice)); err != nil {
		t.Fatal(err)
	}
	arrive := func(n string, want ...string) {
		t.Helper()
		cause := inboxCause + n
		handle(t, h, api.WakeKey("ada", cause), api.Wake{Agent: "ada", Cause: cause, By: api.Principal{Kind: api.Peer, Address: alice}, At: 1})
		if got := senders(t, h, "ada"); !slices.Equal(got, want) {
			t.Errorf("message %s: runs wait for mail of %q, want %q", n, got, want)
		}
	}
	arrive("1")
	h.cfg.MailAgentRuns = 2
	arrive("2", alice)
}

// TestMailAfterACancel tests that no run follows one that was cancelled, because its agent
// may have been told to sleep, unless its session was terminated.
func TestMailAfterACancel(t *testing.T) {
	t.Parallel()
	h := post(t, &mailbox{alice})
	ctx, now := t.Context(), time.Now().UnixMicro()
	more := func(cmd api.Run, want ...string) {
		t.Helper()
		if err := h.moreMail(ctx, cmd); err != nil {
			t.Fatal(err)
		}
		agent, err := h.store.Agent(ctx, cmd.Agent)
		if err != nil {
			t.Fatal(err)
		}
		all, err := h.queue.All(ctx, agent.Mail)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, cmd := range all {
			got = append(got, cmd.By.Address)
		}
		if !slices.Equal(got, want) {
			t.Errorf("after the run %s runs wait in %s for mail of %q, want %q", cmd.Run, agent.Mail, got, want)
		}
	}
	for _, agent := range []string{"ada", "bob"} {
		cmd := mailRun("cancelled", agent, alice)
		cmd.Run += agent
		if err := h.store.NewSession(ctx, cmd.Session, agent, now); err != nil {
			t.Fatal(err)
		}
		if err := h.store.Cancel(ctx, cmd.Run, cmd.Session, "told to sleep", now); err != nil {
			t.Fatal(err)
		}
		more(cmd)
		if agent == "bob" {
			if _, err := h.store.Terminate(ctx, cmd.Session, "enough", now); err != nil {
				t.Fatal(err)
			}
			more(cmd, alice)
			continue
		}
		more(mailRun("other", agent, alice), alice)
	}
}

// TestUnansweredMail tests that no run for a sender follows at once after one that ended
// before a model had answered, and that mail of other senders does not wait for it.
func TestUnansweredMail(t *testing.T) {
	t.Parallel()
	inbox := &mailbox{alice}
	h := post(t, inbox)
	ctx := t.Context()
	cmd := mailRun("failed", "ada", alice)
	if err := h.store.NewSession(ctx, cmd.Session, "ada", cmd.AcceptedAt); err != nil {
		t.Fatal(err)
	}
	end := engine.End{Run: cmd, Input: engine.Input{By: cmd.By}, Reason: api.ReasonNoModel, Unanswered: true, At: cmd.AcceptedAt, Outcome: api.OutcomeConsumed}
	if _, err := h.store.Drop(ctx, end); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the message of the run is delivered twice
		if err := h.moreMail(ctx, cmd); err != nil {
			t.Fatal(err)
		}
	}
	if got := senders(t, h, "ada"); len(got) != 0 {
		t.Errorf("runs wait for mail of %q, want none", got)
	}
	held, err := h.store.HeldMail(ctx, "ada")
	if want := time.UnixMicro(end.At).Add(5 * time.Minute).UnixMicro(); err != nil || len(held) != 1 || held[0].Until != want {
		t.Errorf("held: %+v, %v, want one until %d", held, err, want)
	}
	*inbox = mailbox{bobby, alice}
	if err := h.moreMail(ctx, cmd); err != nil {
		t.Fatal(err)
	}
	if got := senders(t, h, "ada"); !slices.Equal(got, []string{bobby}) {
		t.Errorf("runs wait for mail of %q, want %s", got, bobby)
	}
	h.now = func() time.Time { return time.Now().Add(6 * time.Minute) }
	if err := h.freeMail(ctx); err != nil {
		t.Fatal(err)
	}
	if got := senders(t, h, "ada"); len(got) != 2 || !strings.EqualFold(got[1], alice) {
		t.Errorf("after 5 minutes runs wait for mail of %q, want that of %s, too", got, alice)
	}
}

// TestHeldMailOfAFundedAgent tests that mail which an agent could not pay for starts a run
// when the agent is funded, and mail over a budget of the day does not.
func TestHeldMailOfAFundedAgent(t *testing.T) {
	t.Parallel()
	h := post(t, &mailbox{alice, bobby})
	ctx, now := t.Context(), time.Now()
	for sender, until := range map[string]time.Duration{alice: 59 * time.Minute, bobby: 20 * time.Hour} {
		if err := h.store.HoldMail(ctx, "ada", sender, now.Add(until).UnixMicro()); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		from, to api.Tier
		want     int
	}{
		{api.TierNormal, api.TierCritical, 0},
		{api.TierCritical, api.TierNormal, 1},
	} {
		if err := h.tierChanged(ctx, api.TierChanged{Agent: "ada", From: tt.from, To: tt.to}); err != nil {
			t.Fatal(err)
		}
		if err := h.freeMail(ctx); err != nil {
			t.Fatal(err)
		}
		if got := senders(t, h, "ada"); len(got) != tt.want || tt.want == 1 && !strings.EqualFold(got[0], alice) {
			t.Errorf("from %s to %s: runs wait for mail of %q, want %d", tt.from, tt.to, got, tt.want)
		}
	}
}

// TestResetOfABusySession tests that a session that another replica owns is not reset,
// even if its queue shows no run.
func TestResetOfABusySession(t *testing.T) {
	t.Parallel()
	h := post(t, &mailbox{})
	m := api.ResetSession{Session: "ada-main"}
	locks, err := bus.OpenBucket[api.Lock](t.Context(), h.bus)
	if err != nil {
		t.Fatal(err)
	}
	other := session.NewLocks(locks, h.locks.Journal, "other", time.Hour, time.Now, apptest.Log(t))
	cmd := api.Run{Run: "r", Session: m.Session, Agent: "ada"}
	err = other.With(t.Context(), cmd, func(ctx context.Context) error {
		if err := other.Journal.Own(ctx, cmd, 1); err != nil {
			return err
		}
		if s, err := h.resetSession(ctx, m); api.ReasonOf(err) != api.ReasonBusy || api.Wire(err).Next == "" {
			t.Errorf("got %+v, %v; want that it is busy, and what to do", s, err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := h.resetSession(t.Context(), m); err != nil {
		t.Errorf("afterwards: %v", err)
	}
}

package loop

import (
	"testing"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/apptest"
	"github.com/anima-run/anima/pkg/outbox"
	"github.com/anima-run/anima/pkg/sqldb"
	"github.com/anima-run/anima/pkg/sqldb/sqldbtest"

	"github.com/anima-run/anima/services/loop/internal/agent"
	"github.com/anima-run/anima/services/loop/internal/sqlstore"
)

// TestLossAnnouncesAgents tests that an accepted loss announces each agent once, with a
// number that is higher than any which was announced before.
func TestLossAnnouncesAgents(t *testing.T) {
	t.Parallel()
	db := sqldbtest.SQLite(t, sqlstore.Migrations())
	h := &handlers{store: sqlstore.New(db, t.TempDir()), relay: outbox.NewRelay(db, apptest.Bus(t), apptest.Log(t)), now: time.Now, log: apptest.Log(t)}
	const at, lost = 1000, 2000
	if _, err := h.store.Apply(t.Context(), agent.Definition{Name: "Lucky"}, "lucky", "0xAD", "source", at); err != nil {
		t.Fatal(err)
	}
	announced := func() int {
		t.Helper()
		n, err := sqldb.One[int](t.Context(), db, `select count(*) from outbox where id = $1`, "agent_state/lucky/2000")
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	if err := h.settleOnce(t.Context(), db); err != nil || announced() != 0 {
		t.Errorf("without a loss: %v, %d announcements", err, announced())
	}
	if err := sqldb.AddLosses(t.Context(), db, lost, []string{"the database of loop is an older copy"}); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := h.settleOnce(t.Context(), db); err != nil || announced() != 1 {
			t.Errorf("after a loss: %v, %d announcements, want 1", err, announced())
		}
	}
	c, err := h.store.SetState(t.Context(), "lucky", api.StateSleeping, "told to sleep", false, 0, lost)
	if err != nil || c.Seq != lost+1 {
		t.Errorf("the next change is %+v, %v, want number %d", c, err, lost+1)
	}
}

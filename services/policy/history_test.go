package policy

import (
	"encoding/json"
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/sqldb"

	"github.com/anima-run/anima/services/policy/internal/rule"
	"github.com/anima-run/anima/services/policy/internal/sqlstore"
)

// TestUnreadableHistoryIsNotNone tests that a rate-limited call is denied while earlier
// decisions cannot be read. Counting them as zero would disable the limit.
func TestUnreadableHistoryIsNotNone(t *testing.T) {
	t.Parallel()
	db, err := sqldb.Open(t.Context(), "sqlite:"+filepath.Join(t.TempDir(), "policy.db"), sqldb.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	engine, err := rule.Standard()
	if err != nil {
		t.Fatal(err)
	}
	h := &handlers{log: slog.New(slog.DiscardHandler), now: time.Now, store: sqlstore.New(db), engine: engine}
	for tool, args := range map[string]string{
		"send_message":  `{"to_address":"0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed","content":"hi"}`,
		"edit_own_file": `{"path":"notes.md","content":"x","description":"a note"}`,
	} {
		d := h.decide(t.Context(), api.Evaluate{
			Agent: "lucky", Session: "lucky-main", Run: "r", Turn: "r.1", Tool: tool, Args: json.RawMessage(args),
			By: api.Principal{Kind: api.Creator}, Workspace: "/data/lucky", Tools: []string{tool},
		}, "hash")
		if d.Action != api.Deny || d.Code != string(rule.DBUnavailable) {
			t.Errorf("%s: got %s with %s (%s), want %s with %s", tool, d.Action, d.Code, d.Message, api.Deny, rule.DBUnavailable)
		}
	}
}

package sqlstore_test

import (
	"testing"
	"time"

	"github.com/anima-run/anima/pkg/sqldb"
	"github.com/anima-run/anima/pkg/sqldb/sqldbtest"
	"github.com/anima-run/anima/services/social/internal/inbox"
	"github.com/anima-run/anima/services/social/internal/sqlstore"
)

// TestView checks the view of docs/reference/social.md, Tables.
func TestView(t *testing.T) {
	t.Parallel()
	sqldbtest.Each(t, sqlstore.Migrations(), func(t *testing.T, db *sqldb.DB) {
		ctx := t.Context()
		s := sqlstore.New(db, nil)
		at := time.Date(2026, 3, 2, 12, 0, 0, 250_000_000, time.UTC)
		m := inbox.Message{ID: "m1", From: "0xa", To: "0xb", Content: "hello", Received: at}
		if _, err := s.Receive(ctx, m, func() error { return nil }); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Claim(ctx, "0xb", "r1", "", 1, at); err != nil {
			t.Fatal(err)
		}
		if err := s.Settle(ctx, "0xb", "r1", at.Add(time.Second)); err != nil {
			t.Fatal(err)
		}
		var from, received, processed, status string
		var tries, most int64
		err := db.QueryRowContext(ctx, `select from_address, received_at, processed_at, status, retry_count, max_retries
			from inbox_messages where processed_at is not null and reply_to is null`).
			Scan(&from, &received, &processed, &status, &tries, &most)
		if err != nil {
			t.Fatal(err)
		}
		got := []any{from, received, processed, status, tries, most}
		want := []any{"0xa", "2026-03-02T12:00:00.250Z", "2026-03-02T12:00:01.250Z", "processed", int64(1), int64(3)}
		for i := range want {
			if got[i] != want[i] {
				t.Errorf("column %d: got %v, want %v", i, got[i], want[i])
			}
		}
	})
}

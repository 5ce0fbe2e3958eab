package sqlstore_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/anima-run/anima/pkg/sqldb"
	"github.com/anima-run/anima/pkg/sqldb/sqldbtest"
	"github.com/anima-run/anima/services/social/internal/inbox"
	"github.com/anima-run/anima/services/social/internal/sqlstore"
)

// TestAnnouncesWithoutContents checks that the contents of the messages that wait for an
// agent are not read when the agent becomes known: there may be 10,000 of them.
func TestAnnouncesWithoutContents(t *testing.T) {
	t.Parallel()
	sqldbtest.Each(t, sqlstore.Migrations(), func(t *testing.T, db *sqldb.DB) {
		var got []inbox.Message
		s := sqlstore.New(db, func(_ context.Context, _ *sqldb.Tx, _ string, m inbox.Message) error {
			got = append(got, m)
			return nil
		})
		at := time.Date(2026, 3, 2, 12, 0, 0, 250_000_000, time.UTC)
		m := inbox.Message{ID: "m1", From: "0xa", To: "0xb", Content: "hello", Signature: "0x1", Received: at}
		if _, err := s.Receive(t.Context(), m, func() error { return nil }); err != nil {
			t.Fatal(err)
		}
		if err := s.PutAgent(t.Context(), inbox.LocalAgent{Agent: "bob", Address: "0xb", Seq: 1}); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]inbox.Message{{ID: "m1", From: "0xa", To: "0xb", Received: at}}, got); diff != "" {
			t.Errorf("announced: (-want +got):\n%s", diff)
		}
	})
}

// TestPollOfALockedMailbox checks that a poll with nothing to mark waits for no writer.
func TestPollOfALockedMailbox(t *testing.T) {
	t.Parallel()
	sqldbtest.Each(t, sqlstore.Migrations(), func(t *testing.T, db *sqldb.DB) {
		s, at := sqlstore.New(db, nil), time.Date(2026, 3, 2, 12, 0, 0, 0, time.UTC)
		if _, err := s.Receive(t.Context(), inbox.Message{ID: "m1", From: "0xa", To: "0xb", Content: "hello", Received: at}, func() error { return nil }); err != nil {
			t.Fatal(err)
		}
		err := sqldb.InTx(t.Context(), db, func(tx *sqldb.Tx) error {
			if _, err := tx.ExecContext(t.Context(), "update mailboxes set seq = seq where address = $1", "0xb"); err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			got, err := s.Poll(ctx, "0xb", 0, 10, at)
			if err == nil && len(got) != 1 {
				t.Errorf("got %d messages, want 1", len(got))
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
	})
}

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

package main

import (
	"context"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"
	"github.com/anima-run/anima/pkg/sqldb"
	"github.com/anima-run/anima/pkg/sqldb/sqldbtest"
)

// copied copies a file or folder of a data folder that is not in use.
func copied(t *testing.T, from, to string) {
	t.Helper()
	if err := os.RemoveAll(to); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("cp", "-a", from, to).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

// TestLostStores checks that up refuses to start, with a remedy, if a store is missing,
// empty or older than the other stores have recorded. With --accept-loss it starts, and
// the next start needs no flag.
func TestLostStores(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		lose func(t *testing.T, data, before string)
		says string
	}{
		"treasury's database is empty": {func(t *testing.T, data, _ string) {
			if err := os.RemoveAll(filepath.Join(data, "treasury")); err != nil {
				t.Fatal(err)
			}
		}, "the database of treasury is empty or was recreated"},
		"loop's database is an older copy": {func(t *testing.T, data, before string) {
			copied(t, filepath.Join(before, "loop"), filepath.Join(data, "loop"))
		}, "the database of loop is an older copy"},
		"there are no streams": {func(t *testing.T, data, _ string) {
			if err := os.RemoveAll(filepath.Join(data, "nats")); err != nil {
				t.Fatal(err)
			}
		}, "missing or empty"},
		"the streams are an older copy": {func(t *testing.T, data, before string) {
			copied(t, filepath.Join(before, "nats"), filepath.Join(data, "nats"))
		}, "is an older copy or cut off"},
		"one stream is cut off": {func(t *testing.T, data, before string) {
			const at = "nats/jetstream/$G/streams/LOOP_EVT"
			copied(t, filepath.Join(before, at), filepath.Join(data, at))
		}, "the stream LOOP_EVT is an older copy or cut off"},
		"a stream is of another installation": {func(t *testing.T, data, _ string) {
			other := newMachine(t)
			u := other.up()
			other.cli("session", "send", "lucky", "hello", "--no-wait")
			u.stop()
			copied(t, filepath.Join(other.data(), "nats"), filepath.Join(data, "nats"))
		}, "belongs to installation"},
		"the folder's id is gone": {func(t *testing.T, data, _ string) {
			if err := os.Remove(filepath.Join(data, "installation")); err != nil {
				t.Fatal(err)
			}
		}, "belongs to installation"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newMachine(t)
			first := m.up()
			m.cli("session", "send", "lucky", "hello") // so that the streams of the copy are not empty
			first.stop()
			before := filepath.Join(t.TempDir(), "before")
			copied(t, m.data(), before)
			u := m.up()
			m.cli("session", "send", "lucky", "hello")
			u.stop()
			tt.lose(t, m.data(), before)

			said := m.fails(exitConflict, "", []string{"up"}, "do not agree", "backup", "--accept-loss")
			if !strings.Contains(said, tt.says) {
				t.Errorf("up says %q, want it to say %q", said, tt.says)
			}
			m.fails(exitConflict, "", []string{"up"}, "do not agree") // the refused start has changed nothing
			u = m.up("--accept-loss")
			u.ready(http.StatusOK)
			u.stop()
			m.up()
		})
	}
}

// TestLostSchemas checks the same for databases on PostgreSQL.
func TestLostSchemas(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		lose []string // statements; DB is the database, BEFORE its copy
		says string
	}{
		"treasury's schema is gone": {[]string{"DB: drop schema treasury cascade"}, "the database of treasury is empty or was recreated"},
		"the databases are an older copy": {
			[]string{"drop database DB", "alter database BEFORE rename to DB"}, "is an older copy",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newMachine(t)
			at := sqldbtest.Postgres(t)
			m.env["ANIMA_DATABASE_URL"] = at
			u, err := url.Parse(at)
			if err != nil {
				t.Fatal(err)
			}
			db := strings.TrimPrefix(u.Path, "/")
			names := strings.NewReplacer("DB", db, "BEFORE", db+"_before")
			statement := func(s string) {
				t.Helper()
				to := *u
				s, inside := strings.CutPrefix(s, "DB: ")
				if !inside {
					to.Path = "/postgres"
				}
				conn, err := sqldb.Open(t.Context(), to.String(), sqldb.Options{MaxConns: 1})
				if err != nil {
					t.Fatal(err)
				}
				defer func() { _ = conn.Close() }() // no statement is in progress
				if _, err := conn.ExecContext(t.Context(), names.Replace(s)); err != nil {
					t.Fatalf("%s: %v", s, err)
				}
			}
			first := m.up()
			m.cli("session", "send", "lucky", "hello")
			first.stop()
			statement("create database BEFORE template DB")
			t.Cleanup(func() {
				conn, err := sqldb.Open(context.WithoutCancel(t.Context()), at, sqldb.Options{MaxConns: 1})
				if err != nil {
					t.Error(err)
					return
				}
				_, _ = conn.ExecContext(context.WithoutCancel(t.Context()), names.Replace("drop database if exists BEFORE")) // it may have been renamed to the database itself
				_ = conn.Close()
			})
			again := m.up()
			m.cli("session", "send", "lucky", "hello")
			again.stop()
			for _, s := range tt.lose {
				statement(s)
			}

			said := m.fails(exitConflict, "", []string{"up"}, "do not agree", "backup", "--accept-loss")
			if !strings.Contains(said, tt.says) {
				t.Errorf("up says %q, want it to say %q", said, tt.says)
			}
			last := m.up("--accept-loss")
			last.ready(http.StatusOK)
			last.stop()
			m.up()
		})
	}
}

// TestMarkBehind checks the case that a leader with old data hides a mark from a start:
// the next mark shows that NATS has one which the database lacks.
func TestMarkBehind(t *testing.T) {
	t.Parallel()
	u := newMachine(t).up()
	conn, err := bus.Dial(bus.DialOptions{URL: u.NATS, Token: u.token, Name: "test"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	b, err := bus.New(conn, bus.Options{Service: "test"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	mark, err := b.GetMark(t.Context(), "treasury")
	if err != nil {
		t.Fatal(err)
	}
	mark.Seq += 1000
	if kept, err := b.PutMark(t.Context(), "treasury", mark); err != nil || kept != mark {
		t.Fatalf("got %+v, %v", kept, err)
	}
	if said := u.ready(http.StatusServiceUnavailable); !strings.Contains(said, "older copy") {
		t.Errorf("readyz says %q, want that the database is an older copy", said)
	}
	u.stop()
	u.fails(exitConflict, "", []string{"up"}, "the database of treasury is an older copy")
}

// TestLostJournal checks that a run which had begun when the streams were lost ends with
// an error that gives the reason.
func TestLostJournal(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.env["ANIMA_DRAIN"] = "10ms"
	u := m.up()
	acc := asked[api.Accepted](m, "session", "send", "lucky", "slow", "--no-wait")
	m.watch("lucky-main", "loop_execute")
	u.stop()
	if err := os.RemoveAll(filepath.Join(m.data(), "nats")); err != nil {
		t.Fatal(err)
	}
	m.fails(exitConflict, "", []string{"up"}, "missing or empty")
	m.up("--accept-loss")
	if end := asked[api.LoopEnd](m, "session", "send", "lucky", "hello"); !end.Success { // queued behind it
		t.Errorf("the next message ends as %+v", end)
	}
	got := asked[api.RunState](m, "run", "get", acc.Run, "--session", "lucky-main")
	if got.Status != api.RunEnded || got.Success || !strings.Contains(got.Error, "was lost") || got.Outcome == "" {
		t.Errorf("the run that was under way is %+v, want it ended with its cause", got)
	}
}

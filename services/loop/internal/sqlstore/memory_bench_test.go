package sqlstore_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/anima-run/anima/pkg/sqldb"
	"github.com/anima-run/anima/pkg/sqldb/sqldbtest"

	"github.com/anima-run/anima/services/loop/internal/memory"
	"github.com/anima-run/anima/services/loop/internal/sqlstore"
)

// BenchmarkRecall recalls for a prompt of 10,000 tokens, with 1,000 and with 1,000,000
// episodes of twenty words each, 500 facts, 100 procedures and 100 relations of one
// agent, and 1,000 episodes of another. It recalls in a session without episodes and in
// the session that all episodes belong to. The ratio is that of the 99th percentiles.
func BenchmarkRecall(b *testing.B) {
	p99 := map[string][]time.Duration{}
	for _, n := range []int{1000, 1_000_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			db := sqldbtest.SQLite(b, sqlstore.Migrations())
			s := sqlstore.Memory{Store: sqlstore.New(db, "/data")}
			words := populate(b, db, s, n)
			m := &memory.Memory{Store: s, Now: func() time.Time { return time.UnixMicro(at) }}
			for _, of := range []struct{ name, session string }{{"others", "ada-main"}, {"own", "other"}} {
				b.Run(of.name, func(b *testing.B) {
					took := make([]time.Duration, 0, b.N)
					for b.Loop() {
						began := time.Now()
						text, err := m.Recall(b.Context(), "ada", of.session, words(8), 10_000)
						if err != nil || text == "" {
							b.Fatal(text, err)
						}
						took = append(took, time.Since(began))
					}
					slices.Sort(took)
					p99[of.name] = append(p99[of.name], took[len(took)*99/100])
					all := p99[of.name]
					b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-µs")
					b.ReportMetric(float64(all[len(all)-1].Microseconds()), "p99-µs")
					if len(all) > 1 {
						b.ReportMetric(float64(all[len(all)-1])/float64(all[0]), "x-first")
					}
				})
			}
		})
	}
}

// BenchmarkRecallYoung recalls for an agent with a hundred episodes of the same words:
// every text matches the query.
func BenchmarkRecallYoung(b *testing.B) {
	db := sqldbtest.SQLite(b, sqlstore.Migrations())
	s := sqlstore.Memory{Store: sqlstore.New(db, "/data")}
	if _, err := s.Apply(b.Context(), definition("Ada"), "ada", "0xAD", "source", at); err != nil {
		b.Fatal(err)
	}
	for i := range 100 {
		id := fmt.Sprint("g", i)
		if err := s.AddNote(b.Context(), "ada", memory.Note{ID: id, Session: "ada-main", Kind: "goal", Content: fmt.Sprintf("send message number %d to the reader", i), By: self, At: at}); err != nil {
			b.Fatal(err)
		}
		if err := s.ReachGoal(b.Context(), "ada", id, "called exec: ok, said: all is done now", self, at+int64(i)); err != nil {
			b.Fatal(err)
		}
	}
	m := &memory.Memory{Store: s, Now: func() time.Time { return time.UnixMicro(at) }}
	b.ReportAllocs()
	for b.Loop() {
		if text, err := m.Recall(b.Context(), "ada", "ada-main", "send message number 7 to the reader", 10_000); err != nil || text == "" {
			b.Fatal(text, err)
		}
	}
}

// populate fills the store and returns a function that makes texts. The frequencies of
// their words have a Zipf distribution, as in a natural language.
func populate(b *testing.B, db *sqldb.DB, s sqlstore.Memory, n int) func(int) string {
	b.Helper()
	zipf := rand.NewZipf(rand.New(rand.NewPCG(1, 2)), 1.07, 20, 20_000)
	words := func(n int) string {
		var t strings.Builder
		for range n {
			fmt.Fprintf(&t, "word%d ", zipf.Uint64())
		}
		return t.String()
	}
	for _, agent := range []string{"Ada", "Bob"} {
		if _, err := s.Apply(b.Context(), definition(agent), strings.ToLower(agent), "0xAD", "source", at); err != nil {
			b.Fatal(err)
		}
	}
	for agent, n := range map[string]int{"ada": n, "bob": 1000} {
		// The text of an indexed episode begins with the mark of the scope.
		if err := errors.Join(
			s.AddNote(b.Context(), agent, memory.Note{ID: "g", Session: "other", Kind: "goal", Content: "g", By: self, At: at}),
			s.ReachGoal(b.Context(), agent, "g", "", self, at),
		); err != nil {
			b.Fatal(err)
		}
		var body string
		if err := db.QueryRowContext(b.Context(), `select body from memory_text where scope = $1`, agent+"/episodic").Scan(&body); err != nil {
			b.Fatal(err)
		}
		mark := body[:9]
		// Drop the triggers that index each text, and index all texts at the end in
		// order.
		var triggers [2]string
		for i, name := range []string{"memory_text_insert", "memory_word_insert"} {
			if err := db.QueryRowContext(b.Context(), `select sql from sqlite_master where name = $1`, name).Scan(&triggers[i]); err != nil {
				b.Fatal(err)
			}
			if _, err := db.ExecContext(b.Context(), `drop trigger `+name); err != nil {
				b.Fatal(err)
			}
		}
		for from := 0; from < n; from += 1000 {
			err := sqldb.InTx(b.Context(), db, func(tx *sqldb.Tx) error {
				for i := from; i < from+1000; i++ {
					text := words(20)
					if _, err := tx.ExecContext(b.Context(), `insert into episodic_memory (agent, id, session, event_type, summary, outcome, class, origin, created_at)
						values ($1, $2, 'other', 'tool:exec', $3, 'success', 'productive', 'self', $4)`, agent, fmt.Sprint("e", i), text, int64(at)-rand.Int64N(30*day)); err != nil {
						return err
					}
					if _, err := tx.ExecContext(b.Context(), `insert into memory_text (scope, id, body) values ($1, $2, $3)`,
						agent+"/episodic", fmt.Sprint("e", i), mark+strings.ReplaceAll(strings.TrimSpace(text), " ", " "+mark)+" "); err != nil {
						return err
					}
				}
				return nil
			})
			if err != nil {
				b.Fatal(err)
			}
		}
		if _, err := db.ExecContext(b.Context(), `insert into memory_word (word, doc) select distinct w.value, m.doc
			from memory_text m, json_each('["' || replace(trim(m.body), ' ', '","') || '"]') w where m.scope = $1 and m.id <> 'g' order by 1, 2`, agent+"/episodic"); err != nil {
			b.Fatal(err)
		}
		for _, t := range triggers {
			if _, err := db.ExecContext(b.Context(), t); err != nil {
				b.Fatal(err)
			}
		}
		for i := range memory.MaxFacts {
			if _, err := s.Remember(b.Context(), agent, memory.Fact{Category: "domain", Key: fmt.Sprint("k", i), Value: words(10), Confidence: rand.Float64(), By: self, At: at}); err != nil {
				b.Fatal(err)
			}
		}
		for i := range 100 {
			if err := s.SaveProcedure(b.Context(), agent, memory.Procedure{Name: fmt.Sprint("p", i), Description: words(10), Steps: []string{words(5)}, By: self, At: at}); err != nil {
				b.Fatal(err)
			}
			if err := s.NoteRelation(b.Context(), agent, memory.Relation{Address: fmt.Sprint("0x", i), Kind: "friend", Notes: words(10), By: self, At: at}); err != nil {
				b.Fatal(err)
			}
		}
	}
	return words
}

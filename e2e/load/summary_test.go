package main

import (
	"testing"
	"time"

	"github.com/anima-run/anima/pkg/api"
)

// TestAuditSaysNo checks that the audit reports each kind of fault.
func TestAuditSaysNo(t *testing.T) {
	t.Parallel()
	settle := func(id, turn string) api.Posted { return api.Posted{ID: id, Kind: "settle", Turn: turn} }
	broken := settle("h0", "r.2")
	broken.Memo = api.MemoBroken
	good := []api.Posted{{ID: "d", Kind: "deposit"}, settle("h1", "r.1"), settle("h2", "r.2")}
	for name, c := range map[string]struct {
		entries         []api.Posted
		before          summary
		ok              bool
		doubled, unpaid int
	}{
		"no fault":                    {entries: good, ok: true},
		"a hold settled twice":        {entries: append(good[:3:3], settle("h2", "r.2")), doubled: 1, unpaid: 1},
		"a turn paid from two holds":  {entries: append(good[:3:3], settle("h3", "r.2")), unpaid: 1},
		"a turn not paid":             {entries: good[:2], unpaid: 1},
		"an earlier answer broke off": {entries: append(good[:3:3], broken), ok: true},
		"only a broken answer":        {entries: append(good[:2:2], broken), unpaid: 1},
		"a run lost":                  {entries: good, before: summary{Lost: 1}},
		"a run failed":                {entries: good, before: summary{Failed: 1}},
		"a message refused":           {entries: good, before: summary{Refused: 1}},
	} {
		s := c.before
		s.Runs, s.LedgerOK = 1, true
		s.audit(c.entries, map[string]int{"r": 2})
		if s.ok() != c.ok || s.Doubled != c.doubled || s.Unpaid != c.unpaid {
			t.Errorf("%s: got ok %t, doubled %d, unpaid %d; want %t, %d, %d", name, s.ok(), s.Doubled, s.Unpaid, c.ok, c.doubled, c.unpaid)
		}
	}
	if (summary{LedgerOK: true}).ok() {
		t.Error("a load that did nothing is well")
	}
	if (summary{Runs: 1}).ok() {
		t.Error("a load whose ledger is broken is well")
	}
}

func TestMeasure(t *testing.T) {
	t.Parallel()
	t0 := time.UnixMilli(1_000_000)
	at := func(began, took time.Duration) ended {
		return ended{run: began.String(), turns: 2, began: t0.Add(began), ended: t0.Add(began + took)}
	}
	var done []ended
	for i := range 100 {
		done = append(done, at(time.Duration(i)*time.Second, 500*time.Millisecond))
	}
	done = append(done, at(99*time.Second, 16*time.Second)) // out of order, and resumed
	s := summary{Seconds: 101, Turns: 202}
	s.measure(t0, t0.Add(100*time.Second), done, 10*time.Second)
	if s.Late != 1 || s.MaxMS != 16000 || s.P50MS != 500 || s.GapMS != 15500 || s.Rate != 2 {
		t.Errorf("got %+v", s)
	}
	if len(s.Samples) != maxSamples-1 || s.Samples[len(s.Samples)-1].Ended != 1_115_000 {
		t.Errorf("samples: got %+v", s.Samples)
	}
	var none summary
	none.measure(t0, t0, nil, time.Second) // must not panic
	if none.P50MS != 0 || none.Samples != nil {
		t.Errorf("of nothing: got %+v", none)
	}
}

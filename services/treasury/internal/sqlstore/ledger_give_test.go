package sqlstore_test

import (
	"fmt"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/services/treasury/internal/ledger"
)

// give checks that a gift is one hold and one settlement, and that a repeated one has the
// first result, also in another process and after the balance has changed.
func give(t *testing.T, open func() ledger.Store) {
	b, other := run(t, open(), ledger.Options{}), run(t, open(), ledger.Options{})
	funded(t, b, "lucky", 1000)
	funded(t, b, "bob", 0)
	r := ledger.GiveRequest{ID: "g1", From: "lucky", To: "bob", Amount: 500, Memo: "thanks", Turn: "r.1", HalfAtMost: true}
	first, err := b.Give(t.Context(), r)
	if err != nil || first.Left != 500 || first.Seq != 3 {
		t.Fatalf("give: got %+v, %v; want 500 left after transaction 3", first, err)
	}
	for name, l := range map[string]*ledger.Ledger{"same process": b, "another process": other} {
		if again, err := l.Give(t.Context(), r); err != nil || !cmp.Equal(first, again) {
			t.Errorf("%s: got %+v, %v; want %+v", name, again, err, first)
		}
	}
	wantBalance(t, b, "lucky", 500, 0)
	wantBalance(t, b, "bob", 500, 0)
	change := func(f func(*ledger.GiveRequest)) ledger.GiveRequest {
		r := ledger.GiveRequest{ID: "g1", From: "lucky", To: "bob", Amount: 500, Memo: "thanks", Turn: "r.1"}
		f(&r)
		return r
	}
	fresh := func(f func(*ledger.GiveRequest)) ledger.GiveRequest {
		return change(func(r *ledger.GiveRequest) { r.ID = "g2"; f(r) })
	}
	for name, tt := range map[string]struct {
		r    ledger.GiveRequest
		want api.Code
	}{
		"another amount":    {change(func(r *ledger.GiveRequest) { r.Amount = 1 }), api.Conflict},
		"another recipient": {change(func(r *ledger.GiveRequest) { r.To = "carol" }), api.Conflict},
		"another memo":      {change(func(r *ledger.GiveRequest) { r.Memo = "" }), api.Conflict},
		"the other way":     {change(func(r *ledger.GiveRequest) { r.From, r.To = "bob", "lucky" }), api.Conflict},
		"too much":          {fresh(func(r *ledger.GiveRequest) { r.Amount = 501 }), api.Denied},
		"more than half":    {fresh(func(r *ledger.GiveRequest) { r.Amount, r.HalfAtMost = 251, true }), api.Denied},
		"nothing":           {fresh(func(r *ledger.GiveRequest) { r.Amount = 0 }), api.Invalid},
		"less than nothing": {fresh(func(r *ledger.GiveRequest) { r.Amount = -1 }), api.Invalid},
		"to itself":         {fresh(func(r *ledger.GiveRequest) { r.To = "lucky" }), api.Invalid},
		"to nobody":         {fresh(func(r *ledger.GiveRequest) { r.To = "nobody" }), api.NotFound},
		"a hold's id":       {fresh(func(r *ledger.GiveRequest) { r.ID = "g2/settle" }), api.Invalid},
	} {
		if _, err := b.Give(t.Context(), tt.r); api.CodeOf(err) != tt.want {
			t.Errorf("%s: got %v, want %s", name, err, tt.want)
		}
	}
	if _, err := b.Hold(t.Context(), ledger.HoldRequest{ID: "h1", Agent: "lucky", Amount: 1, ExpiresAt: soon}); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Give(t.Context(), fresh(func(r *ledger.GiveRequest) { r.ID = "h1" })); api.CodeOf(err) != api.Conflict {
		t.Errorf("the id of a hold: got %v, want Conflict", err)
	}
	wantBalance(t, b, "lucky", 499, 1)
	if got, err := b.Verify(t.Context(), nil); err != nil || len(got.Faults) > 0 {
		t.Errorf("verify: %v, %v", got.Faults, err)
	}
}

// giveHalves checks that concurrent gifts of half of the balance never take more than half
// of what is left.
func giveHalves(t *testing.T, open func() ledger.Store) {
	ledgers := []*ledger.Ledger{run(t, open(), ledger.Options{}), run(t, open(), ledger.Options{})}
	funded(t, ledgers[0], "lucky", 1024)
	funded(t, ledgers[0], "bob", 0)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			r := ledger.GiveRequest{ID: fmt.Sprintf("g%d", i), From: "lucky", To: "bob", Amount: 512, HalfAtMost: true}
			if _, err := ledgers[i%2].Give(t.Context(), r); err != nil && api.CodeOf(err) != api.Denied {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	wantBalance(t, ledgers[0], "lucky", 512, 0)
	wantBalance(t, ledgers[0], "bob", 512, 0)
}

package heartbeat

import (
	"context"
	"testing"
	"time"

	"go.opentelemetry.io/otel/metric/noop"
	tracenoop "go.opentelemetry.io/otel/trace/noop"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/apptest"
	"github.com/anima-run/anima/pkg/bus"
	"github.com/anima-run/anima/pkg/sqldb"
	"github.com/anima-run/anima/pkg/sqldb/sqldbtest"
	"github.com/anima-run/anima/services/heartbeat/internal/schedule"
	"github.com/anima-run/anima/services/heartbeat/internal/sqlstore"
)

// TestRepeatedWakeRequest tests that a request that the bus repeats, because the replica
// that took it has crashed before its answer, puts the same wake again after loop has
// consumed it, by which loop recognises it, and that another request puts another wake.
func TestRepeatedWakeRequest(t *testing.T) {
	t.Parallel()
	b := apptest.Bus(t)
	wakes, err := bus.OpenBucket[api.Wake](t.Context(), b)
	if err != nil {
		t.Fatal(err)
	}
	tel, err := newInstruments(noop.NewMeterProvider())
	if err != nil {
		t.Fatal(err)
	}
	db := sqldbtest.SQLite(t, sqlstore.Migrations())
	store := sqlstore.New(db, announce)
	err = sqldb.InTx(t.Context(), db, func(tx *sqldb.Tx) error {
		_, err := store.SeeAgents(t.Context(), tx, []schedule.Agent{{ID: "lucky", State: api.StateSleeping, Seq: 1}})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	h := &handlers{store: store, wakes: wakes, bus: b, now: time.Now, tel: tel, trace: tracenoop.NewTracerProvider().Tracer("")}
	consume := func(w api.Wake) {
		key := api.WakeKey(w.Agent, w.Cause)
		e, err := wakes.Get(t.Context(), key)
		if err == nil {
			err = wakes.Delete(t.Context(), key, e.Revision)
		}
		if err != nil {
			t.Errorf("the wake %s: %v", key, err)
		}
	}
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	ready, served := make(chan struct{}), make(chan error, 1)
	go func() {
		served <- b.Serve(ctx, time.Second, func() { close(ready) }, bus.Reply(func(ctx context.Context, m api.RequestWake) (api.Wake, error) {
			first, err := h.requestWake(ctx, m) // by the replica that crashes
			if err != nil {
				return first, err
			}
			consume(first)
			again, err := h.requestWake(ctx, m)
			if again.Trace = first.Trace; err != nil || again != first {
				t.Errorf("the repeated request: got %+v, %v, want %+v", again, err, first)
			}
			consume(again)
			return again, nil
		}))
	}()
	t.Cleanup(func() {
		stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	<-ready
	var last api.Wake
	for range 2 {
		began := time.Now()
		w, err := bus.Call[api.Wake](t.Context(), b, api.RequestWake{Agent: "lucky", Cause: "creator-1"})
		if err != nil || w.At <= last.At || w.At < began.UnixMicro()-1 || w.At > time.Now().UnixMicro() {
			t.Errorf("got %+v, %v, want a wake of the time of its request", w, err)
		}
		last = w
	}
}

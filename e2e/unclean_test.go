package e2e

import (
	"errors"
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/embednats/storetest"
)

// TestUncleanExit kills a process in the middle of a run and restores keys in its NATS
// stores that were deleted minutes before, without TTLs. Leases are much longer than the
// test: the next process on the folder resumes the run at once, because it is the only
// user of the folder and the previous process must have ended.
func TestUncleanExit(t *testing.T) {
	t.Parallel()
	dir, long := t.TempDir(), map[string]string{"ANIMA_LOOP_LEASE": "1h", "ANIMA_HEARTBEAT_LEASE": "1h"}
	p, w := upWith(t, dir, long)
	a := born(t, w, "Phoenix", api.Dollar)
	call[api.Alarm](t, w, api.SetAlarm{ID: "first", Agent: a.ID, At: time.Now().UnixMicro(), Reason: "the first alarm"})
	woken := awoken(t, w, a, "")
	send(t, w, a.ID, "hello")
	forgotten(t, dir, api.LockKey(a.Session))

	cut := call[api.Accepted](t, w, api.SendMessage{Agent: a.ID, Content: "slow tool"})
	await(t, w, api.ToolStart{Session: a.Session}, func(e api.ToolStart) bool { return e.Run == cut.Run })
	p.kill()
	if err := storetest.Age(filepath.Join(dir, "nats"), storetest.Saved); err != nil {
		t.Fatal(err)
	}

	again := time.Now()
	_, w = upWith(t, dir, long)
	ready := time.Now()
	if end := ended(t, w, cut.Session, cut.Run); !end.Success {
		t.Errorf("the run that was cut: %+v", end)
	}
	t.Logf("ready %s after the start, and the run is over after %s", ready.Sub(again).Round(time.Millisecond), time.Since(again).Round(time.Millisecond))
	call[api.Alarm](t, w, api.SetAlarm{ID: "second", Agent: a.ID, At: time.Now().UnixMicro(), Reason: "the second alarm"})
	send(t, w, a.ID, "hello")
	// The runs are those of two alarms, two greetings and the run that was cut off. A
	// restored wake must not start another one.
	awoken(t, w, a, woken)
	runs := map[string]bool{}
	for _, turn := range call[api.Turns](t, w, api.ListTurns{Agent: a.ID}).Turns {
		runs[turn.Run] = true
	}
	if len(runs) != 5 {
		t.Errorf("%d runs had turns, want 5", len(runs))
	}
	sound(t, w, a)
}

// awoken waits for the end of a run that a wake has started, other than the given one,
// and returns its id.
func awoken(t *testing.T, w *world, a api.Agent, other string) string {
	t.Helper()
	m := await(t, w, api.LoopStart{Session: a.Session}, func(m api.LoopStart) bool { return m.Kind == api.RunWake && m.Run != other })
	ended(t, w, a.Session, m.Run)
	return m.Run
}

// forgotten waits until the server in a data folder has removed all messages of a deleted
// key.
func forgotten(t *testing.T, dir, key string) {
	t.Helper()
	st, err := streams(t, dir).Stream(t.Context(), "KV_"+api.Coordination)
	if err != nil {
		t.Fatal(err)
	}
	if !until(t.Context(), 30*time.Second, func() bool {
		_, err := st.GetLastMsgForSubject(t.Context(), "$KV."+api.Coordination+"."+key)
		return errors.Is(err, jetstream.ErrMsgNotFound)
	}) {
		t.Fatalf("the marker of %s does not expire", key)
	}
}

// streams returns the streams of anima up in a data folder.
func streams(t testing.TB, dir string) jetstream.JetStream {
	t.Helper()
	nc, err := nats.Connect(endpoint(t, dir).NATS, nats.Token(token))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	return js
}

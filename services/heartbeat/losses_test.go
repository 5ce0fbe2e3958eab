package heartbeat_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/apptest"
	"github.com/anima-run/anima/pkg/bus"
	"github.com/anima-run/anima/pkg/host"
	"github.com/anima-run/anima/services/heartbeat"
)

// TestLostDatabase checks that heartbeat gets the agents, their schedules and their alarms
// from loop after its database was lost and the operator accepted the loss, and only once.
func TestLostDatabase(t *testing.T) {
	t.Parallel()
	data, server := t.TempDir(), apptest.Server(t)
	beat := api.Beat{Name: "yearly", Cron: "0 0 1 1 *", Reason: "plan"}
	asked := make(chan string, 100)
	loop := host.Define("loop", struct{}{}, nil, func(ctx context.Context, env *host.Env, _ struct{}) error {
		return env.Serve(ctx, bus.Reply(func(_ context.Context, m api.ListSchedules) (api.Schedules, error) {
			asked <- m.After
			agent := func(id string, beats ...api.Beat) api.Schedules {
				c := api.AgentChanged{Agent: id, Name: id, State: api.StateSleeping, Reason: "tired", SleepUntil: 1, Seq: 3, At: 1}
				return api.Schedules{Agents: []api.AgentSchedule{{State: c, Beats: beats}}}
			}
			if m.After == "" {
				page := agent("ada", beat)
				page.Next = "ada"
				return page, nil
			}
			return agent("bob"), nil
		}))
	})
	start := func(accept bool) *apptest.World {
		t.Helper()
		env := map[string]string{}
		if accept {
			env["ANIMA_ACCEPT_LOSS"] = time.Now().UTC().Format(time.RFC3339)
		}
		return apptest.Start(t, apptest.Options{Data: data, Server: server, Env: env}, heartbeat.Service, loop)
	}
	names := func(b *bus.Bus) (all []string) {
		t.Helper()
		for _, e := range call[api.Schedule](t, b, api.GetSchedule{}).Entries {
			all = append(all, e.Agent+" "+e.Beat.Name)
		}
		return all
	}
	w := start(false)
	call[api.Schedule](t, w.Bus, api.SetSchedule{Agent: "ada", Beats: []api.Beat{beat}})
	w.Stop()
	if err := os.RemoveAll(filepath.Join(data, "heartbeat")); err != nil {
		t.Fatal(err)
	}
	if len(asked) > 0 {
		t.Error("loop was asked without a loss")
	}

	w = start(true)
	woken := map[string]bool{}
	for requested := apptest.Watch[api.WakeRequested](t, w.Bus); len(woken) < 2; {
		wake := apptest.Next(t, requested, nil).Wake
		woken[wake.Agent] = true
		if wake.Cause != "alarm-1" || wake.Reason != "tired" {
			t.Errorf("got %+v, want the wake at the end of the sleep", wake)
		}
	}
	if diff := cmp.Diff([]string{"ada yearly"}, names(w.Bus)); diff != "" {
		t.Errorf("schedules after the loss (-want +got):\n%s", diff)
	}
	call[api.Wake](t, w.Bus, api.RequestWake{Agent: "bob", Cause: "creator-1"}) // bob is known
	call[api.Schedule](t, w.Bus, api.SetSchedule{Agent: "ada", Beats: []api.Beat{}})
	w.Stop()

	w = start(false)
	if got := names(w.Bus); got != nil {
		t.Errorf("after the next start the schedules are %v, want that ada has removed its own", got)
	}
}

// Package heartbeat owns schedules, alarms and all wakes. A wake is a key in the
// coordination bucket, one per agent and cause, that only this service creates. It must
// not run agents: loop turns wakes into runs.
package heartbeat

import (
	"context"
	"fmt"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"
	"github.com/anima-run/anima/pkg/cursor"
	"github.com/anima-run/anima/pkg/executor"
	"github.com/anima-run/anima/pkg/host"
	"github.com/anima-run/anima/pkg/outbox"
	"github.com/anima-run/anima/pkg/sqldb"
	"github.com/anima-run/anima/services/heartbeat/internal/schedule"
	"github.com/anima-run/anima/services/heartbeat/internal/sqlstore"
)

// Config holds the settings of the service.
type Config struct {
	Lease   time.Duration `env:"lease" help:"how long the lease of the clock is valid: after a crash of its holder, another replica fires due entries when the lease has expired; at least 1s"`
	History time.Duration `env:"history" help:"how long the history of ticks is kept, and so the ids of requests to run an entry; at least 1h"`
	Topups  time.Duration `env:"topup_every" help:"how often treasury is asked to buy credits for agents that are critical or dead; at least 1s"`
}

// Validate returns an error for a setting that cannot work.
func (c *Config) Validate() error {
	if c.Lease < bus.MinTTL {
		return fmt.Errorf("ANIMA_HEARTBEAT_LEASE is %s: use at least %s", c.Lease, bus.MinTTL)
	}
	if c.History < time.Hour {
		return fmt.Errorf("ANIMA_HEARTBEAT_HISTORY is %s: use at least 1h", c.History)
	}
	if c.Topups < time.Second {
		return fmt.Errorf("ANIMA_HEARTBEAT_TOPUP_EVERY is %s: use at least 1s", c.Topups)
	}
	return nil
}

// Service is the heartbeat service for a host.
var Service = host.Define("heartbeat", Config{Lease: 5 * time.Second, History: 30 * 24 * time.Hour, Topups: 5 * time.Minute}, sqlstore.Migrations(), run)

func run(ctx context.Context, env *host.Env, cfg Config) error {
	db, err := env.DB(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = db.Close() }() // everything is committed, and the process exits
	tel, err := newInstruments(env.Meter)
	if err != nil {
		return err
	}
	wakes, err := bus.OpenBucket[api.Wake](ctx, env.Bus)
	if err != nil {
		return err
	}
	leases, err := bus.OpenBucket[api.Lease](ctx, env.Bus)
	if err != nil {
		return err
	}
	relay := outbox.NewRelay(db, env.Bus, env.Log)
	store := sqlstore.New(db, announce)
	h := &handlers{store: store, wakes: wakes, bus: env.Bus, now: env.Now, tel: tel, trace: env.Tracer.Tracer("github.com/anima-run/anima/services/heartbeat")}
	clock := &scheduler{
		leases: leases, owner: env.Bus.Owner(), ttl: cfg.Lease, instance: env.Bus.Instance(), now: env.Now, log: env.Log,
		clock: schedule.NewClock(schedule.ClockConfig{
			Timeline: store, Wake: h.wakeDue, Now: env.Now, Log: env.Log, Keep: cfg.History,
			Note: func(ctx context.Context, f schedule.Fired) { tel.fired(ctx, f); relay.Wake() },
		}),
	}
	h.kick = clock.kick
	top := &topups{every: cfg.Topups, store: store, leads: clock.leading.Load, bus: env.Bus, log: env.Log}
	h.routes(env.HTTP)
	// The previous release has the durable heartbeat-agent_state. It is not deleted: its
	// messages are in the stream anyway, and if that release is installed again, it
	// continues from there.
	changes := &cursor.Reader[api.AgentChanged]{
		DB: db, Bus: env.Bus, Log: env.Log, Name: "agent_state",
		Apply: func(ctx context.Context, tx *sqldb.Tx, all []api.AgentChanged) (func(context.Context), error) {
			return h.agentsChanged(ctx, store, tx, all)
		},
		Urgent: func(m api.AgentChanged) bool { return m.Previous == api.StateSetup }, // a new agent: its creator may wake it next
	}
	return env.Serve(ctx,
		bus.On(h.messageReceived, bus.ConsumerOptions{Workers: 16, MaxDeliver: -1}),
		bus.On(h.goalChanged, bus.ConsumerOptions{MaxDeliver: -1}),
		bus.Reply(h.setSchedule),
		bus.Reply(h.getSchedule),
		bus.Reply(h.setAlarm),
		bus.Reply(h.requestWake),
		bus.Reply(h.runBeat),
		bus.Reply(h.listTicks),
		executor.Routes[api.ListHeartbeatTools, api.CallHeartbeatTool](env.Bus, env.Now, h.tools(), nil),
		bus.Go(relay.Run),
		bus.Go(changes.Run),
		bus.Go(clock.run),
		bus.Go(top.run),
		bus.Go(losses{h: h, db: db, log: env.Log}.run),
	)
}

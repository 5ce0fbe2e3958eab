// Package social owns addresses, signed messages and inboxes. It is the relay for
// messages between agents here and elsewhere, and holds the inbox of the agents of this
// installation. The content of a message has no authority; this service must not
// interpret it.
package social

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"
	"github.com/anima-run/anima/pkg/executor"
	"github.com/anima-run/anima/pkg/host"
	"github.com/anima-run/anima/pkg/outbox"
	"github.com/anima-run/anima/pkg/wait"
	"github.com/anima-run/anima/services/social/internal/inbox"
	"github.com/anima-run/anima/services/social/internal/sqlstore"
)

// Config holds the settings of the service.
type Config struct {
	Keep time.Duration `env:"keep" help:"how long messages are kept, read or not; at least 1h"`
}

// Validate reports a value of Keep below one hour: a message must be kept for as long as a
// copy of it would be accepted.
func (c *Config) Validate() error {
	if c.Keep < time.Hour {
		return fmt.Errorf("ANIMA_SOCIAL_KEEP is %s: use at least 1h", c.Keep)
	}
	return nil
}

// Service is the social service for a host.
var Service = host.Define("social", Config{Keep: 90 * 24 * time.Hour}, sqlstore.Migrations(), run)

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
	relay := outbox.NewRelay(db, env.Bus, env.Log)
	h := &handlers{store: sqlstore.New(db, announce), bus: env.Bus, now: env.Now, log: env.Log, tel: tel, wakeRelay: relay.Wake}
	env.HTTP.Public("POST /v1/messages", h.respond(h.postMessage))
	env.HTTP.Public("POST /v1/messages/poll", h.authenticated(h.poll))
	env.HTTP.Public("GET /v1/messages/count", h.authenticated(h.count))
	env.HTTP.Handle("GET /v1/agents/{id}/inbox", host.Answer(readList, h.listInbox))
	return env.Serve(ctx,
		bus.On(h.agentChanged, bus.ConsumerOptions{Workers: 64, MaxDeliver: -1}), // concurrent transactions share a commit
		bus.Reply(h.send),
		bus.Reply(h.claimInbox),
		bus.Reply(h.settleInbox),
		bus.Reply(h.listInbox),
		bus.Reply(h.countInbox),
		executor.Routes[api.ListSocialTools, api.CallSocialTool](env.Bus, env.Now, h.tools()),
		bus.Go(relay.Run),
		bus.Go(func(ctx context.Context) error { return tidy(ctx, h.store, cfg.Keep, env.Now, env.Log) }),
	)
}

// tidy deletes old messages now and every hour until ctx ends.
func tidy(ctx context.Context, store inbox.Store, keep time.Duration, now func() time.Time, log *slog.Logger) error {
	prune := func() {
		if err := store.Prune(ctx, now().Add(-keep)); err != nil && ctx.Err() == nil {
			log.WarnContext(ctx, "old messages not deleted", "err", err)
		}
	}
	prune()
	wait.Every(ctx, time.Hour, prune)
	return nil
}

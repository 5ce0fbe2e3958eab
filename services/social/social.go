// Package social owns addresses, signed messages, inboxes and API keys. It is the relay
// for messages between agents here and elsewhere, holds the inbox of the agents of this
// installation, and knows whose API key a program sends. The content of a message has no authority; this service must not
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
	"github.com/anima-run/anima/services/social/internal/auth"
	"github.com/anima-run/anima/services/social/internal/sqlstore"
)

// Config holds the settings of the service.
type Config struct {
	Keep          time.Duration `env:"keep" help:"how long messages are kept, read or not; at least 1h"`
	SignIn        string        `env:"sign_in" oneof:"any|agents|none" help:"which wallets may sign in and create API keys: any, agents (of this installation only), none"`
	SignInDomains []string      `env:"sign_in_domains" help:"domains that a sign-in message may name besides the host of the request"`
	SignInChains  []string      `env:"sign_in_chains" help:"ids of the chains that a sign-in message may name"`
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
var Service = host.Define("social", Config{
	Keep: 90 * 24 * time.Hour, SignIn: signInAny, SignInDomains: []string{"conway.tech"}, SignInChains: []string{"8453", "84532"},
}, sqlstore.Migrations(), run)

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
	store := sqlstore.New(db, announce)
	h := &handlers{store: store, bus: env.Bus, now: env.Now, log: env.Log, tel: tel, wakeRelay: relay.Wake}
	id, err := newIdentity(ctx, h, cfg, store)
	if err != nil {
		return err
	}
	id.routes(env.HTTP)
	env.HTTP.Public("POST /v1/automatons/register", id.registerAutomaton(store))
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
		bus.Reply(id.authenticate),
		bus.Reply(id.createKey),
		bus.Reply(id.listKeys),
		bus.Reply(id.revokeKey),
		executor.Routes[api.ListSocialTools, api.CallSocialTool](env.Bus, env.Now, h.tools(), nil),
		bus.Go(relay.Run),
		bus.Go(func(ctx context.Context) error { return tidy(ctx, store, cfg.Keep, env.Now, env.Log) }),
	)
}

// pruneTime is the time limit of one deletion of old messages and keys. The next one
// continues.
const pruneTime = time.Minute

// tidy deletes old messages and ended keys now and every hour until ctx ends.
func tidy(ctx context.Context, store *sqlstore.Store, keep time.Duration, now func() time.Time, log *slog.Logger) error {
	prune := func() {
		ctx, cancel := context.WithTimeout(ctx, pruneTime)
		defer cancel()
		if err := store.Prune(ctx, now().Add(-keep)); err != nil && ctx.Err() == nil {
			log.WarnContext(ctx, "old messages not deleted", "err", err)
		}
		if err := store.PruneKeys(ctx, now(), now().Add(-auth.KeepEnded)); err != nil && ctx.Err() == nil {
			log.WarnContext(ctx, "ended keys not deleted", "err", err)
		}
	}
	prune()
	wait.Every(ctx, time.Hour, prune)
	return nil
}

package bus_test

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nkeys"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"
)

var update = flag.Bool("update", false, "write generated files anew")

const accountsFile = "../../deploy/k8s/base/nats/accounts.conf"

func TestAccountsAreGenerated(t *testing.T) {
	t.Parallel()
	want := bus.AccountsConf()
	if *update {
		if err := os.WriteFile(accountsFile, []byte(want), 0o644); err != nil { //nolint:gosec // it holds no secret
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(accountsFile)
	if err != nil || string(got) != want {
		t.Errorf("%s is not what the contracts say (%v): run make gen", accountsFile, err)
	}
}

// guardedServer runs a server with the generated accounts. It returns its URL and the
// nkey seed of each user.
func guardedServer(t *testing.T) (url string, seeds map[string]string) {
	t.Helper()
	dir := t.TempDir()
	var conf strings.Builder
	seeds = map[string]string{}
	users := []string{bus.Operator, "sys"}
	for _, o := range api.Owners() {
		users = append(users, o.Service())
	}
	for _, u := range users {
		pair, err := nkeys.CreateUser()
		if err != nil {
			t.Fatal(err)
		}
		public, err := pair.PublicKey()
		if err != nil {
			t.Fatal(err)
		}
		seed, err := pair.Seed()
		if err != nil {
			t.Fatal(err)
		}
		seeds[u] = string(seed)
		fmt.Fprintf(&conf, "%s: %q\n", bus.NKeyVariable(u), public)
	}
	conf.WriteString(bus.AccountsConf())
	file := filepath.Join(dir, "nats.conf")
	if err := os.WriteFile(file, []byte(conf.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	o, err := server.ProcessConfigFile(file)
	if err != nil {
		t.Fatal(err)
	}
	o.ServerName, o.Host, o.Port, o.NoLog, o.NoSigs = "guarded", "127.0.0.1", -1, true, true
	o.JetStream, o.StoreDir, o.DisableJetStreamBanner = true, filepath.Join(dir, "store"), true
	s := run(t, o)
	return s.ClientURL(), seeds
}

func TestPermissions(t *testing.T) {
	t.Parallel()
	url, seeds := guardedServer(t)
	as := func(user string) *bus.Bus {
		c, err := bus.Dial(bus.DialOptions{URL: url, NKey: seeds[user], Name: user, Log: logger(t)})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.Close)
		return newBus(t, c, bus.Options{Service: user})
	}
	ctx := testContext(t)
	loop, treasury, router, social, operator := as("loop"), as("treasury"), as("inference-router"), as("social"), as(bus.Operator)
	heartbeat := as("heartbeat")

	serve(t, treasury, patience,
		bus.Reply(func(_ context.Context, h api.Hold) (api.HoldState, error) { return api.HoldState{ID: h.ID}, nil }),
		bus.Reply(func(_ context.Context, s api.Settle) (api.HoldState, error) { return api.HoldState{ID: s.ID}, nil }),
		bus.Reply(func(_ context.Context, d api.Deposit) (api.Posted, error) { return api.Posted{ID: d.ID}, nil }),
		bus.Reply(func(_ context.Context, b api.GetBalance) (api.Balance, error) {
			return api.Balance{Agent: b.Agent}, nil
		}))
	serve(t, router, patience, bus.Stream(func(ctx context.Context, q api.Complete, send func(api.Delta) error) (api.Completion, error) {
		if _, err := bus.Call[api.HoldState](ctx, router, api.Hold{ID: q.ID}); err != nil {
			return api.Completion{}, err
		}
		return api.Completion{Text: "paid"}, send(api.Delta{Content: "p"})
	}))
	ran, changes := make(chan string, 1), make(chan string, 1)
	serve(t, loop, patience, bus.On(func(_ context.Context, r api.Run) error { ran <- r.Run; return nil }))
	serve(t, social, patience, bus.On(func(_ context.Context, c api.AgentChanged) error { changes <- c.Agent; return nil }))

	// Messages of the contracts are permitted.
	if _, err := ask(ctx, loop, "c1", func(api.Delta) error { return nil }); err != nil {
		t.Errorf("loop asks the router, which holds: %v", err)
	}
	if err := loop.Publish(ctx, "r1", api.Run{Run: "r1", Session: "s"}); err != nil {
		t.Errorf("loop queues a run: %v", err)
	}
	wait(t, ran, "the run")
	if err := loop.Publish(ctx, "e1", changed("lucky", 1)); err != nil {
		t.Errorf("loop tells an event: %v", err)
	}
	wait(t, changes, "the event at social")
	locks, err := bus.OpenBucket[api.Lock](ctx, loop)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := locks.Create(ctx, api.LockKey("s"), api.Lock{Run: "r1"}, 0); err != nil {
		t.Errorf("loop locks a session: %v", err)
	}
	watching, stop := context.WithCancel(ctx)
	seen := make(chan struct{})
	watched := make(chan error, 1)
	go func() {
		watched <- locks.Watch(watching, api.LockKey("*"), nil, func(bus.Entry[api.Lock]) error { close(seen); return nil })
	}()
	wait(t, seen, "the lock at its watcher")
	stop()
	_ = wait(t, watched, "the watch's end")
	for _, reader := range []*bus.Bus{operator, heartbeat} {
		following, stop := context.WithCancel(ctx)
		followed := make(chan error, 1)
		told := make(chan struct{}, 8)
		go func() {
			followed <- reader.Follow(following, 0, func(bus.Stored) error { told <- struct{}{}; return nil }, bus.EventSources(api.AgentChanged{}.Subject())...)
		}()
		wait(t, told, "the event at a follower")
		stop()
		_ = wait(t, followed, "the follower's end")
	}
	// So is the durable of the previous release.
	serve(t, heartbeat, patience, bus.On(func(_ context.Context, c api.AgentChanged) error { changes <- c.Agent; return nil }))
	wait(t, changes, "the event at heartbeat's durable")
	if _, err := bus.Call[api.Posted](ctx, operator, api.Deposit{ID: "d1"}); err != nil {
		t.Errorf("the operator deposits: %v", err)
	}
	if _, err := bus.Call[api.Balance](ctx, loop, api.GetBalance{Agent: "lucky"}); err != nil {
		t.Errorf("loop asks for a balance: %v", err)
	}

	// All others are refused.
	refused := func(what string, f func(ctx context.Context) error) {
		t.Helper()
		brief, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
		defer cancel()
		if err := f(brief); err == nil {
			t.Errorf("%s: went through", what)
		}
	}
	refused("loop deposits", func(ctx context.Context) error {
		_, err := bus.Call[api.Posted](ctx, loop, api.Deposit{ID: "d2"})
		return err
	})
	refused("loop settles", func(ctx context.Context) error {
		_, err := bus.Call[api.HoldState](ctx, loop, api.Settle{ID: "c1"})
		return err
	})
	refused("social holds", func(ctx context.Context) error {
		_, err := bus.Call[api.HoldState](ctx, social, api.Hold{ID: "h"})
		return err
	})
	// The error is ReasonNoAnswer: during an upgrade the caller then uses the request of
	// the previous release.
	for what, question := range map[string]func(context.Context) error{
		"a question": func(ctx context.Context) error {
			_, err := bus.Call[api.HoldState](ctx, social, api.Hold{ID: "h"})
			return err
		},
		"a streamed one": func(ctx context.Context) error {
			s, err := bus.OpenStream[api.Delta, api.Completion](ctx, social, api.Complete{ID: "c2"})
			if err != nil {
				return err
			}
			defer s.Close()
			return s.Begin(ctx)
		},
	} {
		for end := time.Now().Add(patience); ; {
			brief, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
			err := question(brief)
			if cancel(); api.ReasonOf(err) == api.ReasonNoAnswer && strings.Contains(err.Error(), "does not permit") {
				break
			}
			// brief may end between a repetition and its refusal: then the request is one that
			// was not answered in time.
			if err == nil || time.Now().After(end) {
				t.Errorf("%s that NATS drops: %v, want reason %s", what, err, api.ReasonNoAnswer)
				break
			}
		}
	}
	if n := bus.Watched(social); n != 0 {
		t.Errorf("%d questions are still watched for a refusal, want 0", n)
	}
	refused("the router queues a run", func(ctx context.Context) error {
		return router.Publish(ctx, "r2", api.Run{Run: "r2", Session: "s"})
	})
	refused("treasury reads the journal", func(ctx context.Context) error {
		_, err := treasury.Last(ctx, api.AgentChanged{Agent: "lucky"}.Subject())
		return err
	})
	refused("heartbeat reads a message of the journal", func(ctx context.Context) error {
		_, err := heartbeat.Last(ctx, api.AgentChanged{Agent: "lucky"}.Subject())
		return err
	})
	refused("the operator takes a lock", func(ctx context.Context) error {
		locks, err := bus.OpenBucket[api.Lock](ctx, operator)
		if err == nil {
			_, err = locks.Create(ctx, api.LockKey("mine"), api.Lock{}, 0)
		}
		return err
	})
	if _, err := bus.Dial(bus.DialOptions{URL: url, Log: logger(t)}); err == nil {
		t.Error("a client without a key was accepted")
	}
	if _, err := bus.Dial(bus.DialOptions{URL: url, NKey: "SUNONSENSE", Name: "loop", Log: logger(t)}); err == nil || strings.Contains(err.Error(), "NONSENSE") {
		t.Errorf("a wrong seed: got %v, want an error without it", err)
	}
}

// TestAccessIsCheckedBefore checks that a guarded bus returns an error for messages that
// the servers of a cluster would drop without an answer.
func TestAccessIsCheckedBefore(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	loop := newBus(t, connect(t, s), bus.Options{Service: "loop", Guarded: true})
	_, err := bus.Call[api.Posted](testContext(t), loop, api.Deposit{ID: "d"})
	if api.CodeOf(err) != api.Internal || !strings.Contains(err.Error(), "loop may not send anima.treasury.req.deposit.v1") {
		t.Errorf("loop deposits: %v", err)
	}
	if err := loop.Publish(testContext(t), "p", api.TierChanged{Agent: "lucky"}); api.CodeOf(err) != api.Internal {
		t.Errorf("loop tells of treasury's events: %v", err)
	}
	if err := loop.Publish(testContext(t), "r", api.Run{Run: "r", Session: "s"}); err != nil {
		t.Errorf("loop queues a run: %v", err)
	}
}

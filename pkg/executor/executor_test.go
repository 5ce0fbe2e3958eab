package executor_test

import (
	"context"
	"crypto/ed25519"
	"encoding/json"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/api/catalog"
	"github.com/anima-run/anima/pkg/apptest"
	"github.com/anima-run/anima/pkg/bus"
	"github.com/anima-run/anima/pkg/executor"
	"github.com/anima-run/anima/pkg/host"
)

const at = 1_790_000_000_000_000

func now() time.Time { return time.UnixMicro(at) }

// signer is the part of policy that an executor uses.
func signer(key func() ed25519.PrivateKey, asked *atomic.Int64) host.Service {
	return host.Define("policy", struct{}{}, nil, func(ctx context.Context, env *host.Env, _ struct{}) error {
		return env.Serve(ctx, bus.Reply(func(context.Context, api.ListKeys) (api.Keys, error) {
			asked.Add(1)
			public, _ := key().Public().(ed25519.PublicKey)
			return api.Keys{Keys: [][]byte{public}}, nil
		}))
	})
}

// allowed returns a call with policy's token for it.
func allowed(t *testing.T, key ed25519.PrivateKey, args string, bend func(*api.Grant)) api.Invocation {
	t.Helper()
	hash, err := api.ArgsHash(json.RawMessage(args))
	if err != nil {
		t.Fatal(err)
	}
	g := api.Grant{
		Decision: "d1", Agent: "ada", Turn: "r.1", Index: 2, Tool: "modify_heartbeat", ArgsHash: hash,
		By: api.Principal{Kind: api.Creator}, Expires: at + 60_000_000,
	}
	if bend != nil {
		bend(&g)
	}
	token, err := g.Sign(key)
	if err != nil {
		t.Fatal(err)
	}
	return api.Invocation{Agent: "ada", Turn: "r.1", Index: 2, Tool: "modify_heartbeat", Args: json.RawMessage(args), Key: "r.1.2", Token: token, At: at, Deadline: at + 3_600_000_000}
}

const good = `{"action":"remove","name":"dawn"}`

func TestCall(t *testing.T) {
	t.Parallel()
	_, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	_, other, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	var current atomic.Pointer[ed25519.PrivateKey]
	current.Store(&key)
	var asked, ran atomic.Int64
	b := apptest.Bus(t, signer(func() ed25519.PrivateKey { return *current.Load() }, &asked))
	x := executor.New(b, api.Heartbeat, now, map[string]executor.Func{
		"modify_heartbeat": func(_ context.Context, c executor.Call) (string, error) {
			ran.Add(1)
			if c.Agent != "ada" || c.Key != "r.1.2" || c.At != at || c.By.Kind != api.Creator {
				t.Errorf("called with %+v", c)
			}
			return c.Args.String("action") + " " + c.Args.String("name"), nil
		},
	})
	if got := x.List().Tools; len(got) != 1 || got[0] != "modify_heartbeat" {
		t.Errorf("listed %v", got)
	}
	for range 2 {
		got, err := x.Call(t.Context(), allowed(t, key, good, nil))
		if err != nil || got.Text != "remove dawn" {
			t.Fatalf("got %+v, %v", got, err)
		}
	}
	if asked.Load() != 1 {
		t.Errorf("policy was asked %d times for its keys, want once", asked.Load())
	}
	before := ran.Load()
	for name, c := range map[string]struct {
		m    api.Invocation
		want api.Code
	}{
		"no token":         {func() api.Invocation { m := allowed(t, key, good, nil); m.Token = ""; return m }(), api.Denied},
		"a stranger's":     {allowed(t, other, good, nil), api.Denied},
		"another agent":    {allowed(t, key, good, func(g *api.Grant) { g.Agent = "bob" }), api.Denied},
		"another turn":     {allowed(t, key, good, func(g *api.Grant) { g.Turn = "r.2" }), api.Denied},
		"another call":     {allowed(t, key, good, func(g *api.Grant) { g.Index = 3 }), api.Denied},
		"another tool":     {allowed(t, key, good, func(g *api.Grant) { g.Tool = "heartbeat_ping" }), api.Denied},
		"other arguments":  {allowed(t, key, good, func(g *api.Grant) { g.ArgsHash = strings.Repeat("0", 64) }), api.Denied},
		"another key":      {func() api.Invocation { m := allowed(t, key, good, nil); m.Key = "r.1.3"; return m }(), api.Denied},
		"no key":           {func() api.Invocation { m := allowed(t, key, good, nil); m.Key = ""; return m }(), api.Denied},
		"expired":          {allowed(t, key, good, func(g *api.Grant) { g.Expires = at - 1 }), api.Conflict},
		"a tool not here":  {func() api.Invocation { m := allowed(t, key, good, nil); m.Tool = "heartbeat_ping"; return m }(), api.NotFound},
		"bad arguments":    {allowed(t, key, `{"action":"fly","name":"dawn"}`, nil), api.Invalid},
		"no arguments":     {allowed(t, key, `{}`, nil), api.Invalid},
		"a list":           {allowed(t, key, `[]`, nil), api.Invalid},
		"not even JSON":    {func() api.Invocation { m := allowed(t, key, good, nil); m.Args = json.RawMessage(`{`); return m }(), api.Invalid},
		"too many answers": {allowed(t, key, `{"action":"remove","name":"dawn","Name":"dusk"}`, nil), api.Invalid},
	} {
		got, err := x.Call(t.Context(), c.m)
		if api.CodeOf(err) != c.want {
			t.Errorf("%s: %+v, %v, want %s", name, got, err, c.want)
		}
		if name == "expired" && !strings.Contains(api.Wire(err).Next, "clocks") {
			t.Errorf("an expired token: got %v, want that the error names the clocks", err)
		}
	}
	if ran.Load() != before {
		t.Error("a refused call was executed")
	}
	current.Store(&other) // policy has another key from here on
	if got, err := x.Call(t.Context(), allowed(t, other, good, nil)); err != nil {
		t.Errorf("with policy's new key: %+v, %v", got, err)
	}
}

// TestDeadline checks that the call returns at its deadline and that the tool is
// cancelled.
func TestDeadline(t *testing.T) {
	t.Parallel()
	_, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	var asked atomic.Int64
	b := apptest.Bus(t, signer(func() ed25519.PrivateKey { return key }, &asked))
	x := executor.New(b, api.Heartbeat, now, map[string]executor.Func{
		"modify_heartbeat": func(ctx context.Context, _ executor.Call) (string, error) {
			<-ctx.Done()
			return "", ctx.Err()
		},
	})
	m := allowed(t, key, good, nil)
	m.Deadline = time.Now().Add(-time.Second).UnixMicro() // expired before the call
	if _, err := x.Call(t.Context(), m); err == nil {
		t.Error("a call whose time is over was answered")
	}
}

func TestForeignTool(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"check_credits", "fly"} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("heartbeat executes %s", name)
				}
			}()
			executor.New(nil, api.Heartbeat, now, map[string]executor.Func{name: nil})
		}()
	}
}

// FuzzCall checks that no arguments make an executor panic, and that a tool runs only
// with arguments that match its schema (docs/reference/platform.md, two readings).
func FuzzCall(f *testing.F) {
	for _, s := range []string{good, `{}`, `null`, `[]`, `{"action":"add","name":"x","schedule":5}`, `{"action":"add","action":"remove","name":"x"}`, "\xff", `{"a":1}{}`} {
		f.Add(s)
	}
	key := ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize))
	var asked atomic.Int64
	b := apptest.Bus(f, signer(func() ed25519.PrivateKey { return key }, &asked))
	spec, _ := catalog.Named("modify_heartbeat")
	var ran atomic.Int64
	x := executor.New(b, api.Heartbeat, now, map[string]executor.Func{
		"modify_heartbeat": func(context.Context, executor.Call) (string, error) { ran.Add(1); return "", nil },
	})
	f.Fuzz(func(t *testing.T, args string) {
		before := ran.Load()
		m := api.Invocation{Agent: "ada", Turn: "r.1", Index: 2, Tool: "modify_heartbeat", Args: json.RawMessage(args), Key: "r.1.2", At: at}
		if hash, err := api.ArgsHash(m.Args); err == nil {
			token, err := api.Grant{Agent: "ada", Turn: "r.1", Index: 2, Tool: "modify_heartbeat", ArgsHash: hash, Expires: at}.Sign(key)
			if err != nil {
				t.Fatal(err)
			}
			m.Token = token
		}
		_, err := x.Call(t.Context(), m)
		_, unfit := spec.Parse(m.Args)
		if did := ran.Load() > before; did != (err == nil) || did && unfit != nil {
			t.Errorf("%q: ran %t, %v; the schema says %v", args, did, err, unfit)
		}
	})
}

package policy_test

import (
	"context"
	"crypto/ed25519"
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/apptest"
	"github.com/anima-run/anima/pkg/bus"
	"github.com/anima-run/anima/services/policy"
)

func question(turn string, index int, tool, args string) api.Evaluate {
	return api.Evaluate{
		Agent: "lucky", Session: "lucky-main", Run: "r", Turn: turn, Index: index, Tool: tool, Args: json.RawMessage(args),
		By: api.Principal{Kind: api.Creator}, Workspace: "/data/lucky", Tools: []string{"exec", "read_file", "send_message"},
	}
}

func ask[Resp any](t *testing.T, b *bus.Bus, m api.Message) (Resp, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	return bus.Call[Resp](ctx, b, m)
}

func must[Resp any](t *testing.T, b *bus.Bus, m api.Message) Resp {
	t.Helper()
	v, err := ask[Resp](t, b, m)
	if err != nil {
		t.Fatalf("%T: %v", m, err)
	}
	return v
}

func keys(t *testing.T, b *bus.Bus) []ed25519.PublicKey {
	t.Helper()
	var out []ed25519.PublicKey
	for _, k := range must[api.Keys](t, b, api.ListKeys{}).Keys {
		out = append(out, k)
	}
	return out
}

func TestAllows(t *testing.T) {
	t.Parallel()
	b := apptest.Bus(t, policy.Service)
	q := question("r.1", 0, "exec", `{"command":"git status"}`)
	d := must[api.Decision](t, b, q)
	if d.Action != api.Allow || d.Code != "ALLOWED" || d.Authority != 100 || len(d.Evaluated) == 0 {
		t.Fatalf("decision: %+v", d)
	}
	g, err := api.VerifyGrant(d.Token, keys(t, b)...)
	if err != nil {
		t.Fatal(err)
	}
	hash, err := api.ArgsHash(q.Args)
	if err != nil {
		t.Fatal(err)
	}
	want := api.Grant{Decision: d.ID, Agent: "lucky", Turn: "r.1", Tool: "exec", ArgsHash: hash, By: q.By, Expires: g.Expires}
	if left := time.Until(time.UnixMicro(g.Expires)); g != want || left <= 0 || left > time.Minute {
		t.Errorf("grant: %+v, want %+v for at most a minute", g, want)
	}
	again := question("r.1", 0, "exec", ` { "command" : "git status" } `)
	if d2 := must[api.Decision](t, b, again); d2.ID != d.ID || d2.Token == "" {
		t.Errorf("asked again: %+v, want the same decision with a token", d2)
	}
	if _, err := ask[api.Decision](t, b, question("r.1", 0, "exec", `{"command":"ls"}`)); api.CodeOf(err) != api.Conflict {
		t.Errorf("other arguments: %v, want conflict", err)
	}
	list := must[api.Decisions](t, b, api.ListDecisions{Turn: "r.1"}).Decisions
	if len(list) != 1 || list[0].ID != d.ID || list[0].Token != "" {
		t.Errorf("list: %+v", list)
	}
}

func TestRefuses(t *testing.T) {
	t.Parallel()
	b := apptest.Bus(t, policy.Service)
	peer := question("p.1", 0, "exec", `{"command":"ls"}`)
	peer.By = api.Principal{Kind: api.Peer, Address: "0x1"}
	for code, q := range map[string]api.Evaluate{
		"FORBIDDEN_COMMAND": question("d.1", 0, "exec", `{"command":"rm -rf /"}`),
		"VALIDATION_FAILED": question("d.2", 0, "exec", `{"cmd":"ls"}`),
		"UNKNOWN_TOOL":      question("d.3", 0, "fly", `{}`),
		"TOOL_NOT_GRANTED":  question("d.4", 0, "sleep", `{"duration_seconds":1}`),
		"AUTHORITY_TOO_LOW": peer,
	} {
		d := must[api.Decision](t, b, q)
		if d.Action != api.Deny || d.Code != code || d.Token != "" || d.Message == "" {
			t.Errorf("%s: got %+v", code, d)
		}
		if d2 := must[api.Decision](t, b, q); d2.ID != d.ID || d2.Action != api.Deny || d2.Token != "" {
			t.Errorf("%s asked again: %+v", code, d2)
		}
	}
	for name, q := range map[string]api.Evaluate{
		"not JSON": question("i.1", 0, "exec", `{`), "no tool": question("i.2", 0, "", `{}`), "no turn": question("", 0, "exec", `{}`),
		"too large": question("i.3", 0, "exec", `{"command":"`+strings.Repeat("x", 256<<10)+`"}`),
	} {
		if q.Args != nil && !json.Valid(q.Args) {
			q.Args = json.RawMessage(`"not an object"`)
		}
		d, err := ask[api.Decision](t, b, q)
		if api.CodeOf(err) != api.Invalid && d.Action != api.Deny {
			t.Errorf("%s: got %+v, %v", name, d, err)
		}
	}
	if r := must[api.Rules](t, b, api.ListRules{}); r.Version == "" || len(r.Rules) < 10 {
		t.Errorf("rules: %+v", r)
	}
	if _, err := ask[api.Decisions](t, b, api.ListDecisions{Limit: -1}); api.CodeOf(err) != api.Invalid {
		t.Errorf("a negative limit: %v", err)
	}
}

// TestRate tests that the rate of messages counts stored decisions, so a restart does not
// reset it.
func TestRate(t *testing.T) {
	t.Parallel()
	s, data := apptest.Server(t), t.TempDir()
	w := apptest.Start(t, apptest.Options{Server: s, Data: data}, policy.Service)
	args := `{"to_address":"0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed","content":"hi"}`
	for i := range 100 {
		if d := must[api.Decision](t, w.Bus, question("m.1", i, "send_message", args)); d.Action != api.Allow {
			t.Fatalf("message %d: %+v", i, d)
		}
	}
	w.Stop()
	w = apptest.Start(t, apptest.Options{Server: s, Data: data}, policy.Service)
	if d := must[api.Decision](t, w.Bus, question("m.2", 0, "send_message", args)); d.Code != "RATE_LIMIT_MESSAGES" {
		t.Errorf("the 101st: %+v", d)
	}
}

// TestRateOfConcurrentCalls tests that concurrent calls of two replicas do not exceed a
// rate together.
func TestRateOfConcurrentCalls(t *testing.T) {
	t.Parallel()
	a := twoReplicas(t)
	var wg sync.WaitGroup
	var allowed, refused atomic.Int32
	for i := range 20 {
		wg.Go(func() {
			q := question(fmt.Sprintf("g%d.1", i), 0, "update_genesis_prompt", `{"new_prompt":"be good","reason":"better"}`)
			q.Tools = []string{"update_genesis_prompt"}
			switch d, err := ask[api.Decision](t, a.Bus, q); {
			case err != nil:
				t.Errorf("ask: %v", err)
			case d.Action == api.Allow:
				allowed.Add(1)
			case d.Code == "RATE_LIMIT_GENESIS":
				refused.Add(1)
			default:
				t.Errorf("got %+v, want allowed or RATE_LIMIT_GENESIS", d)
			}
		})
	}
	wg.Wait()
	if allowed.Load() != 1 || refused.Load() != 19 {
		t.Errorf("got %d allowed and %d refused, want 1 and 19", allowed.Load(), refused.Load())
	}
}

// TestKey tests that replicas and restarts sign with the same key: the configured one, or
// the one in the data folder.
func TestKey(t *testing.T) {
	t.Parallel()
	s, data := apptest.Server(t), t.TempDir()
	first := apptest.Start(t, apptest.Options{Server: s, Data: data}, policy.Service)
	made := keys(t, first.Bus)
	d := must[api.Decision](t, first.Bus, question("k.1", 0, "read_file", `{"path":"a"}`))
	first.Stop()
	second := apptest.Start(t, apptest.Options{Server: s, Data: data}, policy.Service)
	if _, err := api.VerifyGrant(d.Token, keys(t, second.Bus)...); err != nil || len(made) != 1 {
		t.Errorf("after a restart: %v", err)
	}
	seed := strings.Repeat("0a", ed25519.SeedSize)
	var wg sync.WaitGroup
	var found [2][]ed25519.PublicKey
	for i := range found {
		w := apptest.Start(t, apptest.Options{Env: map[string]string{"ANIMA_POLICY_SIGNING_KEY": seed}}, policy.Service)
		wg.Go(func() { found[i] = keys(t, w.Bus) })
	}
	wg.Wait()
	if len(found[0]) != 1 || !found[0][0].Equal(found[1][0]) {
		t.Errorf("two installations with one key: %v", found)
	}
	for _, bad := range []string{"zz", "0a0b"} {
		env := map[string]string{"ANIMA_POLICY_SIGNING_KEY": bad}
		err := policy.Service.Check(func(k string) (string, bool) { v, ok := env[k]; return v, ok })
		if err == nil || !strings.Contains(err.Error(), "ANIMA_POLICY_SIGNING_KEY") || strings.Contains(err.Error(), bad) {
			t.Errorf("key %q: %v, want the variable named and not its value", bad, err)
		}
	}
}

// twoReplicas starts two replicas with the same database and key, and returns the world of
// one.
func twoReplicas(t *testing.T) *apptest.World {
	t.Helper()
	s, data := apptest.Server(t), t.TempDir()
	env := map[string]string{"ANIMA_POLICY_SIGNING_KEY": strings.Repeat("0b", ed25519.SeedSize)}
	a := apptest.Start(t, apptest.Options{Server: s, Data: data, Env: env}, policy.Service)
	apptest.Start(t, apptest.Options{Server: s, Data: data, Env: maps.Clone(env)}, policy.Service)
	return a
}

// TestReplicas tests that two replicas record one decision for concurrent identical
// requests.
func TestReplicas(t *testing.T) {
	t.Parallel()
	a := twoReplicas(t)
	var wg sync.WaitGroup
	var mu sync.Mutex
	ids := map[string]bool{}
	for range 32 {
		wg.Go(func() {
			d, err := ask[api.Decision](t, a.Bus, question("two.1", 0, "read_file", `{"path":"a"}`))
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				t.Errorf("ask: %v", err)
			}
			ids[d.ID] = true
		})
	}
	wg.Wait()
	if len(ids) != 1 {
		t.Errorf("%d decisions on one call", len(ids))
	}
}

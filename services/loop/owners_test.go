package loop

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/apptest"
	"github.com/anima-run/anima/pkg/bus"
	"github.com/anima-run/anima/pkg/host"

	"github.com/anima-run/anima/services/loop/internal/engine"
)

// treasury returns a service that lists the tools in list and executes them with
// called.
func treasury(list []string, called func(api.Invocation) (api.Returned, error)) host.Service {
	return host.Define("treasury", struct{}{}, nil, func(ctx context.Context, env *host.Env, _ struct{}) error {
		return env.Serve(
			ctx,
			bus.Reply(func(context.Context, api.ListTreasuryTools) (api.ToolList, error) {
				return api.ToolList{Tools: list}, nil
			}),
			bus.Reply(func(_ context.Context, m api.CallTreasuryTool) (api.Returned, error) { return called(m.Invocation) }),
		)
	})
}

// TestOwners tests that the tools in an owner's answer are offered, that the last
// answer of an unavailable owner is kept, and that a call is sent with all its fields.
func TestOwners(t *testing.T) {
	t.Parallel()
	calls := make(chan api.Invocation, 2)
	w := apptest.Start(t, apptest.Options{}, treasury([]string{"topup_credits"}, func(m api.Invocation) (api.Returned, error) {
		calls <- m
		return api.Returned{Text: "done"}, nil
	}))
	o := newOwners(w.Bus, apptest.Log(t))
	tools := map[string]engine.Tool{}
	for _, tool := range o.tools() {
		tools[tool.Name] = tool
	}
	offered := func() []string {
		got := []string{}
		for _, name := range []string{"check_credits", "topup_credits", "heartbeat_ping", "list_models", "x402_fetch"} {
			if tools[name].Offered(engine.Agent{}) {
				got = append(got, name)
			}
		}
		return got
	}
	if diff := cmp.Diff([]string{"check_credits", "heartbeat_ping", "list_models"}, offered()); diff != "" {
		t.Errorf("before an owner answered (-want +got):\n%s", diff)
	}
	o.askOne(t.Context(), api.Treasury, api.ListTreasuryTools{})
	if diff := cmp.Diff([]string{"topup_credits", "heartbeat_ping", "list_models"}, offered()); diff != "" {
		t.Errorf("after treasury answered (-want +got):\n%s", diff)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	end, _ := ctx.Deadline()
	c := engine.Call{Agent: engine.Agent{ID: "ada"}, Turn: "r.1", Index: 2, Key: "r.1.2", Args: json.RawMessage(`{"amount_usd":5}`), At: 7, Token: "e30.c2ln"}
	out, err := tools["topup_credits"].Run(ctx, c)
	if err != nil || out.Text != "done" {
		t.Fatalf("called: %+v, %v", out, err)
	}
	want := api.Invocation{Agent: "ada", Turn: "r.1", Index: 2, Tool: "topup_credits", Args: c.Args, Key: "r.1.2", Token: "e30.c2ln", At: 7, Deadline: end.UnixMicro()}
	if diff := cmp.Diff(want, <-calls); diff != "" {
		t.Errorf("treasury was asked (-want +got):\n%s", diff)
	}
	if _, err := tools["topup_credits"].Run(ctx, engine.Call{Args: json.RawMessage(`{"amount_usd":1}`)}); err == nil || len(calls) != 0 {
		t.Errorf("arguments that do not fit reached treasury: %v", err)
	}
	w.Stop()
	gone, over := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer over()
	o.askOne(gone, api.Treasury, api.ListTreasuryTools{})
	if diff := cmp.Diff([]string{"topup_credits", "heartbeat_ping", "list_models"}, offered()); diff != "" {
		t.Errorf("with treasury away (-want +got):\n%s", diff)
	}
}

// TestPreviousOwner tests that a tool of an owner whose release does not execute it is
// offered and fails with an error that names the owner.
func TestPreviousOwner(t *testing.T) {
	t.Parallel()
	social := host.Define("social", struct{}{}, nil, func(ctx context.Context, env *host.Env, _ struct{}) error {
		return env.Serve(ctx, bus.Reply(func(context.Context, api.Send) (api.Sent, error) { return api.Sent{ID: "m1"}, nil }))
	})
	o := newOwners(apptest.Bus(t, social), apptest.Log(t))
	// The call is repeated until the time is over. It must be long beside one round trip:
	// an end during one leaves open whether the request was received.
	within := func() context.Context {
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		t.Cleanup(cancel)
		return ctx
	}
	o.askOne(within(), api.Social, api.ListSocialTools{})
	for _, tool := range o.tools() {
		if tool.Name != "send_message" {
			continue
		}
		if !tool.Offered(engine.Agent{}) {
			t.Error("send_message is not offered")
		}
		_, err := tool.Run(within(), engine.Call{Args: json.RawMessage(`{"to_address":"0xBE","content":"hi"}`)})
		if api.CodeOf(err) != api.Unavailable || api.ReasonOf(err) != api.ReasonNoAnswer || !strings.Contains(err.Error(), "social does not execute send_message") {
			t.Errorf("call: got %v, want that social does not execute it", err)
		}
		return
	}
	t.Error("there is no tool send_message")
}

package social_test

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/crypto"
	"github.com/google/go-cmp/cmp"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/apptest"
	"github.com/anima-run/anima/pkg/bus"
	"github.com/anima-run/anima/pkg/executor/executortest"
	"github.com/anima-run/anima/pkg/host"
	"github.com/anima-run/anima/services/social"
)

// treasury is a fake of treasury that signs messages of the agent alice with w, and
// refuses those of other agents.
func treasury(t *testing.T, w wallet) host.Service {
	t.Helper()
	return host.Define("treasury", struct{}{}, nil, func(ctx context.Context, env *host.Env, _ struct{}) error {
		return env.Serve(ctx, bus.Reply(func(_ context.Context, m api.SignMessage) (api.Signature, error) {
			if m.Agent != "alice" {
				return api.Signature{}, api.Errorf(api.NotFound, "no wallet of %s", m.Agent)
			}
			hash := crypto.Keccak256Hash([]byte(m.Content)).Hex()
			return api.Signature{From: w.address, Signature: w.sign(t, "Conway:send:"+wallet{address: m.To}.lower()+":"+hash+":"+m.SignedAt)}, nil
		}))
	})
}

// allowed returns a tool call of a completion at the given time, with a token of policy.
func allowed(t *testing.T, agent, tool string, args map[string]string, at time.Time) api.CallSocialTool {
	t.Helper()
	text, err := json.Marshal(args)
	if err != nil {
		t.Fatal(err)
	}
	return api.CallSocialTool{Invocation: executortest.Allowed(t, api.Invocation{
		Agent: agent, Turn: "r.1", Tool: tool, Args: text, At: at.UnixMicro(),
	})}
}

// TestSendMessageTool tests that a repeated call sends one message, which is signed with
// the time of the completion, and that a call without a token or a signature sends none.
func TestSendMessageTool(t *testing.T) {
	t.Parallel()
	alice, bob := newWallet(t), newWallet(t)
	b := apptest.Bus(t, social.Service, executortest.Policy(), treasury(t, alice))
	register(t, b, "bob", bob)
	if diff := cmp.Diff([]string{"send_message"}, call[api.ToolList](t, b, api.ListSocialTools{}).Tools); diff != "" {
		t.Errorf("tools (-want +got):\n%s", diff)
	}
	at := time.Now()
	args := map[string]string{"to_address": bob.address, "content": "hi", "reply_to": "m0"}
	var first api.Returned
	for i := range 2 {
		got := call[api.Returned](t, b, allowed(t, "alice", "send_message", args, at))
		if i == 0 {
			first = got
		}
		if got != first {
			t.Errorf("repeated call: got %q, want %q", got.Text, first.Text)
		}
	}
	got := call[api.Inbox](t, b, api.ListInbox{Agent: "bob", Status: "received"}).Messages
	if len(got) != 1 {
		t.Fatalf("got %d messages, want 1", len(got))
	}
	m := got[0]
	want := api.InboxMessage{
		ID: m.ID, From: alice.address, To: bob.address, Content: "hi", SignedAt: iso(at), Signature: m.Signature, ReplyTo: "m0",
		Status: "received", ReceivedAt: m.ReceivedAt,
	}
	if diff := cmp.Diff(want, m); diff != "" {
		t.Errorf("received (-want +got):\n%s", diff)
	}
	if first.Text != "sent as "+m.ID {
		t.Errorf("result: got %q, want %q", first.Text, "sent as "+m.ID)
	}

	unsigned := allowed(t, "carol", "send_message", args, at)
	forged := allowed(t, "alice", "send_message", args, at.Add(time.Millisecond))
	forged.Agent = "carol"
	for name, c := range map[string]struct {
		m    api.CallSocialTool
		want api.Code
	}{
		"treasury does not sign": {unsigned, api.NotFound},
		"another agent's token":  {forged, api.Denied},
		"no recipient":           {allowed(t, "alice", "send_message", map[string]string{"content": "hi"}, at), api.Invalid},
		"an old completion":      {allowed(t, "alice", "send_message", args, at.Add(-time.Hour)), api.Invalid},
		"another tool":           {allowed(t, "alice", "message_child", args, at), api.NotFound},
	} {
		if _, err := bus.Call[api.Returned](t.Context(), b, c.m); api.CodeOf(err) != c.want {
			t.Errorf("%s: got %v, want %s", name, err, c.want)
		}
	}
	if got := call[api.InboxCount](t, b, api.CountInbox{Agent: "bob"}).Unread; got != 1 {
		t.Errorf("after the refused calls: got %d messages, want 1", got)
	}
}

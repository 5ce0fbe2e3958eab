package loop_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/nats-io/nats.go"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/apptest"
	"github.com/anima-run/anima/pkg/bus"
)

// TestRepeatedRequests tests that a request without an idempotency key is executed once
// when [bus.Call] sends it again, because it got no answer, and that two calls with equal
// requests are two.
func TestRepeatedRequests(t *testing.T) {
	t.Parallel()
	_, b, worlds := alive(t, 2)
	nc := connected(t, worlds[0].NATS)
	lines := []string{
		`{"role":"user","content":"hi","timestamp":"2026-11-21T08:00:00.000Z"}`,
		`{"role":"assistant","content":"hello","timestamp":"2026-11-21T08:00:01.000Z"}`,
	}
	for _, c := range []struct {
		name  string
		m     api.Message
		field string // of the answer, the id of what the request has created
	}{
		{"message", api.SendMessage{Agent: "lucky", Content: "hello"}, "runId"},
		{"interrupt", api.SendMessage{Agent: "lucky", Content: "hello", Mode: api.ModeInterrupt}, "runId"},
		{"message to a new session", api.SendMessage{Agent: "lucky", Session: "new", Content: "hello"}, "sessionId"},
		{"session", api.CreateSession{Agent: "lucky"}, "id"},
		{"import", api.ImportTranscript{Agent: "lucky", Lines: lines}, "runId"},
	} {
		requests, err := nc.SubscribeSync(c.m.Subject().String())
		if err != nil {
			t.Fatal(err)
		}
		if err := nc.Flush(); err != nil {
			t.Fatal(err)
		}
		first := ask[map[string]any](t, b, c.m)[c.field]
		sent, err := requests.NextMsg(20 * time.Second)
		if err != nil {
			t.Fatal(err)
		}
		answer, err := nc.RequestMsg(&nats.Msg{Subject: sent.Subject, Header: sent.Header, Data: sent.Data}, 20*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		var again map[string]any
		if err := json.Unmarshal(answer.Data, &again); err != nil {
			t.Fatalf("%s: %v", answer.Data, err)
		}
		if first == nil || again[c.field] != first {
			t.Errorf("%s: the repeated request created %v, want %v", c.name, again[c.field], first)
		}
		if request := sent.Header.Get("Anima-Request"); c.field == "runId" && c.name != "import" && first != request {
			t.Errorf("%s: the run is %v, want the id of the request, %s", c.name, first, request)
		}
		if next := ask[map[string]any](t, b, c.m)[c.field]; next == nil || next == first {
			t.Errorf("%s: the next call created %v, as the first one did", c.name, next)
		}
		if err := requests.Unsubscribe(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestRepeatedInterrupt tests that a repeated request in mode interrupt does not cancel what
// was sent after it.
func TestRepeatedInterrupt(t *testing.T) {
	t.Parallel()
	p, b, worlds := alive(t, 1)
	nc := connected(t, worlds[0].NATS)
	ended := apptest.Watch[api.LoopEnd](t, b)
	m := api.SendMessage{Agent: "lucky", Content: "hello", Mode: api.ModeInterrupt}
	body, err := api.Encode(m)
	if err != nil {
		t.Fatal(err)
	}
	request := uuid.Must(uuid.NewV7()).String()
	interrupt := func() {
		t.Helper()
		answer, err := nc.RequestMsg(&nats.Msg{Subject: m.Subject().String(), Header: nats.Header{"Anima-Request": {request}}, Data: body}, 20*time.Second)
		if err != nil || answer.Header.Get("Nats-Service-Error-Code") != "" {
			t.Fatalf("the request: %v, %v", answer, err)
		}
	}
	interrupt()
	apptest.Next(t, ended, func(m api.LoopEnd) bool { return m.Run == request })
	begun, free := make(chan struct{}, 1), make(chan struct{})
	p.set(func() {
		p.funds = func(context.Context) {
			select {
			case begun <- struct{}{}:
			default:
			}
			<-free
		}
	})
	running := ask[api.Accepted](t, b, api.SendMessage{Agent: "lucky", Content: "the next"})
	<-begun
	queued := ask[api.Accepted](t, b, api.SendMessage{Agent: "lucky", Content: "the last"})
	interrupt()
	close(free)
	for _, run := range []string{running.Run, queued.Run} {
		if end := apptest.Next(t, ended, func(m api.LoopEnd) bool { return m.Run == run }); !end.Success {
			t.Errorf("the run %s ended with %q, want success", run, end.Error)
		}
	}
}

// TestRepeatedInterruptWithKey tests that a message in mode interrupt that is in the queue
// twice, because its caller has sent it again after the queue had forgotten its id, cancels
// what was sent before its first copy, and neither itself nor what was sent between them.
func TestRepeatedInterruptWithKey(t *testing.T) {
	t.Parallel()
	p, b, _ := alive(t, 1)
	ended := apptest.Watch[api.LoopEnd](t, b)
	begun, free := make(chan struct{}, 1), make(chan struct{})
	p.set(func() {
		p.funds = func(context.Context) {
			select {
			case begun <- struct{}{}:
			default:
			}
			<-free
		}
	})
	running := ask[api.Accepted](t, b, api.SendMessage{Agent: "lucky", Content: "the first"})
	<-begun
	name := fmt.Sprintf("anima:message:%q %q %q %q %q", api.Creator, "", "lucky", "", "k")
	copied := api.Run{
		Run: uuid.NewSHA1(uuid.NameSpaceURL, []byte(name)).String(), Agent: "lucky", Session: running.Session, Kind: api.RunMessage, Content: "stop",
		By: api.Principal{Kind: api.Creator}, Mode: api.ModeInterrupt, AcceptedAt: running.At,
	}
	if err := b.Publish(t.Context(), "forgotten", copied); err != nil {
		t.Fatal(err)
	}
	after := ask[api.Accepted](t, b, api.SendMessage{Agent: "lucky", Content: "the next"})
	again := ask[api.Accepted](t, b, api.SendMessage{Agent: "lucky", ID: "k", Content: "stop", Mode: api.ModeInterrupt})
	if again.Run != copied.Run {
		t.Fatalf("the run of the message is %s, want %s", again.Run, copied.Run)
	}
	close(free)
	for _, c := range []struct {
		run     string
		success bool
	}{{running.Run, false}, {copied.Run, true}, {after.Run, true}} {
		if end := apptest.Next(t, ended, func(m api.LoopEnd) bool { return m.Run == c.run }); end.Success != c.success {
			t.Errorf("the run %s ended with success %v, %q, want %v", c.run, end.Success, end.Error, c.success)
		}
	}
}

// TestRepeatedRequestsDuringUpgrade tests that a message is accepted once when a replica of
// the previous release, which gives its run another id, has accepted the request before.
func TestRepeatedRequestsDuringUpgrade(t *testing.T) {
	t.Parallel()
	_, b, worlds := alive(t, 1)
	nc := connected(t, worlds[0].NATS)
	ended := apptest.Watch[api.LoopEnd](t, b)
	m := api.SendMessage{Agent: "lucky", Content: "hello"}
	body, err := api.Encode(m)
	if err != nil {
		t.Fatal(err)
	}
	request := uuid.Must(uuid.NewV7()).String()
	run := uuid.NewSHA1(uuid.NameSpaceURL, []byte("anima:request:"+request)).String()
	if err := b.Publish(t.Context(), "run/"+run, api.Run{
		Run: run, Agent: "lucky", Session: "lucky-main", Kind: api.RunMessage, Content: "hello", By: api.Principal{Kind: api.Creator}, AcceptedAt: time.Now().UnixMicro(),
	}); err != nil {
		t.Fatal(err)
	}
	answer, err := nc.RequestMsg(&nats.Msg{Subject: m.Subject().String(), Header: nats.Header{"Anima-Request": {request}}, Data: body}, 20*time.Second)
	if err != nil || answer.Header.Get("Nats-Service-Error-Code") != "" {
		t.Fatalf("the repeated request: %v, %v", answer, err)
	}
	last := ask[api.Accepted](t, b, api.SendMessage{Agent: "lucky", Content: "the last"})
	var got []string
	apptest.Next(t, ended, func(m api.LoopEnd) bool {
		got = append(got, m.Run)
		return m.Run == last.Run
	})
	if diff := cmp.Diff([]string{run, last.Run}, got); diff != "" {
		t.Errorf("runs (-want +got):\n%s", diff)
	}
}

// TestMessageKeys tests that repeated messages with the same idempotency key are one
// message, and that a message with another agent, session or content is never dropped.
func TestMessageKeys(t *testing.T) {
	t.Parallel()
	_, b, _ := alive(t, 2)
	ask[api.Agent](t, b, api.ApplyAgent{Source: strings.Replace(source, "name: Lucky", "name: Nova", 1)})
	ended := apptest.Watch[api.LoopEnd](t, b)
	send := func(m api.SendMessage) (api.Accepted, error) {
		m.ID = "monday"
		return bus.Call[api.Accepted](t.Context(), b, m)
	}
	runs := map[string]string{}
	for _, c := range []struct {
		name string
		m    api.SendMessage
		same string // name of the message that this one repeats
	}{
		{name: "first", m: api.SendMessage{Agent: "lucky", Content: "hello"}},
		{name: "repeated", m: api.SendMessage{Agent: "lucky", Content: "hello"}, same: "first"},
		{name: "main session by its name", m: api.SendMessage{Agent: "Lucky", Session: "lucky-main", Content: "hello", Mode: api.ModeQueue}, same: "first"},
		{name: "other agent", m: api.SendMessage{Agent: "nova", Content: "hello"}},
		{name: "new session", m: api.SendMessage{Agent: "lucky", Session: "new", Content: "hello"}},
		{name: "new session again", m: api.SendMessage{Agent: "lucky", Session: "new", Content: "hello"}, same: "new session"},
	} {
		got, err := send(c.m)
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		if c.same == "" {
			for other, run := range runs {
				if run == got.Run {
					t.Errorf("%s has the run of %s", c.name, other)
				}
			}
			runs[c.name] = got.Run
			apptest.Next(t, ended, func(m api.LoopEnd) bool { return m.Run == got.Run })
		} else if got.Run != runs[c.same] {
			t.Errorf("%s has the run %s, want that of %s, %s", c.name, got.Run, c.same, runs[c.same])
		}
	}
	for _, m := range []api.SendMessage{
		{Agent: "lucky", Content: "good night"},
		{Agent: "lucky", Content: "hello", Mode: api.ModeInterrupt},
		{Agent: "lucky", Session: "new", Content: "good night"},
	} {
		if _, err := send(m); api.CodeOf(err) != api.Conflict || api.ReasonOf(err) != api.ReasonKeyTaken {
			t.Errorf("%+v: got error %v, want conflict with reason %s", m, err, api.ReasonKeyTaken)
		}
	}
}

package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"
)

// up starts `anima up` and connects to it in the same way as the command line.
func up(t *testing.T, dir string) (*process, *world) {
	t.Helper()
	return upWith(t, dir, map[string]string{"ANIMA_LOOP_LEASE": "2s"}) // for tests that kill it
}

// upWith is up with additional settings.
func upWith(t *testing.T, dir string, more map[string]string) (*process, *world) {
	t.Helper()
	env := environment(t, map[string]string{
		"ANIMA_HTTP_ADDR": "127.0.0.1:0", "ANIMA_OPS_ADDR": "127.0.0.1:0", "ANIMA_NATS_LISTEN": "127.0.0.1:0", "ANIMA_LOG_FORMAT": "text",
		"ANIMA_TOKEN": token, "ANIMA_DRAIN": "20s",
	})
	maps.Copy(env, more)
	p := start(t, "anima up", builds.program(t, "cmd/anima", "."), env, "up", "--empty", "--data", dir)
	p.line(t, `^anima .* is up$`)
	at := endpoint(t, dir)
	w := &world{bus: connect(t, at.NATS), http: map[string]string{}, data: dir}
	for _, n := range names {
		w.http[n] = at.HTTP
	}
	return p, w
}

// where holds the addresses of a running anima up.
type where struct {
	NATS  string `json:"nats"`
	Token string `json:"token"`
	HTTP  string `json:"http"`
}

// endpoint reads the addresses that anima up has written into its data folder.
func endpoint(t testing.TB, dir string) where {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, "endpoint.json"))
	if err != nil {
		t.Fatal(err)
	}
	var at where
	if err := json.Unmarshal(data, &at); err != nil {
		t.Fatal(err)
	}
	if at.Token != token {
		t.Fatalf("token %q", at.Token)
	}
	return at
}

// TestKilled kills the process in the middle of a turn and starts it again. The run is
// completed, no step with a result is repeated, no lock and no hold is left.
func TestKilled(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, message string
		at            api.Message // the process is killed at this message
		ran           int         // maximum number of executions of the command
		outcome       api.Outcome // of the tool call; "" if there is none
		response      string
	}{
		{"just accepted", "slow thought", nil, 0, "", "A thought that took its time."}, // slow, so that it has begun when the kill happens
		{"during the model call", "slow thought", api.Thinking{}, 0, "", "A thought that took its time."},
		{"while the answer is streamed", "slow words", api.StreamDelta{}, 0, "", "These words come one by one and take a while to arrive at the one who reads them."},
		{"during a tool call", "slow tool", api.ToolStart{}, 1, api.OutcomeUnknown, "After the tool: outcome unknown"},
		{"after a result", "fast tool", api.ToolEnd{}, 1, api.OutcomeOK, "Done with the tool."},
		{"after a turn is persisted", "fast tool", api.LoopPersist{}, 1, api.OutcomeOK, "Done with the tool."},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			p, w := up(t, dir)
			a := born(t, w, "Phoenix", api.Dollar)
			acc := make(chan api.Accepted, 1)
			seen := make(chan struct{})
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			switch m := c.at.(type) {
			case nil:
				close(seen)
			case api.StreamDelta:
				m.Session = a.Session
				listen(ctx, t, w, m, 3, func() { close(seen) })
			case api.Thinking:
				m.Session = a.Session
				listen(ctx, t, w, m, 1, func() { close(seen) })
			default:
				s := c.at.Subject()
				s.Key = a.Session
				go func() {
					hit := errors.New("seen")
					if err := w.bus.Events(ctx, 0, func(bus.Stored) error { return hit }, s); errors.Is(err, hit) {
						close(seen)
					}
				}()
			}
			acc <- call[api.Accepted](t, w, api.SendMessage{Agent: a.ID, Content: c.message})
			select {
			case <-seen:
			case <-ctx.Done():
				t.Fatal("the point to be killed at did not come")
			}
			p.kill()
			cancel()

			_, w = up(t, dir)
			run := <-acc
			end := ended(t, w, run.Session, run.Run)
			if !end.Success || !strings.HasPrefix(end.Response, c.response) {
				t.Fatalf("end: %+v, want %q", end, c.response)
			}
			ran, err := os.ReadFile(filepath.Join(dir, "loop", "workspaces", a.ID, "ran.txt"))
			if err != nil && !os.IsNotExist(err) {
				t.Fatal(err)
			}
			if got := strings.Count(string(ran), "ran"); got > c.ran {
				t.Errorf("the command ran %d times, want at most %d", got, c.ran)
			}
			turns := turnsOf(t, w, end.Run)
			var cost api.Micros
			for i, turn := range turns {
				cost += turn.Cost
				if turn.Number != i+1 {
					t.Errorf("turn %d has number %d", i+1, turn.Number)
				}
			}
			if c.outcome != "" && (len(turns[0].Calls) != 1 || turns[0].Calls[0].Outcome != c.outcome) {
				t.Errorf("call: %+v, want %s", turns[0].Calls, c.outcome)
			}
			if b := call[api.Balance](t, w, api.GetBalance{Agent: a.ID}); b.Available+cost != api.Dollar || b.Held != 0 {
				t.Errorf("left %s, held %s, the turns cost %s", b.Available, b.Held, cost)
			}
			sound(t, w, a)
			names := eventNames(t, w, a.Session, end.Run)
			if names[0] != "loop_start" || count(names, "loop_start") != 1 || count(names, "loop_persist") != len(turns) {
				t.Errorf("events: %v", names)
			}
			if again := send(t, w, a.ID, "recall"); again.Response != "said: recall" {
				t.Errorf("the next run: %+v", again)
			}
		})
	}
}

// listen calls hit at the nth live message on a subject, until ctx ends.
func listen(ctx context.Context, t *testing.T, w *world, m api.Message, nth int, hit func()) {
	t.Helper()
	listening, over := make(chan struct{}), make(chan error, 1)
	go func() {
		n := 0
		over <- w.bus.Subscribe(ctx, m.Subject().String(), func() { close(listening) }, func([]byte) {
			if n++; n == nth {
				hit()
			}
		})
	}()
	select {
	case <-listening:
	case err := <-over:
		t.Fatalf("listen to %T: %v", m, err)
	}
}

func count(all []string, s string) int {
	n := 0
	for _, v := range all {
		if v == s {
			n++
		}
	}
	return n
}

// TestStartOrder checks that services may start before NATS and in any order: each logs
// what it waits for, and becomes ready when that is available.
func TestStartOrder(t *testing.T) {
	t.Parallel()
	addr := freeAddr(t)
	data := t.TempDir()
	var waiting []*process
	for i := len(names) - 1; i >= 0; i-- {
		waiting = append(waiting, startService(t, names[i], "nats://"+addr, data, environment(t, map[string]string{"ANIMA_OPS_ADDR": "127.0.0.1:0"})))
	}
	for _, p := range waiting {
		p.stderrLine(t, "waiting for NATS")
	}
	server(t, addr)
	w := &world{http: map[string]string{}, data: data}
	for i, p := range waiting {
		w.http[names[len(names)-1-i]] = "http://" + p.await(t)
	}
	w.bus = connect(t, "nats://"+addr)
	a := born(t, w, "Early", api.Dollar)
	if end := send(t, w, a.ID, "work"); !end.Success {
		t.Errorf("end: %+v", end)
	}
	// A service stops and starts again; requests of the meantime are processed then.
	policy := waiting[len(names)-1-slices.Index(names, "policy")]
	policy.stop(t)
	thinking := make(chan struct{})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	listen(ctx, t, w, api.Thinking{Session: a.Session}, 1, func() { close(thinking) })
	acc := call[api.Accepted](t, w, api.SendMessage{Agent: a.ID, Content: "work"})
	select {
	case <-thinking:
	case <-ctx.Done():
		t.Fatal("the run does not come to its model")
	}
	policy = startService(t, "policy", "nats://"+addr, data, environment(t, nil))
	policy.await(t)
	waiting = append(waiting, policy)
	if end := ended(t, w, acc.Session, acc.Run); !end.Success {
		t.Errorf("after policy was available again: %+v", end)
	}
	sound(t, w, a)
	for _, p := range waiting { // before the NATS server, which the cleanup stops first
		p.stop(t)
	}
}

// TestDrains checks that after a signal to stop the run in progress is completed: every
// service of the process answers until there are no more requests.
func TestDrains(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	p, w := up(t, dir)
	a := born(t, w, "Finisher", api.Dollar)
	acc := call[api.Accepted](t, w, api.SendMessage{Agent: a.ID, Content: "fast tool"})
	await(t, w, api.ToolEnd{Session: a.Session}, func(api.ToolEnd) bool { return true })
	p.stop(t)
	_, w = up(t, dir)
	turns := turnsOf(t, w, acc.Run)
	if len(turns) != 2 || turns[1].Thinking != "Done with the tool." {
		t.Fatalf("turns: %+v, want both written before the process ended", turns)
	}
	if end := ended(t, w, acc.Session, acc.Run); !end.Success {
		t.Errorf("end: %+v", end)
	}
	sound(t, w, a)
}

// TestDrainsHTTP checks that a model call over HTTP that is in progress at a signal to stop
// gets its whole answer, or is cut off shortly before the drain is over: then the stream
// ends with an error, and what was generated is billed.
func TestDrainsHTTP(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, drain string
		whole       bool
	}{{"within the drain", "20s", true}, {"longer than the drain", "1s", false}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			p, w := upWith(t, dir, map[string]string{"ANIMA_DRAIN": c.drain})
			a := born(t, w, "Caller", api.Dollar)
			res, err := routerOf(w, a).open(t, `{"model":"anima-sim-1","max_tokens":64,"stream":true,"messages":[{"role":"user","content":"slow words"}]}`)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = res.Body.Close() }()
			answer := bufio.NewReader(res.Body)
			first, err := answer.ReadString('\n')
			if err != nil {
				t.Fatal(err)
			}
			p.stop(t)
			rest, err := io.ReadAll(answer)
			text := first + string(rest)
			ends, failed := strings.HasSuffix(text, "data: [DONE]\n\n"), strings.Contains(text, `data: {"error":`)
			if err != nil || ends != c.whole || failed == c.whole {
				t.Errorf("got error %v and %s\nwant a whole answer: %t", err, text, c.whole)
			}
			_, w = up(t, dir)
			if b := call[api.Balance](t, w, api.GetBalance{Agent: a.ID}); b.Available >= api.Dollar {
				t.Errorf("balance: got %s, want less than %s: the provider bills what it has generated", b.Available, api.Dollar)
			}
			sound(t, w, a)
		})
	}
}

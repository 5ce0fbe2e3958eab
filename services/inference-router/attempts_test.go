package router_test

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/apptest"
	"github.com/anima-run/anima/pkg/bus"
	"github.com/anima-run/anima/pkg/host"
	"github.com/anima-run/anima/pkg/telemetry/oteltest"
	router "github.com/anima-run/anima/services/inference-router"
)

// Chunks of a stream.
const (
	chunkStop = `{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}`
	chunkDone = "[DONE]"
)

func chunkText(text string) string {
	return fmt.Sprintf(`{"choices":[{"index":0,"delta":{"content":%q}}]}`, text)
}

// raw writes the answer of a server without checks.
type raw struct{ w http.ResponseWriter }

func (r raw) events(chunks ...string) {
	r.w.Header().Set("Content-Type", "text/event-stream")
	for _, c := range chunks {
		_, _ = fmt.Fprintf(r.w, "data: %s\n\n", c)
		_ = http.NewResponseController(r.w).Flush()
	}
}

func (r raw) fail(status int, message string) {
	r.w.Header().Set("Content-Type", "application/json")
	r.w.WriteHeader(status)
	_, _ = fmt.Fprintf(r.w, `{"error":{"message":%q}}`, message)
}

// server is a provider whose answer to the n-th call, from 1, is a function of the test.
type server struct {
	*provider
}

func answering(t *testing.T, answer func(n int64, out raw, r *http.Request)) *server {
	t.Helper()
	return answeringFor(t, `{"id":"m","object":"model"},{"id":"n","object":"model"}`, answer)
}

// answeringFor is answering with a given list of models.
func answeringFor(t *testing.T, models string, answer func(n int64, out raw, r *http.Request)) *server {
	t.Helper()
	s := &server{provider: &provider{gone: make(chan struct{}, 64)}}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasSuffix(r.URL.Path, "/chat/completions") {
			_, _ = fmt.Fprintf(w, `{"object":"list","data":[%s]}`, models)
			return
		}
		_, _ = io.Copy(io.Discard, r.Body) // the server cancels r's context only after the body was read
		answer(s.calls.Add(1), raw{w}, r)
	}))
	t.Cleanup(srv.Close)
	s.url = srv.URL + "/v1"
	return s
}

// cut aborts the connection.
func cut() { panic(http.ErrAbortHandler) }

// hang keeps the answer open until the client disconnects.
func hang(r *http.Request) { <-r.Context().Done() }

// books is a fake of treasury with its holds. It refuses requests as the test defines;
// the real treasury is tested in e2e.
type books struct {
	mu     sync.Mutex
	holds  map[string]*api.HoldState
	arrive func(api.Hold)          // called before each Hold, without the lock, which it may delay; may be nil
	refuse func(api.Message) error // called first for each Hold, Settle and Release; nil accepts all
	past   bool                    // act as the previous release: settle one by one
}

func (b *books) refusing(f func(api.Message) error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.refuse = f
}

// refuseSettlements refuses every settlement, as a treasury that is away.
func (b *books) refuseSettlements() {
	b.refusing(func(m api.Message) error {
		if _, ok := m.(api.Settle); ok {
			return api.Errorf(api.Unavailable, "treasury is away")
		}
		return nil
	})
}

// ask calls refuse. The caller must hold the lock.
func (b *books) ask(m api.Message) error {
	if b.refuse == nil {
		return nil
	}
	return b.refuse(m)
}

func (b *books) service() host.Service {
	return host.Define("treasury", struct{}{}, nil, func(ctx context.Context, env *host.Env, _ struct{}) error {
		settle := func(_ context.Context, m api.Settle) (api.HoldState, error) {
			b.mu.Lock()
			err := b.ask(m)
			b.mu.Unlock()
			if err != nil {
				return api.HoldState{}, err
			}
			return b.end(m.ID, api.HoldSettled, m.Amount)
		}
		routes := []bus.Route{
			bus.Reply(settle),
			bus.Reply(func(_ context.Context, m api.Hold) (api.HoldState, error) {
				b.mu.Lock()
				arrive := b.arrive
				b.mu.Unlock()
				if arrive != nil {
					arrive(m)
				}
				b.mu.Lock()
				defer b.mu.Unlock()
				if err := b.ask(m); err != nil {
					return api.HoldState{}, err
				}
				if b.holds[m.ID] == nil {
					b.holds[m.ID] = &api.HoldState{ID: m.ID, Agent: m.Agent, Status: api.HoldActive, Amount: m.Amount}
					if !b.past {
						b.holds[m.ID].ExpiresAt, b.holds[m.ID].Category, b.holds[m.ID].Turn, b.holds[m.ID].Payee = m.ExpiresAt, m.Category, m.Turn, m.Payee
					}
				}
				return *b.holds[m.ID], nil
			}),
			bus.Reply(func(_ context.Context, m api.Release) (api.HoldState, error) {
				b.mu.Lock()
				err := b.ask(m)
				b.mu.Unlock()
				if err != nil {
					return api.HoldState{}, err
				}
				return b.end(m.ID, api.HoldReleased, 0)
			}),
			bus.Reply(func(_ context.Context, m api.ListHolds) (out api.Holds, _ error) {
				b.mu.Lock()
				defer b.mu.Unlock()
				for _, h := range b.holds {
					if h.Status == api.HoldActive && (m.Agent == "" || m.Agent == h.Agent) && (m.Category == "" || h.Category == "" || m.Category == h.Category) {
						out.Holds = append(out.Holds, *h)
					}
				}
				slices.SortFunc(out.Holds, func(one, two api.HoldState) int { return cmp.Compare(one.ExpiresAt, two.ExpiresAt) })
				out.Holds = out.Holds[:min(len(out.Holds), m.Limit)]
				return out, nil
			}),
		}
		if !b.past {
			routes = append(routes, bus.Reply(func(ctx context.Context, m api.SettleMany) (api.Settled, error) {
				var out api.Settled
				for _, s := range m.Settlements {
					state, err := settle(ctx, api.Settle{ID: s.ID, Amount: s.Amount, Payee: s.Payee, Memo: s.Memo})
					if err != nil {
						out.Results = append(out.Results, api.SettleResult{Error: api.Wire(err)})
						continue
					}
					out.Results = append(out.Results, api.SettleResult{Hold: &state})
					out.Funds = append(out.Funds, api.AgentFunds{Agent: state.Agent, Funds: api.Funds{Available: api.Dollar, Tier: api.TierNormal}})
				}
				return out, nil
			}))
		}
		return env.Serve(ctx, routes...)
	})
}

func (b *books) end(id string, status api.HoldStatus, amount api.Micros) (api.HoldState, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	h := b.holds[id]
	if h == nil || amount > h.Amount || h.Status != api.HoldActive && (h.Status != status || h.Settled != amount) {
		return api.HoldState{}, api.Errorf(api.Conflict, "hold %s cannot be settled with %s", id, amount)
	}
	h.Status, h.Settled = status, amount
	return *h, nil
}

// sums returns the number of holds by status and the sum of the settled amounts.
func (b *books) sums() (settled, released, active int, paid api.Micros) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, h := range b.holds {
		switch h.Status {
		case api.HoldSettled:
			settled, paid = settled+1, paid+h.Settled
		case api.HoldReleased:
			released++
		default:
			active++
		}
	}
	return settled, released, active, paid
}

// paid runs the router with the priced models of a server.
func paid(t *testing.T, url string, env map[string]string) (*apptest.World, *books) {
	t.Helper()
	b := newBooks()
	return paidBy(t, b, url, env), b
}

func newBooks() *books { return &books{holds: map[string]*api.HoldState{}} }

// paidBy is paid with the books of the caller.
func paidBy(t *testing.T, b *books, url string, env map[string]string) *apptest.World {
	t.Helper()
	all := map[string]string{
		"OPENAI_BASE_URL": url, "OPENAI_API_KEY": "sekret-key", "ANIMA_INFERENCE_ROUTER_MODELS": "m=1/4/128000,n=1/4/128000",
	}
	for k, v := range env {
		all[k] = v
	}
	return apptest.Start(t, apptest.Options{Env: all}, router.Service, b.service())
}

// heard records an answer as a reader shows it.
type heard struct {
	text             strings.Builder
	pieces, discards int
	early            *api.Completion
	notes            []string
}

func (h *heard) take(d api.Delta) error {
	if d.Content != "" || d.Discard || d.Note != "" {
		h.pieces++
	}
	if d.Answer != nil {
		h.early = d.Answer
	}
	if d.Discard {
		h.discards++
		h.text.Reset()
	}
	h.text.WriteString(d.Content)
	if d.Note != "" {
		h.notes = append(h.notes, d.Note)
	}
	return nil
}

func ask(t *testing.T, b *bus.Bus, req api.Complete) (api.Completion, *heard, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	h := &heard{}
	c, err := bus.CallStream[api.Delta, api.Completion](ctx, b, req, h.take)
	return c, h, err
}

// TestCutStreamsCostOneBudget checks that a call whose streams all break off uses up its
// attempts, and that repeating the call makes no further attempts.
func TestCutStreamsCostOneBudget(t *testing.T) {
	t.Parallel()
	s := answering(t, func(_ int64, out raw, _ *http.Request) {
		out.events(chunkText("half an answer"))
		cut()
	})
	w, b := paid(t, s.url, nil)
	for range 3 {
		_, h, err := ask(t, w.Bus, request("cut", "hello"))
		if api.CodeOf(err) != api.Unavailable || api.ReasonOf(err) != api.ReasonAttempts {
			t.Fatalf("got %v (%s), want %s", err, api.ReasonOf(err), api.ReasonAttempts)
		}
		if s.calls.Load() == 4 && h.pieces > 0 && (h.discards < 1 || len(h.notes) != 3 || h.text.String() != "half an answer") {
			t.Errorf("readers were told %d times to discard, show %q and have the notes %q", h.discards, h.text.String(), h.notes)
		}
	}
	if settled, released, active, paid := b.sums(); s.calls.Load() != 4 || settled != 4 || released+active != 0 || paid == 0 {
		t.Errorf("%d calls, %d holds settled, %d released, %d active, %s paid; want 4 calls, each paid", s.calls.Load(), settled, released, active, paid)
	}
}

// TestSpanHasNoText checks that the span of a failed attempt contains its kind and status, and
// not the text of the provider, which may quote the prompt.
func TestSpanHasNoText(t *testing.T) {
	t.Parallel()
	s := answering(t, func(_ int64, out raw, _ *http.Request) {
		out.fail(http.StatusUnprocessableEntity, "the field messages is wrong: hello from the prompt")
	})
	spans := oteltest.Receiver(t)
	w, _ := paid(t, s.url, map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": spans.Endpoint()})
	if _, _, err := ask(t, w.Bus, request("unread", "hello")); err == nil {
		t.Fatal("the call succeeded")
	}
	w.Stop()
	chats := 0
	for _, s := range spans.Spans() {
		if strings.Contains(fmt.Sprint(s), "hello from the prompt") {
			t.Errorf("the span %s contains the text of the provider: %+v", s.Name, s)
		}
		if s.Name == "chat m" && s.Status == "error" {
			chats++
			if s.Reason != "status 422" || s.Attributes["error.type"] != "fatal" {
				t.Errorf("the attempt ended with %q, %v; want the kind and the status", s.Reason, s.Attributes)
			}
		}
	}
	if chats == 0 {
		t.Error("no attempt has a span")
	}
}

// TestRunHasABudget checks that the failed attempts of all calls of a run count together.
func TestRunHasABudget(t *testing.T) {
	t.Parallel()
	s := answering(t, func(int64, raw, *http.Request) { cut() })
	w, _ := paid(t, s.url, map[string]string{"ANIMA_INFERENCE_ROUTER_ATTEMPTS": "3", "ANIMA_INFERENCE_ROUTER_RUN_FAILURES": "4"})
	for i, want := range []int64{3, 4, 5} {
		req := request(fmt.Sprintf("run-%d", i), "hello")
		req.Run = "r"
		_, _, err := ask(t, w.Bus, req)
		if api.ReasonOf(err) != api.ReasonAttempts || s.calls.Load() != want {
			t.Errorf("call %d: %v after %d calls in all, want %d", i, err, s.calls.Load(), want)
		}
	}
}

// TestRetryAfterWords checks a retry after a partial answer: readers discard the partial
// text, and both attempts are paid once.
func TestRetryAfterWords(t *testing.T) {
	t.Parallel()
	s := answering(t, func(n int64, out raw, _ *http.Request) {
		if n == 1 {
			out.events(chunkText("lost words that are billed"))
			cut()
		}
		out.events(chunkText("the whole answer"), chunkStop, chunkDone)
	})
	w, b := paid(t, s.url, nil)
	for range 2 {
		c, h, err := ask(t, w.Bus, request("words", "hello"))
		if err != nil || c.Text != "the whole answer" || c.Attempts != 2 {
			t.Fatalf("got %+v, %v", c, err)
		}
		if h.pieces > 0 && (h.text.String() != "the whole answer" || h.discards != 1) {
			t.Errorf("a reader shows %q after %d discards", h.text.String(), h.discards)
		}
		settled, _, active, sum := b.sums()
		if s.calls.Load() != 2 || settled != 2 || active != 0 || c.Cost != sum {
			t.Errorf("%d calls, %d settled, %d active; the answer says %s, the books %s", s.calls.Load(), settled, active, c.Cost, sum)
		}
	}
}

// TestHoldOfABrokenAttempt checks that the attempt after a broken one uses another hold
// if the first hold was not ended because treasury was unavailable. Each hold pays for
// its own attempt.
func TestHoldOfABrokenAttempt(t *testing.T) {
	t.Parallel()
	s := answering(t, func(n int64, out raw, _ *http.Request) {
		if n == 1 {
			out.events(chunkText("lost words that are billed"), `{"error":{"message":"overloaded","code":503}}`)
			return
		}
		out.events(chunkText("the whole answer"), chunkStop, chunkDone)
	})
	w, b := paid(t, s.url, nil)
	away := true
	b.refusing(func(m api.Message) error {
		if s, ok := m.(api.Settle); ok && s.Memo == api.MemoBroken && away {
			away = false
			return api.Errorf(api.Unavailable, "away for a moment")
		}
		return nil
	})
	c, _, err := ask(t, w.Bus, request("held", "hello"))
	if err != nil || c.Text != "the whole answer" || c.Model != "m" || c.Attempts != 2 {
		t.Fatalf("got %+v, %v; want the same model's second answer", c, err)
	}
	if settled, _, active, sum := b.sums(); settled != 2 || active != 0 || c.Cost != sum {
		t.Errorf("%d settled, %d active; the answer says %s, the books %s", settled, active, c.Cost, sum)
	}
}

// TestStoredAnswerIsNotAskedElsewhere checks a stored answer whose hold has ended when
// the agent has no credits left: the caller gets the error, no other model is called, and
// the answer can be settled later.
func TestStoredAnswerIsNotAskedElsewhere(t *testing.T) {
	t.Parallel()
	b := newBooks()
	s := answering(t, func(_ int64, out raw, _ *http.Request) {
		if _, err := b.end("poor/0", api.HoldReleased, 0); err != nil {
			t.Error(err)
		}
		out.events(chunkText("the answer"), chunkStop, chunkDone)
	})
	w := paidBy(t, b, s.url, nil)
	b.refusing(func(m api.Message) error {
		if h, ok := m.(api.Hold); ok && strings.Contains(h.ID, "/late") {
			return &api.Error{Code: api.Denied, Reason: api.ReasonInsufficient, Message: "nothing is left"}
		}
		return nil
	})
	if _, _, err := ask(t, w.Bus, request("poor", "hello")); api.ReasonOf(err) != api.ReasonInsufficient || s.calls.Load() != 1 {
		t.Errorf("got %v after %d calls, want %s after one", err, s.calls.Load(), api.ReasonInsufficient)
	}
	b.refusing(nil)
	c, _, err := ask(t, w.Bus, request("poor", "hello"))
	if _, _, _, sum := b.sums(); err != nil || c.Text != "the answer" || s.calls.Load() != 1 || sum == 0 || c.Cost != sum {
		t.Errorf("got %+v, %v after %d calls; the books say %s", c, err, s.calls.Load(), sum)
	}
}

// TestNoteOfARefusedHold checks that the note about the next model gives the reason why
// the previous one was not called.
func TestNoteOfARefusedHold(t *testing.T) {
	t.Parallel()
	s := answering(t, func(_ int64, out raw, _ *http.Request) { out.events(chunkText("fine"), chunkStop, chunkDone) })
	w, b := paid(t, s.url, nil)
	b.refusing(func(m api.Message) error {
		if h, ok := m.(api.Hold); ok && h.ID == "note/0" {
			return &api.Error{Code: api.Denied, Reason: api.ReasonInsufficient, Message: "the agent cannot pay for it"}
		}
		return nil
	})
	c, h, err := ask(t, w.Bus, request("note", "hello"))
	if err != nil || c.Model != "n" || len(h.notes) != 1 || !strings.Contains(h.notes[0], "the agent cannot pay for it; retrying with n") {
		t.Errorf("got %+v, notes %q, %v; want the next model and why", c, h.notes, err)
	}
}

// TestLastingFaults checks that a lasting failure is not retried on the same model, and
// that the error has the provider's message and an advice.
func TestLastingFaults(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		answer             func(raw)
		code               api.Code
		reason, says, next string
		calls              int64
	}{
		"401":          {func(o raw) { o.fail(401, "no such key") }, api.Unavailable, api.ReasonAuth, "no such key", "OPENAI_API_KEY", 1},
		"403":          {func(o raw) { o.fail(403, "not for you") }, api.Unavailable, api.ReasonAuth, "not for you", "OPENAI_API_KEY", 1},
		"402":          {func(o raw) { o.fail(402, "no credit") }, api.Unavailable, api.ReasonQuota, "no credit", "credit", 1},
		"404 of m, n":  {func(o raw) { o.fail(404, "model not found") }, api.Unavailable, api.ReasonNoModel, "model not found", "anima model list", 2},
		"400":          {func(o raw) { o.fail(400, "bad thing") }, api.Invalid, api.ReasonRefused, "bad thing", "provider's", 1},
		"422":          {func(o raw) { o.fail(422, "bad thing") }, api.Invalid, api.ReasonRefused, "bad thing", "provider's", 1},
		"a page":       {func(o raw) { o.w.Header().Set("Content-Type", "text/html"); fmt.Fprint(o.w, "<html>Hi</html>") }, api.Unavailable, api.ReasonEndpoint, "web page", "OPENAI_BASE_URL", 1},
		"no such path": {func(o raw) { o.w.WriteHeader(404); fmt.Fprint(o.w, "404 page not found") }, api.Unavailable, api.ReasonEndpoint, "404", "OPENAI_BASE_URL", 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := answering(t, func(_ int64, out raw, _ *http.Request) { c.answer(out) })
			w, b := paid(t, s.url, nil)
			_, _, err := ask(t, w.Bus, request("lasting", "hello"))
			e := api.Wire(err)
			if e.Code != c.code || e.Reason != c.reason || !strings.Contains(e.Message, c.says) || !strings.Contains(e.Next, c.next) {
				t.Errorf("got %s %s: %s (%s)", e.Code, e.Reason, e.Message, e.Next)
			}
			if settled, _, active, _ := b.sums(); s.calls.Load() != c.calls || settled+active != 0 {
				t.Errorf("%d calls, %d settled, %d active; want %d calls, nothing paid or held", s.calls.Load(), settled, active, c.calls)
			}
		})
	}
}

// TestRefusedIsNotAskedElsewhere checks that a request that a provider refuses as invalid
// is not repeated, neither on the same model nor at another provider. A transient failure
// shows, for comparison, that the other provider would be called.
func TestRefusedIsNotAskedElsewhere(t *testing.T) {
	t.Parallel()
	for status, elsewhere := range map[int]bool{400: false, 503: true} {
		t.Run(strconv.Itoa(status), func(t *testing.T) {
			t.Parallel()
			fail := func(_ int64, out raw, _ *http.Request) { out.fail(status, "no") }
			one, two := answering(t, fail), answeringFor(t, `{"id":"other"}`, fail)
			w := apptest.Start(t, apptest.Options{Env: map[string]string{
				"OPENAI_BASE_URL": one.url, "OLLAMA_HOST": strings.TrimSuffix(two.url, "/v1"),
			}}, router.Service)
			req := request("refused", "hello")
			req.Model = ""
			if _, _, err := ask(t, w.Bus, req); err == nil {
				t.Fatal("got an answer")
			}
			a, b := one.calls.Load(), two.calls.Load()
			if elsewhere != (a > 0 && b > 0) || !elsewhere && a+b != 1 {
				t.Errorf("%d and %d calls, want both asked: %t, and else one call", a, b, elsewhere)
			}
		})
	}
}

// refusing returns an address that refuses connections until the test ends. Its port is bound, so that
// no other process can listen on it.
func refusing(t *testing.T) string {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Close(fd) }) // nothing was written
	syscall.CloseOnExec(fd)
	if err := syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	bound, err := syscall.Getsockname(fd)
	v4, ok := bound.(*syscall.SockaddrInet4)
	if err != nil || !ok {
		t.Fatalf("the address of the socket: %v, %v", bound, err)
	}
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(v4.Port))
}

// TestUnreachable checks an address without a server: within seconds, the caller gets an
// error that names the setting of the address.
func TestUnreachable(t *testing.T) {
	t.Parallel()
	for setting, env := range map[string]map[string]string{
		"OPENAI_BASE_URL": nil,
		"OLLAMA_HOST":     {"OPENAI_BASE_URL": "", "OPENAI_API_KEY": ""},
	} {
		t.Run(setting, func(t *testing.T) {
			t.Parallel()
			host := "http://" + refusing(t)
			if env != nil {
				env["OLLAMA_HOST"] = host
			}
			w, _ := paid(t, host+"/v1", env)
			_, h, err := ask(t, w.Bus, request("dead", "hello"))
			e := api.Wire(err)
			if e.Reason != api.ReasonAttempts || !strings.Contains(e.Message, "connection refused") || !strings.Contains(e.Next, setting) {
				t.Errorf("got %s: %s (%s)", e.Reason, e.Message, e.Next)
			}
			if len(h.notes) != 3 || !strings.Contains(h.notes[0], "retrying") {
				t.Errorf("notes: %q, want 3 of another try", h.notes)
			}
		})
	}
}

// TestNotConnected checks that nothing is paid for requests that had no connection: to a
// server whose certificate is unknown, to one without TLS, and to one that ends the
// connection at once.
func TestNotConnected(t *testing.T) {
	t.Parallel()
	never := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("the server got a request") })
	unknown, plain := httptest.NewUnstartedServer(never), httptest.NewServer(never)
	unknown.Config.ErrorLog = log.New(io.Discard, "", 0) // has the handshakes that failed
	unknown.StartTLS()
	closing, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		for {
			c, err := closing.Accept()
			if err != nil {
				return
			}
			_ = c.Close()
		}
	}()
	t.Cleanup(func() { unknown.Close(); plain.Close(); _ = closing.Close() })
	for name, addr := range map[string]string{
		"an unknown certificate": unknown.Listener.Addr().String(), "no TLS": plain.Listener.Addr().String(), "closed": closing.Addr().String(),
	} {
		w, b := paid(t, "https://"+addr+"/v1", nil)
		if _, _, err := ask(t, w.Bus, request("dead", "hello")); api.ReasonOf(err) != api.ReasonAttempts {
			t.Errorf("%s: got %v, want that all attempts failed", name, err)
		}
		if settled, _, active, cost := b.sums(); settled != 0 || active != 0 || cost != 0 {
			t.Errorf("%s: %d settled, %d active, cost %d; want nothing paid", name, settled, active, cost)
		}
	}
}

// TestCostStaysWithinTheHold checks that reported usage cannot make a call cost more than
// its hold.
func TestCostStaysWithinTheHold(t *testing.T) {
	t.Parallel()
	s := answering(t, func(_ int64, out raw, _ *http.Request) {
		out.events(chunkText("x"), chunkStop, `{"choices":[],"usage":{"prompt_tokens":5000,"completion_tokens":12000,"total_tokens":17000}}`, chunkDone)
	})
	w, b := paid(t, s.url, nil)
	c, _, err := ask(t, w.Bus, request("dear", "hello"))
	if err != nil {
		t.Fatal(err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if h := b.holds["dear/0"]; h.Status != api.HoldSettled || h.Settled != h.Amount || c.Cost != h.Amount {
		t.Errorf("hold %+v, cost %s; want the hold and no more", h, c.Cost)
	}
}

// TestHangingServer checks that the next model is called after a server hangs.
func TestHangingServer(t *testing.T) {
	t.Parallel()
	for name, before := range map[string][]string{"before the first token": nil, "in the middle": {chunkText("half")}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := answering(t, func(n int64, out raw, r *http.Request) {
				if n == 1 {
					out.events(before...)
					hang(r)
					return
				}
				out.events(chunkText("whole"), chunkStop, chunkDone)
			})
			w, _ := paid(t, s.url, map[string]string{"ANIMA_INFERENCE_ROUTER_FIRST_TOKEN_TIMEOUT": "2s", "ANIMA_INFERENCE_ROUTER_TOKEN_TIMEOUT": "2s"})
			c, h, err := ask(t, w.Bus, request("hang", "hello"))
			if err != nil || c.Text != "whole" || c.Model != "n" || h.text.String() != "whole" {
				t.Errorf("got %+v, shown %q, %v; want the next model's answer", c, h.text.String(), err)
			}
		})
	}
}

// TestDeadlineKeepsWords checks that a partial answer at the deadline is returned, marked
// as partial, and paid.
func TestDeadlineKeepsWords(t *testing.T) {
	t.Parallel()
	s := answering(t, func(_ int64, out raw, r *http.Request) {
		out.events(chunkText("the beginning"))
		hang(r)
	})
	w, b := paid(t, s.url, nil)
	req := request("late", "hello")
	req.Deadline = time.Now().Add(4 * time.Second).UnixMicro() // enough time for the first text on a busy machine
	for range 2 {
		c, _, err := ask(t, w.Bus, req)
		if err != nil || !c.Partial || c.Finish != api.FinishTimeout || c.Text != "the beginning" || c.Cost == 0 {
			t.Fatalf("got %+v, %v", c, err)
		}
	}
	if settled, _, active, _ := b.sums(); s.calls.Load() != 1 || settled != 1 || active != 0 {
		t.Errorf("%d calls, %d settled, %d active; want 1, paid", s.calls.Load(), settled, active)
	}
}

// TestDeadlineWithoutWords checks that a call without any text until the deadline fails
// with the reason, and that its prompt is paid.
func TestDeadlineWithoutWords(t *testing.T) {
	t.Parallel()
	s := answering(t, func(_ int64, _ raw, r *http.Request) { hang(r) })
	w, b := paid(t, s.url, nil)
	req := request("silent", "hello")
	req.Deadline = time.Now().Add(500 * time.Millisecond).UnixMicro()
	if _, _, err := ask(t, w.Bus, req); api.ReasonOf(err) != api.ReasonTimeout {
		t.Errorf("got %v, want %s", err, api.ReasonTimeout)
	}
	if settled, released, active, sum := b.sums(); settled != 1 || released+active != 0 || sum == 0 {
		t.Errorf("%d settled with %s, %d released, %d active; want the prompt paid", settled, sum, released, active)
	}
}

// TestFinishes checks the finish reasons of answers.
func TestFinishes(t *testing.T) {
	t.Parallel()
	finish := func(reason string) string {
		return fmt.Sprintf(`{"choices":[{"index":0,"delta":{},"finish_reason":%q}]}`, reason)
	}
	loop := chunkText(strings.Repeat("and so on, ", 64))
	for name, c := range map[string]struct {
		chunks       []string
		finish, text string
	}{
		"length":           {[]string{chunkText("long"), finish("length")}, api.FinishLength, "long"},
		"another's length": {[]string{chunkText("long"), finish("MAX_TOKENS")}, api.FinishLength, "long"},
		"filter":           {[]string{chunkText("bad"), finish("content_filter")}, api.FinishFilter, "bad"},
		"refusal":          {[]string{`{"choices":[{"index":0,"delta":{"refusal":"I won't."}}]}`, chunkStop}, api.FinishRefusal, "I won't."},
		"empty":            {[]string{chunkText("  \n"), chunkStop}, api.FinishEmpty, "  \n"},
		"repetition":       {append([]string{chunkText("It goes ")}, strings.Split(strings.Repeat(loop+"\n", 40), "\n")[:40]...), api.FinishRepetition, "It goes and so on,"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := answering(t, func(_ int64, out raw, r *http.Request) {
				out.events(append(c.chunks, chunkDone)...)
				if name == "repetition" {
					hang(r)
				}
			})
			w, _ := paid(t, s.url, nil)
			got, h, err := ask(t, w.Bus, request("end", "hello"))
			if err != nil || got.Finish != c.finish || got.Text != c.text || h.text.String() != c.text {
				t.Errorf("got %q %q, shown %q, %v; want %q %q", got.Finish, got.Text, h.text.String(), err, c.finish, c.text)
			}
		})
	}
}

// TestSameIDAtOnce checks that a second caller with the same id joins the call in
// progress.
func TestSameIDAtOnce(t *testing.T) {
	t.Parallel()
	begun, goOn := make(chan struct{}), make(chan struct{})
	s := answering(t, func(_ int64, out raw, _ *http.Request) {
		out.events(chunkText("one "))
		close(begun)
		<-goOn
		out.events(chunkText("two"), chunkStop, chunkDone)
	})
	w, b := paid(t, s.url, nil)
	var all sync.WaitGroup
	var joined atomic.Bool
	for i := range 2 {
		all.Go(func() {
			h := &heard{}
			ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
			defer cancel()
			if i == 1 {
				<-begun
			}
			c, err := bus.CallStream[api.Delta, api.Completion](ctx, w.Bus, request("twice", "hello"), func(d api.Delta) error {
				if i == 1 && joined.CompareAndSwap(false, true) {
					close(goOn)
				}
				return h.take(d)
			})
			if err != nil || c.Text != "one two" || h.text.String() != "one two" {
				t.Errorf("caller %d: got %q, shown %q, %v", i, c.Text, h.text.String(), err)
			}
		})
	}
	all.Wait()
	if settled, _, active, _ := b.sums(); s.calls.Load() != 1 || settled != 1 || active != 0 {
		t.Errorf("%d calls, %d settled, %d active; want 1", s.calls.Load(), settled, active)
	}
}

// TestBurst checks that an answer of many small pieces is received whole, in few
// messages, and is paid once.
func TestBurst(t *testing.T) {
	t.Parallel()
	const n = 20_000
	s := answering(t, func(_ int64, out raw, _ *http.Request) {
		out.w.Header().Set("Content-Type", "text/event-stream")
		for i := range n {
			_, _ = fmt.Fprintf(out.w, "data: %s\n\n", chunkText(fmt.Sprintf("%d ", i)))
		}
		out.events(chunkStop, chunkDone)
	})
	w, b := paid(t, s.url, nil)
	c, h, err := ask(t, w.Bus, request("burst", "hello"))
	if err != nil || h.text.String() != c.Text || !strings.HasSuffix(c.Text, fmt.Sprintf(" %d ", n-1)) {
		t.Fatalf("got %d bytes, shown %d, %v", len(c.Text), h.text.Len(), err)
	}
	if settled, _, _, _ := b.sums(); s.calls.Load() != 1 || settled != 1 || h.pieces > n/20 {
		t.Errorf("%d calls, %d settled, %d messages for %d pieces", s.calls.Load(), settled, h.pieces, n)
	}
}

// TestAnswerBeforeSettlement checks that the answer is sent before it is settled, to its
// caller and to one that joins meanwhile, and that the stream ends after the settlement.
func TestAnswerBeforeSettlement(t *testing.T) {
	t.Parallel()
	s := answering(t, func(_ int64, out raw, _ *http.Request) { out.events(chunkText("the answer"), chunkStop, chunkDone) })
	b := newBooks()
	settle := make(chan struct{})
	b.refusing(func(m api.Message) error {
		if _, ok := m.(api.Settle); ok {
			<-settle
		}
		return nil
	})
	w := paidBy(t, b, s.url, nil)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	var streams []*bus.StreamReader[api.Delta, api.Completion]
	for n := range 2 {
		stream, err := bus.OpenStream[api.Delta, api.Completion](ctx, w.Bus, request("early", "hello"))
		if err != nil {
			t.Fatal(err)
		}
		defer stream.Close()
		streams = append(streams, stream)
		for {
			d, more, err := stream.Next(ctx)
			if err != nil || !more {
				t.Fatalf("caller %d: the stream ended before the settlement: %+v, %v", n, stream.Answer(), err)
			}
			if d.Answer != nil {
				if d.Answer.Text != "the answer" || d.Answer.Cost == 0 {
					t.Errorf("caller %d: got %+v", n, d.Answer)
				}
				break
			}
		}
	}
	close(settle)
	for n, stream := range streams {
		if d, more, err := stream.Next(ctx); err != nil || more || stream.Answer().Text != "the answer" || stream.Answer().Funds == nil {
			t.Errorf("caller %d: got piece %+v, answer %+v, %v; want the end", n, d, stream.Answer(), err)
		}
	}
	if settled, _, active, _ := b.sums(); s.calls.Load() != 1 || settled != 1 || active != 0 {
		t.Errorf("%d calls, %d settled, %d active; want one call that is paid", s.calls.Load(), settled, active)
	}
}

// TestConfirm checks that a caller with an answer whose settlement failed can have it
// settled with [api.Confirm].
func TestConfirm(t *testing.T) {
	t.Parallel()
	s := answering(t, func(_ int64, out raw, _ *http.Request) { out.events(chunkText("the answer"), chunkStop, chunkDone) })
	b := newBooks()
	b.refuseSettlements()
	w := paidBy(t, b, s.url, nil)
	_, h, err := ask(t, w.Bus, request("late", "hello"))
	if api.CodeOf(err) != api.Unavailable || h.early == nil || h.early.Text != "the answer" {
		t.Fatalf("got %v and the early answer %+v, want it and Unavailable", err, h.early)
	}
	confirm := func(call, agent string) (api.Completion, error) {
		return bus.Call[api.Completion](t.Context(), w.Bus, api.Confirm{ID: call, Agent: agent})
	}
	if _, err := confirm("late", "lucky"); api.CodeOf(err) != api.Unavailable {
		t.Errorf("while treasury is away: got %v, want Unavailable", err)
	}
	b.refusing(nil)
	for range 2 {
		if c, err := confirm("late", "lucky"); err != nil || c.Text != "the answer" {
			t.Errorf("got %+v, %v; want the answer", c, err)
		}
	}
	if _, err := confirm("late", "bob"); api.CodeOf(err) != api.Conflict {
		t.Errorf("another agent: got %v, want Conflict", err)
	}
	if _, err := confirm("never", "lucky"); api.CodeOf(err) != api.NotFound {
		t.Errorf("a call that was never made: got %v, want NotFound", err)
	}
	if settled, _, active, _ := b.sums(); s.calls.Load() != 1 || settled != 1 || active != 0 {
		t.Errorf("%d calls, %d settled, %d active; want one call that is paid", s.calls.Load(), settled, active)
	}
}

// TestSettlesAtATreasuryOfTheReleaseBefore checks that settlements are sent one by one to
// a treasury of the previous release, which does not report funds.
func TestSettlesAtATreasuryOfTheReleaseBefore(t *testing.T) {
	t.Parallel()
	s := answering(t, func(_ int64, out raw, _ *http.Request) { out.events(chunkText("the answer"), chunkStop, chunkDone) })
	b := newBooks()
	b.past = true
	w := paidBy(t, b, s.url, nil)
	for _, id := range []string{"first", "second"} {
		if c, _, err := ask(t, w.Bus, request(id, "hello")); err != nil || c.Text != "the answer" || c.Funds != nil {
			t.Errorf("%s: got %+v, %v", id, c, err)
		}
	}
	if settled, _, active, _ := b.sums(); settled != 2 || active != 0 {
		t.Errorf("%d settled, %d active; want both settled", settled, active)
	}
}

package router_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/api/chat"
	"github.com/anima-run/anima/pkg/apptest"
	"github.com/anima-run/anima/pkg/bus"
	"github.com/anima-run/anima/pkg/sqldb"

	"github.com/anima-run/anima/services/inference-router/internal/model"
	calls "github.com/anima-run/anima/services/inference-router/internal/provider"
	"github.com/anima-run/anima/services/inference-router/internal/provider/openai/responsestest"
	"github.com/anima-run/anima/services/inference-router/openaitest"
)

// bill is the ledger of a test provider: the tokens that it charged. It charges the prompt
// of each request that it accepts and the text that it generated, whether or not the
// answer is received.
type bill struct {
	mu     sync.Mutex
	tokens model.Tokens
	thought,
	charges int64
	cost   api.Micros
	prices model.Model // zero: dear
}

// dear has the prices of the models that [paid] sets.
var dear = model.Model{Known: true, InputPrice: 1_000_000, OutputPrice: 4_000_000}

func (b *bill) charge(u openaitest.Usage) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.tokens.Input += u.Input
	b.tokens.Cached += u.CachedInput
	b.tokens.Written += u.CacheWrite
	b.tokens.Output += u.Output
	b.thought += u.Reasoning
	prices := b.prices
	if !prices.Known {
		prices = dear
	}
	b.cost += api.Micros(prices.Cost(u.Tokens()))
	b.charges++
}

const half, whole = "these words are the beginning ", "and these are the end of the answer"

// billedStream is a stream in one of the protocols of OpenAI.
type billedStream interface {
	Text(text string)
	Finish(reason string)
	Usage(u openaitest.Usage)
	Done()
}

// billed reads a request in one of the protocols of OpenAI and returns it with its stream.
func billed(w http.ResponseWriter, r *http.Request) (calls.Request, billedStream, error) {
	if responsestest.IsPath(r) {
		_, req, err := responsestest.Decode(r.Body)
		return req, responsestest.NewStream(w, "id", req.Model), err
	}
	req, err := openaitest.Decode(r.Body, r.ContentLength)
	return req.Request, openaitest.NewStream(w, "id", req.Model, 0), err
}

// serveBilled runs an OpenAI-compatible server whose answer is chosen by the last message.
func serveBilled(t *testing.T, b *bill) string {
	t.Helper()
	var mu sync.Mutex
	seen := map[string]int{}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			openaitest.WriteModels(w, openaitest.Model{}, "m", "n")
			return
		}
		req, out, err := billed(w, r)
		if err != nil {
			openaitest.WriteError(w, http.StatusBadRequest, openaitest.Error{Message: err.Error()})
			return
		}
		say := req.Messages[len(req.Messages)-1].Content
		mu.Lock()
		seen[say]++
		n := seen[say]
		mu.Unlock()
		used := openaitest.Usage{Input: req.Estimate()}
		switch {
		case say == "busy" && n == 1:
			w.Header().Set("Retry-After", "0.01")
			openaitest.WriteError(w, http.StatusTooManyRequests, openaitest.Error{Message: "wait"})
			return
		case say == "broken" && n == 1:
			openaitest.WriteError(w, http.StatusInternalServerError, openaitest.Error{Message: "it broke"})
			return
		case say == "silent":
			b.charge(used)
			hang(r)
			return
		}
		out.Text(half)
		used.Output = chat.Tokens(half)
		switch {
		case say == "abort":
			b.charge(used)
			hang(r)
			return
		case say == "cut" && n == 1:
			b.charge(used)
			panic(http.ErrAbortHandler)
		}
		out.Text(whole)
		used.Output = chat.Tokens(half + whole)
		out.Finish("stop")
		if say != "uncounted" {
			used = openaitest.Usage{Input: used.Input + 7, CachedInput: 5, Output: used.Output + 11, Reasoning: 9}
			out.Usage(used)
		}
		b.charge(used)
		out.Done()
	}))
	t.Cleanup(srv.Close)
	return srv.URL + "/v1"
}

// rows returns the sums of the router's rows.
func rows(t *testing.T, w *apptest.World) (b *bill) {
	t.Helper()
	db, err := sqldb.Open(t.Context(), "sqlite:"+w.Data+"/inference-router/inference-router.db", sqldb.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }() // it was only read
	b = &bill{}
	err = db.QueryRowContext(t.Context(), `select sum(input_tokens), sum(cached_tokens), sum(cache_write_tokens), sum(output_tokens), sum(reasoning_tokens),
		sum(cost_micros), count(case when input_tokens > 0 then 1 end) from inference_attempts`).
		Scan(&b.tokens.Input, &b.tokens.Cached, &b.tokens.Written, &b.tokens.Output, &b.thought, &b.cost, &b.charges)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestBill checks that the rows of the router and the settlements of treasury agree with
// what the provider charged, to the token: whole streams with and without usage, refusals,
// a stream that is cut, a server that stalls, and callers that leave before and after the
// first token.
func TestBill(t *testing.T) {
	t.Parallel()
	for _, protocol := range []string{"chat", "responses"} {
		t.Run(protocol, func(t *testing.T) {
			t.Parallel()
			testBill(t, protocol)
		})
	}
}

func testBill(t *testing.T, protocol string) {
	t.Helper()
	charged := &bill{}
	w, b := paid(t, serveBilled(t, charged), map[string]string{"ANIMA_INFERENCE_ROUTER_FIRST_TOKEN_TIMEOUT": "2s", "ANIMA_INFERENCE_ROUTER_OPENAI_API": protocol})
	for _, text := range []string{"plain", "uncounted", "busy", "broken", "cut"} {
		if c, _, err := ask(t, w.Bus, request("bill-"+text, text)); err != nil || c.Text != half+whole {
			t.Errorf("%s: got %q, %v", text, c.Text, err)
		}
	}
	leave, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	_, err := bus.CallStream[api.Delta, api.Completion](leave, w.Bus, request("bill-abort", "abort"), func(d api.Delta) error {
		if d.Content != "" {
			cancel()
		}
		return nil
	})
	if err == nil {
		t.Error("the aborted call was answered")
	}
	silent := request("bill-silent", "silent")
	silent.Deadline = time.Now().Add(time.Second).UnixMicro()
	if _, _, err := ask(t, w.Bus, silent); err == nil {
		t.Error("the silent server answered")
	}
	w.Stop() // ends the work after the aborted call
	b.agrees(t, charged, rows(t, w))
}

// agrees checks that the bill of the provider, the rows and the settlements are equal.
func (b *books) agrees(t *testing.T, charged, got *bill) {
	t.Helper()
	for _, l := range []*bill{charged, got} { // the provider may still write its last answer
		l.mu.Lock()
		defer l.mu.Unlock()
	}
	ignored := cmp.FilterPath(func(p cmp.Path) bool { return p.Last().String() == ".mu" || p.Last().String() == ".prices" }, cmp.Ignore())
	if diff := cmp.Diff(charged, got, cmp.AllowUnexported(bill{}), ignored); diff != "" {
		t.Errorf("the provider's bill and the rows differ (-bill +rows):\n%s", diff)
	}
	if _, _, active, sum := b.sums(); sum != charged.cost || active != 0 {
		t.Errorf("settled %s with %d active holds, want the bill of %s", sum, active, charged.cost)
	}
}

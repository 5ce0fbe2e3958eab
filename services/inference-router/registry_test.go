package router_test

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/apptest"
	"github.com/anima-run/anima/pkg/bus"
	router "github.com/anima-run/anima/services/inference-router"
)

// stocked starts a router with a shop as its provider, whose models need a price.
func stocked(t *testing.T, s *shop) *apptest.World {
	t.Helper()
	srv := httptest.NewServer(s)
	t.Cleanup(srv.Close)
	return apptest.Start(t, apptest.Options{Env: map[string]string{"OPENAI_BASE_URL": srv.URL + "/v1", "ANIMA_INFERENCE_ROUTER_LOCAL": "no"}}, router.Service, newBooks().service())
}

func answerTo[A any](t *testing.T, b *bus.Bus, m api.Message) A {
	t.Helper()
	v, err := bus.Call[A](t.Context(), b, m)
	if err != nil {
		t.Fatalf("%T: %v", m, err)
	}
	return v
}

// metricLine returns the line of the metrics page that begins with a text.
func metricLine(t *testing.T, w *apptest.World, begins string) string {
	t.Helper()
	res, err := http.Get(w.Ops + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	page, err := io.ReadAll(res.Body)
	if err = errors.Join(err, res.Body.Close()); err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(page)) {
		if strings.HasPrefix(line, begins) {
			return strings.TrimSpace(line)
		}
	}
	return ""
}

const priced = `{"id":"acme","context_length":32000,"pricing":{"prompt":"0.000001","completion":"0.000004"}}`

// TestVanishedModel checks that a model that its provider lists no more is not called, keeps
// its price and is reported, and that the operator can remove it.
func TestVanishedModel(t *testing.T) {
	t.Parallel()
	s := &shop{}
	s.set(priced, "acme")
	w := stocked(t, s)
	named := func(id string) (api.Completion, error) {
		c, _, err := complete(t, w.Bus, request(id, "hello"))
		return c, err
	}
	call := request("c1", "hello")
	call.Model = "acme"
	if c, _, err := complete(t, w.Bus, call); err != nil || c.Cost == 0 {
		t.Fatalf("got %+v, %v", c, err)
	}
	s.set("", "acme")
	answerTo[api.Models](t, w.Bus, api.RefreshModels{})
	found, _ := listed(t, w.Bus)
	if m := found["acme"]; m.Usable || m.Vanished == 0 || m.InputPrice != api.Dollar || m.Lifecycle != api.LifeDiscovered || !strings.Contains(m.Why, "any more") {
		t.Errorf("after it vanished: got %+v, want it unusable with its last price", m)
	}
	if got := metricLine(t, w, "anima_inference_models_vanished{"); !strings.Contains(got, `gen_ai_provider_name="openai"`) || !strings.HasSuffix(got, " 1") {
		t.Errorf("metric: got %q, want 1 for openai", got)
	}
	if c, err := named("c2"); err == nil {
		t.Errorf("a call after it vanished: got %+v, want a refusal", c)
	}
	answerTo[api.Model](t, w.Bus, api.RemoveModel{Model: "acme"})
	if found, _ = listed(t, w.Bus); found["acme"].ID != "" {
		t.Errorf("after its removal: got %+v", found["acme"])
	}
	if got := metricLine(t, w, "anima_inference_models_vanished{"); !strings.HasSuffix(got, " 0") {
		t.Errorf("metric after the removal: got %q, want 0", got)
	}
	s.set(priced, "acme")
	answerTo[api.Models](t, w.Bus, api.RefreshModels{})
	if found, _ = listed(t, w.Bus); !found["acme"].Usable || found["acme"].PriceVersion != 1 {
		t.Errorf("listed again: got %+v, want it usable with the version 1 of its price", found["acme"])
	}
}

// TestOperatorsModels checks models and prices that the operator sets: they precede the list,
// no refresh changes them, attempts are paid by them, and a removal withdraws them.
func TestOperatorsModels(t *testing.T) {
	t.Parallel()
	s := &shop{}
	s.set(priced+`,{"id":"mystery"}`, "mystery")
	w := stocked(t, s)
	if found, _ := listed(t, w.Bus); found["mystery"].Usable || !found["mystery"].PriceUnknown || !strings.Contains(found["mystery"].Why, "anima model set-price") {
		t.Errorf("without a price: got %+v, want a reason", found["mystery"])
	}
	two := api.Prices{Input: 2 * api.Dollar, Output: 10 * api.Dollar}
	for range 2 { // the second time as after a lost answer
		if m := answerTo[api.Model](t, w.Bus, api.SetModelPrice{Model: "mystery", Prices: two}); !m.Usable || m.PriceVersion != 1 {
			t.Errorf("with a price: got %+v, want it usable by version 1", m)
		}
	}
	call := request("c1", "hello")
	call.Model = "mystery"
	if c, _, err := complete(t, w.Bus, call); err != nil || c.Cost != 9*2+2*10 { // 9 tokens in, 2 out
		t.Errorf("got %+v, %v; want the operator's price", c, err)
	}
	for range 2 {
		m := answerTo[api.Model](t, w.Bus, api.AddModel{Model: "acme", Prices: two, ContextWindow: 4000, TierMinimum: api.TierNormal, NoTools: true})
		if !m.Usable || m.Lifecycle != api.LifeOperator || m.InputPrice != 2*api.Dollar || m.ContextWindow != 4000 || m.MaxOutput != 1000 || m.PriceVersion != 2 {
			t.Errorf("declared: got %+v", m)
		}
	}
	later := time.Now().Add(time.Hour).UnixMicro()
	if m := answerTo[api.Model](t, w.Bus, api.SetModelPrice{Model: "acme", Prices: api.Prices{Input: 9}, From: later}); m.InputPrice != 2*api.Dollar {
		t.Errorf("a later price applies at once: %+v", m)
	}
	s.set(`{"id":"acme","context_length":99,"pricing":{"prompt":"0.000007","completion":"0.000007"}},{"id":"mystery"}`, "mystery")
	answerTo[api.Models](t, w.Bus, api.RefreshModels{})
	if found, _ := listed(t, w.Bus); found["acme"].InputPrice != 2*api.Dollar || found["acme"].ContextWindow != 4000 {
		t.Errorf("after a refresh: got %+v, want the declaration", found["acme"])
	}
	versions := answerTo[api.ModelPrices](t, w.Bus, api.ListModelPrices{Model: "acme"}).Prices
	if len(versions) != 4 || versions[0].Prices.Input != 7*api.Dollar || versions[0].InUse || !versions[2].InUse || versions[1].From != later {
		t.Errorf("versions: got %+v, want four, of which 2 is in use", versions)
	}
	if m := answerTo[api.Model](t, w.Bus, api.RemoveModel{Model: "acme"}); m.Lifecycle != api.LifeOperator {
		t.Errorf("removed: got %+v", m)
	}
	if found, _ := listed(t, w.Bus); found["acme"].InputPrice != 7*api.Dollar || found["acme"].Lifecycle != api.LifeDiscovered {
		t.Errorf("after the removal: got %+v, want the list's", found["acme"])
	}
	for _, c := range []struct {
		m    api.Message
		want api.Code
	}{
		{api.RemoveModel{Model: "acme"}, api.Conflict},
		{api.RemoveModel{Model: "gpt-5.2"}, api.Conflict},
		{api.RemoveModel{Model: "nobody"}, api.NotFound},
		{api.SetModelPrice{Model: "nobody"}, api.NotFound},
		{api.SetModelPrice{Model: "acme", Prices: api.Prices{Input: -1}}, api.Invalid},
		{api.SetModelPrice{Model: "acme", Prices: two, From: 1}, api.Invalid},
		{api.AddModel{Model: "gpt-5.2", Prices: two}, api.Conflict},
		{api.AddModel{Model: "a b", Prices: two}, api.Invalid},
		{api.AddModel{Model: "a", Provider: "nobody", Prices: two}, api.Invalid},
		{api.AddModel{Model: "a", TierMinimum: "rich", Prices: two}, api.Invalid},
		{api.AddModel{Model: "a", ContextWindow: -1, Prices: two}, api.Invalid},
		{api.AddModel{Model: "a", Prices: api.Prices{Output: api.MaxPrice + 1}}, api.Invalid},
	} {
		if _, err := bus.Call[api.Model](t.Context(), w.Bus, c.m); api.CodeOf(err) != c.want {
			t.Errorf("%T%+v: got %v, want %s", c.m, c.m, err, c.want)
		}
	}
}

// TestLaterPrice checks that a price is used from its time on, without a further request.
func TestLaterPrice(t *testing.T) {
	t.Parallel()
	s := &shop{}
	s.set(priced, "acme")
	w := stocked(t, s)
	from := time.Now().Add(1500 * time.Millisecond)
	if m := answerTo[api.Model](t, w.Bus, api.SetModelPrice{Model: "acme", Prices: api.Prices{Input: 3, Output: 4}, From: from.UnixMicro()}); m.InputPrice != api.Dollar {
		t.Errorf("before its time: got %+v, want the price of the list", m)
	}
	late := time.After(30 * time.Second)
	for again := time.Tick(20 * time.Millisecond); ; {
		found, _ := listed(t, w.Bus)
		if found["acme"].InputPrice == 3 {
			break
		}
		select {
		case <-again:
		case <-late:
			t.Fatalf("after its time: got %+v, want the later price", found["acme"])
		}
	}
	if time.Now().Before(from) {
		t.Error("the price is used before its time")
	}
}

// TestReplicasShareTheRegistry checks that a price that one of two replicas has stored is
// used by both, and that the registry is there after a restart without its provider.
func TestReplicasShareTheRegistry(t *testing.T) {
	t.Parallel()
	s := &shop{}
	s.set(priced, "acme")
	srv := httptest.NewServer(s)
	server, data := apptest.Server(t), t.TempDir()
	o := apptest.Options{Server: server, Data: data, Env: map[string]string{"OPENAI_BASE_URL": srv.URL + "/v1", "ANIMA_INFERENCE_ROUTER_LOCAL": "no"}}
	w := apptest.Start(t, o, router.Service)
	second := apptest.Start(t, o, router.Service)
	const changes = 20
	var slowest, sum time.Duration
	for n := range changes {
		want := api.Micros(n+1) * api.Cent
		began := time.Now()
		answerTo[api.Model](t, w.Bus, api.SetModelPrice{Model: "acme", Prices: api.Prices{Input: want, Output: want}})
		for same := 0; same < 20; { // of two replicas, one answers each request
			found, _ := listed(t, w.Bus)
			if same++; found["acme"].InputPrice != want {
				same = 0
			}
			if time.Since(began) > 30*time.Second {
				t.Fatal("not all replicas use the price")
			}
		}
		took := time.Since(began)
		slowest, sum = max(slowest, took), sum+took
	}
	t.Logf("from the request until 20 answers in a row have the price: mean %s, slowest %s of %d", sum/changes, slowest, changes)
	second.Stop()
	w.Stop()
	srv.Close()
	w = apptest.Start(t, o, router.Service)
	if found, faults := listed(t, w.Bus); !found["acme"].Usable || found["acme"].InputPrice != changes*api.Cent || len(faults) != 1 {
		t.Errorf("after a restart without the provider: got %+v, faults %v; want the stored model and one fault", found["acme"], faults)
	}
}

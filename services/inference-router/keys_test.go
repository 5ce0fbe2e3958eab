package router_test

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/apptest"
	"github.com/anima-run/anima/pkg/bus"
	"github.com/anima-run/anima/pkg/host"
	router "github.com/anima-run/anima/services/inference-router"
)

// keyDesk is a fake of social that knows API keys. The real one is tested in e2e.
type keyDesk struct {
	mu   sync.Mutex
	keys map[string]api.KeyIdentity // by hash
}

// issue returns a new key of an account.
func (d *keyDesk) issue(account string, scopes ...api.Scope) string {
	key := api.NewKey()
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.keys == nil {
		d.keys = map[string]api.KeyIdentity{}
	}
	d.keys[api.HashKey(key)] = api.KeyIdentity{Key: api.HashKey(key)[:16], Account: account, Scopes: scopes}
	return key
}

func (d *keyDesk) service() host.Service {
	return host.Define("social", struct{}{}, nil, func(ctx context.Context, env *host.Env, _ struct{}) error {
		return env.Serve(ctx, bus.Reply(func(_ context.Context, m api.AuthenticateKey) (api.KeyIdentity, error) {
			d.mu.Lock()
			defer d.mu.Unlock()
			id, ok := d.keys[m.Hash]
			if !ok {
				return id, api.Errorf(api.Denied, "the API key is unknown, revoked or expired")
			}
			return id, nil
		}))
	})
}

// modelRoutes are the routes of model calls with a request for each.
func modelRoutes(model string) map[string]string {
	const hi = `[{"role":"user","content":"hi"}]`
	return map[string]string{
		"POST /v1/chat/completions":   `{"model":"` + model + `","messages":` + hi + `}`,
		"POST /v1/responses":          `{"model":"` + model + `","input":` + hi + `}`,
		"POST /anthropic/v1/messages": `{"model":"` + model + `","max_tokens":9,"messages":` + hi + `}`,
	}
}

// httpReply is an answer of a model route, with the error of either protocol.
type httpReply struct {
	status int
	header http.Header
	body   string
	Type   string `json:"type"` // "error" in Anthropic's protocol
	Error  struct {
		Message string `json:"message"`
		Type    string `json:"type"`
		Code    string `json:"code"`
	} `json:"error"`
}

// fetch sends a request with a credential in a header.
func fetch(t *testing.T, w *apptest.World, route, body, header, credential string, more ...string) (out httpReply) {
	t.Helper()
	method, path, _ := strings.Cut(route, " ")
	if credential != "" {
		more = append([]string{header, credential}, more...)
	}
	out.status, out.header, out.body = send(t, method, w.HTTP+path, body, more...)
	if err := json.Unmarshal([]byte(out.body), &out); err != nil {
		t.Fatalf("%s: %d %s: %v", route, out.status, out.body, err)
	}
	return out
}

// TestKeys checks that the model routes take the API keys of agents: a call is paid by the
// agent of its key, and a refusal has the status and the error object of the protocol.
func TestKeys(t *testing.T) {
	t.Parallel()
	s := answering(t, func(_ int64, out raw, _ *http.Request) { out.events(chunkText("yes"), chunkStop, chunkDone) })
	desk, b := &keyDesk{}, newBooks()
	w := apptest.Start(t, apptest.Options{Env: map[string]string{
		"OPENAI_BASE_URL": s.url, "OPENAI_API_KEY": "sekret-key", "ANIMA_INFERENCE_ROUTER_MODELS": "m=1/4/128000",
	}}, router.Service, b.service(), desk.service())
	withBalances(t, w)
	good, reads, gone := desk.issue("lucky", api.KeyScopes()...), desk.issue("lucky", api.ScopeRead), api.NewKey()
	routes := modelRoutes("m")
	routes["GET /v1/models"] = ""
	routes["GET /v1/models/m"] = ""
	routes["GET /anthropic/v1/models"] = ""
	routes["GET /anthropic/v1/models/m"] = ""
	routes["POST /anthropic/v1/messages/count_tokens"] = `{"model":"m","messages":[{"role":"user","content":"hi"}]}`
	for route, body := range routes {
		t.Run(route, func(t *testing.T) {
			t.Parallel()
			calls := strings.HasPrefix(route, "POST ")
			for _, header := range []string{"Authorization", "X-Api-Key"} {
				for _, refused := range []struct {
					name, key string
					more      []string
					status    int
				}{
					{"no key", "", nil, http.StatusUnauthorized},
					{"not a key", "hunter2", nil, http.StatusUnauthorized},
					{"revoked", gone, nil, http.StatusUnauthorized},
					{"another scope", reads, nil, http.StatusForbidden},
					{"another agent", good, []string{"Anima-Agent", "bob"}, http.StatusForbidden},
				} {
					if !calls && refused.status == http.StatusForbidden {
						continue // the list needs no scope to spend and belongs to no agent
					}
					got := fetch(t, w, route, body, header, refused.key, refused.more...)
					want := wordsOf(route, refused.status)
					if got.status != refused.status || got.Error.Type != want || got.Error.Message == "" || refused.key != "" && strings.Contains(got.body, refused.key) {
						t.Errorf("%s in %s: got %d %s, want %d with the type %s and not the key", refused.name, header, got.status, got.body, refused.status, want)
					}
				}
				if got := fetch(t, w, route, body, header, good); got.status != http.StatusOK {
					t.Errorf("a key in %s: got %d %s", header, got.status, got.body)
				}
			}
			got := fetch(t, w, route, body, "Authorization", "Bearer "+good, "Anima-Agent", "lucky")
			if got.status != http.StatusOK {
				t.Errorf("a key with its agent: got %d %s", got.status, got.body)
			}
		})
	}
	t.Cleanup(func() { // after the parallel routes
		b.mu.Lock()
		defer b.mu.Unlock()
		for _, h := range b.holds {
			if h.Agent != "lucky" || h.Status != api.HoldSettled {
				t.Errorf("got %+v, want a settled hold of lucky", h)
			}
		}
		if len(b.holds) != 9 {
			t.Errorf("got %d paid calls, want 9: three for each route of calls", len(b.holds))
		}
	})
}

// wordsOf returns the type of an error with a status in the protocol of a route.
func wordsOf(route string, status int) string {
	anthropic := strings.Contains(route, "/anthropic/")
	switch {
	case anthropic && status == http.StatusUnauthorized:
		return "authentication_error"
	case anthropic && status == http.StatusForbidden:
		return "permission_error"
	}
	return "invalid_request_error"
}

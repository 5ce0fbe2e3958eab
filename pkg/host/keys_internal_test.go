package host

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"go.opentelemetry.io/otel/trace/noop"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/config"
)

// keyDesk stands for social. It counts the questions.
type keyDesk struct {
	asked int
	err   error
	id    api.KeyIdentity
}

func (d *keyDesk) ask(context.Context, api.AuthenticateKey) (api.KeyIdentity, error) {
	d.asked++
	return d.id, d.err
}

func TestKeyring(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_790_000_000, 0)
	desk := &keyDesk{id: api.KeyIdentity{Key: "k1", Account: "alice", Scopes: []api.Scope{api.ScopeRead}}}
	ring := newKeyring(func() time.Time { return now }, desk.ask)
	key := api.NewKey()
	check := func(name string, scope api.Scope, code api.Code, asked int) {
		t.Helper()
		c, err := ring.caller(t.Context(), key, scope)
		if api.CodeOf(err) != code || desk.asked != asked || err == nil && c.Account != "alice" {
			t.Errorf("%s: got %+v, %v after %d questions; want code %q after %d", name, c, err, desk.asked, code, asked)
		}
	}
	check("first use", api.ScopeRead, "", 1)
	check("from the cache", api.ScopeRead, "", 1)
	check("another scope", api.ScopeSpend, api.Denied, 1)
	desk.err = api.Errorf(api.Denied, "revoked")
	now = now.Add(keyLife - 1)
	check("revoked lately", api.ScopeRead, "", 1)
	now = now.Add(1)
	check("revoked", api.ScopeRead, api.Denied, 2)
	check("refused from the cache", api.ScopeRead, api.Denied, 2)
	now = now.Add(refusalLife)
	desk.err = errors.New("no answer")
	check("social does not answer", api.ScopeRead, api.Unavailable, 3)
	desk.err = nil
	desk.id.ExpiresAt = now.Add(time.Second).UnixMicro()
	check("answers again", api.ScopeRead, "", 4)
	now = now.Add(time.Second)
	desk.err = api.Errorf(api.Denied, "expired")
	check("expired while cached", api.ScopeRead, api.Denied, 5)
	key = "hunter2"
	check("not a key", api.ScopeRead, api.Denied, 5)
}

// TestKeyringIsBounded checks that unknown keys do not fill the memory.
func TestKeyringIsBounded(t *testing.T) {
	t.Parallel()
	desk := &keyDesk{err: api.Errorf(api.Denied, "unknown")}
	ring := newKeyring(time.Now, desk.ask)
	for range maxKeys + 100 {
		if _, err := ring.caller(t.Context(), api.NewKey(), api.ScopeRead); api.CodeOf(err) != api.Denied {
			t.Fatalf("got %v", err)
		}
	}
	if len(ring.known) > maxKeys {
		t.Errorf("got %d cached answers, at most %d", len(ring.known), maxKeys)
	}
}

// TestKeyedRoute checks the three ways to send a key, the operator's token, and the
// statuses of refusals.
func TestKeyedRoute(t *testing.T) {
	t.Parallel()
	desk := &keyDesk{id: api.KeyIdentity{Key: "k1", Account: "alice", Scopes: []api.Scope{api.ScopeRead}}}
	e := newEdge(Config{HTTPAddr: "127.0.0.1:0", Token: config.Secret("operators-token")}, newStatus(nil))
	routes := serviceRoutes{edge: e, tracers: noop.NewTracerProvider(), keys: newKeyring(time.Now, desk.ask)}
	for _, scope := range []api.Scope{api.ScopeRead, api.ScopeSpend} {
		routes.Keyed("GET /"+string(scope), scope, WriteError, func(w http.ResponseWriter, r *http.Request) {
			who, err := CallerOf(r.Context()).Acts(r.URL.Query().Get("agent"))
			WriteJSON(w, who, err)
		})
	}
	key := api.NewKey()
	for name, tt := range map[string]struct {
		path, header, value string
		status              int
		body                string
	}{
		"raw":                     {"/read", "Authorization", key, 200, "\"alice\"\n"},
		"bearer":                  {"/read", "Authorization", "bearer " + key, 200, "\"alice\"\n"},
		"X-API-Key":               {"/read", "X-API-Key", key, 200, "\"alice\"\n"},
		"own agent":               {"/read?agent=alice", "X-API-Key", key, 200, "\"alice\"\n"},
		"another agent":           {"/read?agent=bob", "X-API-Key", key, 403, ""},
		"another scope":           {"/spend", "X-API-Key", key, 403, ""},
		"no credential":           {"/read", "X-Other", key, 401, ""},
		"a wrong token":           {"/read", "Authorization", "Bearer operators", 401, ""},
		"operator":                {"/spend?agent=bob", "Authorization", "Bearer operators-token", 200, "\"bob\"\n"},
		"operator names no agent": {"/spend", "Authorization", "operators-token", 400, ""},
	} {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "http://localhost"+tt.path, nil)
		r.Header.Set(tt.header, tt.value)
		w := httptest.NewRecorder()
		e.ServeHTTP(w, r)
		if w.Code != tt.status || tt.body != "" && w.Body.String() != tt.body {
			t.Errorf("%s: got %d %s, want %d %s", name, w.Code, w.Body, tt.status, tt.body)
		}
	}
}

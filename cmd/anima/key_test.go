package main

import (
	"net/http"
	"strings"
	"testing"

	"github.com/anima-run/anima/pkg/api"
)

// TestKeys checks an API key on all routes that accept one, that it acts for its own agent
// only, and that it is refused after it was revoked.
func TestKeys(t *testing.T) {
	t.Parallel()
	u := newMachine(t).up()
	made := asked[createdKey](u.machine, "key", "create", "lucky", "--name", "script")
	if api.HashKey(made.Key) == "" || made.Agent != "lucky" || made.Name != "script" {
		t.Fatalf("created %+v", made)
	}
	printed := u.run("", "key", "create", "lucky", "--scopes", "read", "--expires", "1h")
	reader := strings.TrimSpace(printed.out)
	if api.HashKey(reader) == "" || !strings.Contains(printed.err, "not shown again") {
		t.Fatalf("printed %+v, want only the key on standard output", printed)
	}
	if out := u.cli("key", "list", "lucky"); !strings.Contains(out, made.Hint) || strings.Contains(out, made.Key) || !strings.Contains(out, "usable until") {
		t.Errorf("the list is\n%s", out)
	}
	const body = `{"model":"anima-sim-1","messages":[{"role":"user","content":"hello"}]}`
	send := func(key, method, path, body string, header map[string]string) response {
		h := map[string]string{"Authorization": key, "Content-Type": "application/json"}
		for k, v := range header {
			h[k] = v
		}
		return request(t, method, u.HTTP+path, body, h)
	}
	for name, tt := range map[string]struct {
		key, method, path, body string
		header                  map[string]string
		want                    int
	}{
		"balance":                  {made.Key, "GET", "/v1/credits/balance", "", nil, 200},
		"balance with Bearer":      {"Bearer " + reader, "GET", "/v1/credits/balance?agent=lucky", "", nil, 200},
		"balance of another":       {made.Key, "GET", "/v1/credits/balance?agent=nova", "", nil, 403},
		"models":                   {reader, "GET", "/v1/models", "", nil, 200},
		"model call":               {made.Key, "POST", "/v1/chat/completions", body, nil, 200},
		"model call of another":    {made.Key, "POST", "/v1/chat/completions", body, map[string]string{"Anima-Agent": "nova"}, 403},
		"model call without spend": {reader, "POST", "/v1/chat/completions", body, nil, 403},
		"model call by responses":  {made.Key, "POST", "/v1/responses", `{"model":"anima-sim-1","input":"hello"}`, nil, 200},
		"model call by messages": {
			made.Key, "POST", "/anthropic/v1/messages", `{"model":"anima-sim-1","max_tokens":64,"messages":[{"role":"user","content":"hello"}]}`,
			map[string]string{"Authorization": "", "X-Api-Key": made.Key},
			200,
		},
		"messages without spend":   {reader, "POST", "/anthropic/v1/messages", body, nil, 403},
		"responses of another key": {api.NewKey(), "POST", "/v1/responses", `{"model":"anima-sim-1","input":"hello"}`, nil, 401},
		"another key":              {api.NewKey(), "GET", "/v1/credits/balance", "", nil, 401},
		"no route of keys":         {made.Key, "GET", "/v1/agents", "", nil, 401},
	} {
		if got := send(tt.key, tt.method, tt.path, tt.body, tt.header); got.status != tt.want {
			t.Errorf("%s: got %d %s, want %d", name, got.status, got.body, tt.want)
		}
	}
	u.fails(exitNotFound, "", []string{"key", "create", "nobody"}, "nobody")
	u.fails(exitUsage, "", []string{"key", "create", "lucky", "--scopes", "keys"}, "scope")
	u.fails(exitUsage, "", []string{"key", "create", "lucky", "--scopes", ""}, "--scopes is empty")
	u.fails(exitNotFound, "", []string{"key", "revoke", "unknown"}, "anima key list")
	if out := u.cli("key", "revoke", made.ID); !strings.Contains(out, "five seconds") {
		t.Errorf("revoke says %s", out)
	}
	until(t, func() int { return send(made.Key, http.MethodPost, "/v1/chat/completions", body, nil).status }, func(status int) bool { return status == 401 })
}

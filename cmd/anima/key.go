package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/wait"
)

type keyCmd struct {
	Create keyCreateCmd `cmd:"" help:"Create an API key for an agent and print it."`
	List   keyListCmd   `cmd:"" help:"List API keys, the latest first."`
	Revoke keyRevokeCmd `cmd:"" help:"Revoke an API key."`
}

type keyCreateCmd struct {
	Owner   string        `arg:"" help:"The agent for which the key acts, or an address outside this installation." predictor:"agent"`
	Name    string        `help:"Name of the key in lists." default:"key"`
	Scopes  []string      `help:"What the key permits: read, spend." default:"read,spend"`
	Expires time.Duration `help:"How long the key is valid, as in 720h; without it the key does not expire."`
}

// createdKey is a new key. Key is printed once and stored nowhere.
type createdKey struct {
	Key string `json:"key"`
	api.APIKey
}

// Run creates the key here and sends its hash only.
func (c keyCreateCmd) Run(ctx context.Context, a *app) error {
	if c.Expires < 0 {
		return failure(api.Invalid, "the key would have expired already", "use a positive duration, as in 720h")
	}
	if len(c.Scopes) == 0 { // social would give a key without scopes all of them
		return failure(api.Invalid, "--scopes is empty", "name read, spend or both; without the flag the key has both")
	}
	key := api.NewKey()
	req := api.CreateKey{Hash: api.HashKey(key), Hint: api.KeyHint(key), Name: c.Name}
	if api.IsAddress(c.Owner) {
		req.Address = c.Owner
	} else {
		req.Agent = strings.ToLower(c.Owner)
	}
	for _, s := range c.Scopes {
		req.Scopes = append(req.Scopes, api.Scope(s))
	}
	if c.Expires > 0 {
		req.ExpiresAt = time.Now().Add(c.Expires).UnixMicro()
	}
	made, err := createKey(ctx, a, req)
	if err != nil {
		return err
	}
	return a.print(createdKey{Key: key, APIKey: made}, func(w io.Writer) {
		fmt.Fprintf(w, "%s\n", key)
		fmt.Fprintf(a.Err, "key %s of %s, scopes %s; it is not shown again\n", made.ID, cmp.Or(made.Agent, made.Address), scopes(made.Scopes))
	})
}

// createKey requests the key of req. The agent of req may have been created a moment ago:
// social has its address only after an event of the agent. So createKey repeats the request
// while the agent exists and has no address, for at most answerTimeout.
func createKey(ctx context.Context, a *app, req api.CreateKey) (api.APIKey, error) {
	waiting, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	for {
		made, err := ask[api.APIKey](ctx, a, req)
		if req.Agent == "" || api.CodeOf(err) != api.NotFound {
			return made, err
		}
		if _, none := ask[api.Agent](ctx, a, api.GetAgent{Agent: req.Agent}); none != nil {
			return made, err
		}
		if wait.For(waiting, 100*time.Millisecond) != nil {
			return made, err
		}
	}
}

type keyListCmd struct {
	watching
	paging
	Agent string `arg:"" optional:"" help:"Only keys of this agent." predictor:"agent"`
}

func (c keyListCmd) Run(ctx context.Context, a *app) error {
	req := api.ListAPIKeys{Agent: strings.ToLower(c.Agent), After: c.After, Limit: c.Limit}
	return listOf(ctx, a, req.Agent, req, func(v api.APIKeys) int { return len(v.Keys) }, func(w io.Writer, v api.APIKeys) {
		now := time.Now().UnixMicro()
		table(w, "ID\tKEY\tOWNER\tNAME\tSCOPES\tCREATED\tSTATUS", v.Keys, v.Page, func(k api.APIKey) []any {
			return []any{k.ID, k.Hint + "…", cmp.Or(k.Agent, k.Address), plain(k.Name), scopes(k.Scopes), when(k.CreatedAt), keyStatus(k, now)}
		})
	})
}

func keyStatus(k api.APIKey, now int64) string {
	switch {
	case k.RevokedAt > 0:
		return "revoked " + when(k.RevokedAt)
	case k.ExpiresAt == 0:
		return "usable"
	case k.ExpiresAt <= now:
		return "expired " + when(k.ExpiresAt)
	}
	return "usable until " + when(k.ExpiresAt)
}

type keyRevokeCmd struct {
	ID string `arg:"" help:"Id of the key."`
}

func (c keyRevokeCmd) Run(ctx context.Context, a *app) error {
	return show(ctx, a, api.RevokeKey{ID: c.ID}, func(w io.Writer, k api.APIKey) {
		fmt.Fprintf(w, "key %s of %s is revoked; requests with it are refused within five seconds\n", k.ID, cmp.Or(k.Agent, k.Address))
	})
}

func scopes(all []api.Scope) string {
	words := make([]string, len(all))
	for i, s := range all {
		words[i] = string(s)
	}
	return strings.Join(words, ",")
}

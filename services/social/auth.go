package social

import (
	"context"
	"crypto/rand"
	"fmt"
	"strconv"
	"strings"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/services/social/internal/auth"
	"github.com/anima-run/anima/services/social/internal/message"
)

// Who may sign in with a wallet ([Config].SignIn).
const (
	signInAny    = "any"
	signInAgents = "agents"
	signInNone   = "none"
)

// identity answers for API keys.
type identity struct {
	*handlers

	cfg    Config
	keys   auth.Store
	nonces auth.Nonces
}

func newIdentity(ctx context.Context, h *handlers, cfg Config, keys auth.Store) (*identity, error) {
	fresh := make([]byte, 32)
	_, _ = rand.Read(fresh) // never fails
	secret, err := keys.NonceSecret(ctx, fresh)
	return &identity{handlers: h, cfg: cfg, keys: keys, nonces: auth.NewNonces(secret)}, err
}

func (i *identity) authenticate(ctx context.Context, m api.AuthenticateKey) (api.KeyIdentity, error) {
	k, err := i.usable(ctx, m.Hash)
	if err != nil {
		return api.KeyIdentity{}, err
	}
	return api.KeyIdentity{
		Key: k.ID, Address: message.Display(k.Address), Account: api.AccountOf(k.Agent, k.Address), Scopes: k.Scopes, ExpiresAt: k.ExpiresAt,
	}, nil
}

// usable returns a key or token that is neither revoked nor expired.
func (i *identity) usable(ctx context.Context, hash string) (auth.Key, error) {
	if hash == "" {
		return auth.Key{}, auth.Unknown()
	}
	k, err := i.keys.KeyByHash(ctx, hash)
	if err == nil && !k.Usable(i.now()) {
		err = auth.Unknown()
	}
	i.tel.authenticated(ctx, err)
	return k, err
}

// createKey adds a key for the operator. A repeated request finds the first key by its
// hash.
func (i *identity) createKey(ctx context.Context, m api.CreateKey) (api.APIKey, error) {
	address, err := i.addressFor(ctx, m)
	if err != nil {
		return api.APIKey{}, err
	}
	k, err := auth.NewKey(m.Hash, m.Hint, address, m.Name, m.Scopes, m.ExpiresAt, i.now())
	if err != nil {
		return api.APIKey{}, err
	}
	k, err = i.keys.AddKey(ctx, k, i.now())
	return shownKey(k), err
}

func (i *identity) addressFor(ctx context.Context, m api.CreateKey) (string, error) {
	if (m.Agent == "") == (m.Address == "") {
		return "", &api.Error{Code: api.Invalid, Message: "a key belongs to an agent or to an address", Next: "name one of them"}
	}
	if m.Address != "" {
		return message.Address(m.Address)
	}
	address, err := i.store.AddressOf(ctx, strings.ToLower(m.Agent))
	if err == nil && address == "" {
		err = &api.Error{
			Code: api.NotFound, Message: fmt.Sprintf("there is no agent %.60q with an address", m.Agent),
			Next: "anima agent list shows the agents; a new one has its address after a moment",
		}
	}
	return address, err
}

func (i *identity) listKeys(ctx context.Context, m api.ListAPIKeys) (api.APIKeys, error) {
	limit, err := api.PageLimit(m.Limit, listLimit)
	if err != nil {
		return api.APIKeys{}, err
	}
	after, err := parsePlace(m.After)
	if err != nil {
		return api.APIKeys{}, err
	}
	address := ""
	if m.Agent != "" {
		if address, err = i.store.AddressOf(ctx, strings.ToLower(m.Agent)); err != nil || address == "" {
			return api.APIKeys{Keys: []api.APIKey{}}, err
		}
	}
	return i.page(ctx, address, after, limit)
}

func (i *identity) page(ctx context.Context, address string, after auth.Place, limit int) (api.APIKeys, error) {
	all, err := i.keys.Keys(ctx, address, after, limit+1)
	all, page := api.CutPage(all, limit, func(k auth.Key) string { return strconv.FormatInt(k.CreatedAt, 10) + "." + k.ID })
	out := api.APIKeys{Keys: make([]api.APIKey, len(all)), Page: page}
	for n, k := range all {
		out.Keys[n] = shownKey(k)
	}
	return out, err
}

func (i *identity) revokeKey(ctx context.Context, m api.RevokeKey) (api.APIKey, error) {
	k, err := i.keys.Revoke(ctx, m.ID, "", i.now())
	return shownKey(k), err
}

// signIn checks a signed sign-in message and returns the token. The nonce is used in the
// transaction that stores the token, so a request that fails has not used it.
func (i *identity) signIn(ctx context.Context, host, text, signature string) (token string, k auth.Key, err error) {
	m, err := auth.Parse(text)
	if err != nil {
		return "", k, err
	}
	now := i.now()
	if err := m.Check(auth.Rules{Host: host, Domains: i.cfg.SignInDomains, Chains: i.cfg.SignInChains}, now); err != nil {
		return "", k, err
	}
	expires, ours := i.nonces.Expiry(m.Nonce)
	if !ours || !now.Before(expires) {
		return "", k, badNonce()
	}
	ok, err := message.SignedBy(m.Address, text, signature)
	if err != nil {
		return "", k, err
	}
	if !ok {
		return "", k, &api.Error{Code: api.Denied, Message: "the signature is not that of " + m.Address, Next: "sign the message with the wallet that it names"}
	}
	address := strings.ToLower(m.Address)
	if err := i.mayUse(ctx, address); err != nil {
		return "", k, err
	}
	token, k = auth.NewToken(address, now)
	fresh, err := i.keys.SignIn(ctx, m.Nonce, expires, k)
	if err == nil && !fresh {
		err = badNonce()
	}
	return token, k, err
}

func badNonce() error {
	return &api.Error{Code: api.Denied, Message: "Invalid or expired nonce", Next: "request another one at POST /v1/auth/nonce"}
}

// mayUse reports whether the owner of an address may sign in.
func (i *identity) mayUse(ctx context.Context, address string) error {
	switch i.cfg.SignIn {
	case signInAny:
		return nil
	case signInAgents:
		agent, err := i.store.AgentAt(ctx, address)
		if err != nil || agent != "" {
			return err
		}
	}
	return errClosed
}

// errClosed is the error for a wallet that may not sign in.
var errClosed = &api.Error{
	Code: api.Denied, Message: "this wallet may not sign in here",
	Next: "ask the operator for a key (anima key create); ANIMA_SOCIAL_SIGN_IN says who may sign in",
}

func shownKey(k auth.Key) api.APIKey {
	if k.Address != "" {
		k.Address = message.Display(k.Address)
	}
	return k.APIKey
}

func parsePlace(s string) (auth.Place, error) {
	if s == "" {
		return auth.Place{}, nil
	}
	at, id, ok := strings.Cut(s, ".")
	n, err := strconv.ParseInt(at, 10, 64)
	if err != nil || !ok || n <= 0 {
		return auth.Place{}, api.NotInList(s)
	}
	return auth.Place{CreatedAt: n, ID: id}, nil
}

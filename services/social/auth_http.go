package social

import (
	"context"
	"errors"
	"io"
	"net/http"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/host"
	"github.com/anima-run/anima/services/social/internal/auth"
)

// maxAuthBody is the maximum size of a body in bytes: a sign-in message of
// [auth.MaxMessage], of which JSON may encode each byte as six, and a signature.
const maxAuthBody = 6*auth.MaxMessage + 1024

// routes adds the routes of the sign-in (docs/reference/social.md, Sign-in). They have no
// token of the operator: the signature of a wallet authenticates.
func (i *identity) routes(routes host.Routes) {
	routes.Public("POST /v1/auth/nonce", i.respond(i.nonce))
	routes.Public("POST /v1/auth/verify", func(w http.ResponseWriter, r *http.Request) {
		answer, err := i.verify(w, r)
		if api.CodeOf(err) == api.Denied && !errors.Is(err, errClosed) { // 401, as existing clients expect
			writeText(w, http.StatusUnauthorized, err)
			return
		}
		i.respond(func(http.ResponseWriter, *http.Request) (any, error) { return answer, err })(w, r)
	})
	routes.Public("POST /v1/auth/api-keys", i.signedIn(i.postKey))
	routes.Public("GET /v1/auth/api-keys", i.signedIn(i.getKeys))
	routes.Public("DELETE /v1/auth/api-keys/{id}", i.signedIn(i.deleteKey))
}

// nonce issues a nonce. Nothing is stored for it, see [auth.Nonces].
func (i *identity) nonce(http.ResponseWriter, *http.Request) (any, error) {
	if i.cfg.SignIn == signInNone {
		return nil, errClosed
	}
	return map[string]string{"nonce": i.nonces.New(i.now())}, nil
}

type verifyBody struct {
	Message   string `json:"message"`
	Signature string `json:"signature"`
	ChainType string `json:"chain_type"`
}

type verifyAnswer struct {
	AccessToken string `json:"access_token"`
	TokenType   string `json:"token_type"`
	ExpiresIn   int64  `json:"expires_in"` // seconds
	Address     string `json:"address"`
}

func (i *identity) verify(w http.ResponseWriter, r *http.Request) (any, error) {
	var b verifyBody
	if err := readAuth(w, r, &b); err != nil {
		return nil, err
	}
	if b.ChainType != "" && b.ChainType != "evm" {
		return nil, &api.Error{Code: api.Invalid, Message: "only wallets of EVM chains can sign in", Next: "sign in with an Ethereum wallet"}
	}
	token, k, err := i.signIn(r.Context(), r.Host, b.Message, b.Signature)
	i.tel.signedIn(r.Context(), err)
	if err != nil {
		return nil, err
	}
	return verifyAnswer{AccessToken: token, TokenType: "Bearer", ExpiresIn: int64(auth.TokenLife / time.Second), Address: shownKey(k).Address}, nil
}

type keyBody struct {
	Name      string      `json:"name"`
	Scopes    []api.Scope `json:"scopes"`
	ExpiresIn int64       `json:"expires_in"` // seconds; 0: never
}

type keyAnswer struct {
	Key    string `json:"key"` // shown only here
	Prefix string `json:"key_prefix"`
	api.APIKey
}

// maxKeyLife is the longest life of a key that ends, in seconds: ten years.
const maxKeyLife = 10 * 365 * 24 * 3600

func (i *identity) postKey(w http.ResponseWriter, r *http.Request, address string) (any, error) {
	var b keyBody
	if err := readAuth(w, r, &b); err != nil && !errors.Is(err, io.EOF) { // an empty body means the defaults
		return nil, err
	}
	if b.Name == "" {
		b.Name = "key"
	}
	if b.ExpiresIn < 0 || b.ExpiresIn > maxKeyLife {
		return nil, api.Errorf(api.Invalid, "expires_in is %d seconds: use 0 to %d", b.ExpiresIn, maxKeyLife)
	}
	now := i.now()
	expires := int64(0)
	if b.ExpiresIn > 0 {
		expires = now.Add(time.Duration(b.ExpiresIn) * time.Second).UnixMicro()
	}
	secret := api.NewKey()
	k, err := auth.NewKey(api.HashKey(secret), api.KeyHint(secret), address, b.Name, b.Scopes, expires, now)
	if err != nil {
		return nil, err
	}
	// If the process dies after this, the caller has no key, and the stored one is of no
	// use to anybody. It is listed and can be revoked.
	if k, err = i.keys.AddKey(r.Context(), k, now); err != nil {
		return nil, err
	}
	return keyAnswer{Key: secret, Prefix: k.Hint, APIKey: shownKey(k)}, nil
}

func (i *identity) getKeys(_ http.ResponseWriter, r *http.Request, address string) (any, error) {
	after, err := parsePlace(r.URL.Query().Get("after"))
	if err != nil {
		return nil, err
	}
	limit, err := host.Limit(r)
	if err != nil {
		return nil, err
	}
	if limit, err = api.PageLimit(limit, listLimit); err != nil {
		return nil, err
	}
	return i.page(r.Context(), address, after, limit)
}

func (i *identity) deleteKey(_ http.ResponseWriter, r *http.Request, address string) (any, error) {
	k, err := i.keys.Revoke(r.Context(), r.PathValue("id"), address, i.now())
	return shownKey(k), err
}

// signedIn is like respond, for requests with the token of a sign-in.
func (i *identity) signedIn(f func(w http.ResponseWriter, r *http.Request, address string) (any, error)) http.HandlerFunc {
	token := func(ctx context.Context, hash string) (auth.Key, error) {
		k, err := i.usable(ctx, hash)
		if err == nil && (len(k.Scopes) != 1 || k.Scopes[0] != api.ScopeKeys) {
			err = &api.Error{Code: api.Denied, Message: "an API key cannot create or revoke keys", Next: "sign in at POST /v1/auth/verify, and send its access_token"}
		}
		return k, err
	}
	return i.keyed(token, func(w http.ResponseWriter, r *http.Request, k auth.Key) (any, error) { return f(w, r, k.Address) })
}

// keyed is like respond, for requests with a key that find returns for its hash.
func (i *identity) keyed(find func(ctx context.Context, hash string) (auth.Key, error), f func(w http.ResponseWriter, r *http.Request, k auth.Key) (any, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		k, err := find(r.Context(), api.HashKey(host.Credential(r)))
		if api.CodeOf(err) == api.Denied {
			writeText(w, http.StatusUnauthorized, err)
			return
		}
		if err != nil {
			i.fail(w, r, err)
			return
		}
		i.respond(func(w http.ResponseWriter, r *http.Request) (any, error) { return f(w, r, k) })(w, r)
	}
}

// readAuth is like readBody, with a smaller limit.
func readAuth(w http.ResponseWriter, r *http.Request, v any) error {
	body, err := host.ReadBody(w, r, maxAuthBody)
	if err != nil {
		return err
	}
	return decodeBody(body, v)
}

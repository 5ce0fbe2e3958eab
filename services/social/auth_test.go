package social_test

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/crypto"
	"github.com/google/go-cmp/cmp"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/apptest"
	"github.com/anima-run/anima/pkg/bus"
	"github.com/anima-run/anima/services/social"
)

// siwe returns the sign-in message of existing clients for a server.
func (w wallet) siwe(base, nonce string) string {
	return "conway.tech wants you to sign in with your Ethereum account:\n" + w.address + "\n\nSign in to Conway as an Automaton to provision an API key.\n\n" +
		"URI: " + base + "/v1/auth/verify\nVersion: 1\nChain ID: 8453\nNonce: " + nonce + "\nIssued At: " + iso(time.Now())
}

func (r relay) nonce(t *testing.T) string {
	t.Helper()
	var got struct{ Nonce string }
	if status, _ := r.do(t, "POST", "/v1/auth/nonce", nil, nil, &got); status != http.StatusOK || len(got.Nonce) < 8 || strings.Trim(got.Nonce, "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ") != "" {
		t.Fatalf("nonce: got %d %+v, want letters and digits", status, got)
	}
	return got.Nonce
}

type session struct {
	Token string `json:"access_token"`
	Error string `json:"error"`
}

// signIn returns the token of a sign-in.
func (w wallet) signIn(t *testing.T, r relay) string {
	t.Helper()
	var got session
	text := w.siwe(r.base, r.nonce(t))
	if status, _ := r.do(t, "POST", "/v1/auth/verify", nil, map[string]string{"message": text, "signature": w.sign(t, text)}, &got); status != http.StatusOK {
		t.Fatalf("sign-in: got %d %+v", status, got)
	}
	return got.Token
}

type createdKey struct {
	Key    string `json:"key"`
	Prefix string `json:"key_prefix"`
	Error  string `json:"error"`
	api.APIKey
}

func bearer(token string) map[string]string {
	return map[string]string{"Authorization": "Bearer " + token}
}

// TestProvisioning provisions a key as existing clients do, and uses, lists and revokes
// it. The key is nowhere in the answers of the bus.
func TestProvisioning(t *testing.T) {
	t.Parallel()
	w := apptest.Start(t, apptest.Options{}, social.Service)
	r, alice := relay{w.HTTP}, newWallet(t)
	register(t, w.Bus, "alice", alice)
	token := alice.signIn(t, r)

	var got createdKey
	status, _ := r.do(t, "POST", "/v1/auth/api-keys", bearer(token), map[string]string{"name": "conway-automaton"}, &got)
	if status != http.StatusOK || !strings.HasPrefix(got.Key, got.Prefix) || api.HashKey(got.Key) == "" {
		t.Fatalf("key: got %d %+v", status, got)
	}
	want := api.KeyIdentity{Key: got.ID, Address: alice.address, Account: "alice", Scopes: []api.Scope{api.ScopeRead, api.ScopeSpend}}
	if diff := cmp.Diff(want, call[api.KeyIdentity](t, w.Bus, api.AuthenticateKey{Hash: api.HashKey(got.Key)})); diff != "" {
		t.Errorf("identity (-want +got):\n%s", diff)
	}
	listed := call[api.APIKeys](t, w.Bus, api.ListAPIKeys{Agent: "alice"})
	if len(listed.Keys) != 1 || listed.Keys[0].ID != got.ID || listed.Keys[0].Name != "conway-automaton" || strings.Contains(fmt.Sprint(listed), got.Key) {
		t.Errorf("list: got %+v, want only the new key, without its secret", listed)
	}
	var own api.APIKeys
	if status, _ := r.do(t, "GET", "/v1/auth/api-keys", bearer(token), nil, &own); status != http.StatusOK || !cmp.Equal(listed, own) {
		t.Errorf("list over HTTP: got %d %+v, want %+v", status, own, listed)
	}
	// A key cannot create keys, and a token can do nothing else.
	if status, _ := r.do(t, "POST", "/v1/auth/api-keys", bearer(got.Key), nil, &createdKey{}); status != http.StatusUnauthorized {
		t.Errorf("a key creates a key: got %d, want 401", status)
	}
	if id := call[api.KeyIdentity](t, w.Bus, api.AuthenticateKey{Hash: api.HashKey(token)}); id.May(api.ScopeRead) || id.May(api.ScopeSpend) {
		t.Errorf("the token has the scopes %v", id.Scopes)
	}
	bob := newWallet(t)
	if status, _ := r.do(t, "DELETE", "/v1/auth/api-keys/"+got.ID, bearer(bob.signIn(t, r)), nil, &failure{}); status != http.StatusNotFound {
		t.Errorf("another wallet revokes the key: got %d, want 404", status)
	}
	if status, _ := r.do(t, "DELETE", "/v1/auth/api-keys/"+got.ID, bearer(token), nil, &failure{}); status != http.StatusOK {
		t.Errorf("revoke: got %d", status)
	}
	if _, err := bus.Call[api.KeyIdentity](t.Context(), w.Bus, api.AuthenticateKey{Hash: api.HashKey(got.Key)}); api.CodeOf(err) != api.Denied {
		t.Errorf("revoked key: got %v, want Denied", err)
	}
}

// TestVerifyRefuses checks that a sign-in fails with a used nonce, another nonce, another
// host, another signer, and that a request with a fault does not use the nonce.
func TestVerifyRefuses(t *testing.T) {
	t.Parallel()
	w := apptest.Start(t, apptest.Options{}, social.Service)
	r, alice, bob := relay{w.HTTP}, newWallet(t), newWallet(t)
	nonce := r.nonce(t)
	good := alice.siwe(r.base, nonce)
	verify := func(text, signature, chain string) (int, session) {
		var got session
		status, _ := r.do(t, "POST", "/v1/auth/verify", nil, map[string]string{"message": text, "signature": signature, "chain_type": chain}, &got)
		return status, got
	}
	for name, tt := range map[string]struct {
		text, signature, chain string
		want                   int
	}{
		"another signer":  {good, bob.sign(t, good), "", 401},
		"no signature":    {good, "", "", 400},
		"another host":    {alice.siwe("http://evil.example", nonce), alice.sign(t, alice.siwe("http://evil.example", nonce)), "", 400},
		"another nonce":   {alice.siwe(r.base, "abcdef0123456789"), alice.sign(t, alice.siwe(r.base, "abcdef0123456789")), "", 401},
		"no message":      {"", "0x", "", 400},
		"a Solana wallet": {good, alice.sign(t, good), "solana", 400},
	} {
		if status, got := verify(tt.text, tt.signature, tt.chain); status != tt.want || got.Error == "" || got.Token != "" {
			t.Errorf("%s: got %d %+v, want %d", name, status, got, tt.want)
		}
	}
	signature := alice.sign(t, good)
	statuses := make(chan int, 4)
	var wg sync.WaitGroup
	for range cap(statuses) {
		wg.Go(func() {
			status, _ := verify(good, signature, "evm")
			statuses <- status
		})
	}
	wg.Wait()
	close(statuses)
	counts := map[int]int{}
	for s := range statuses {
		counts[s]++
	}
	if diff := cmp.Diff(map[int]int{200: 1, 401: 3}, counts); diff != "" {
		t.Errorf("four sign-ins with one nonce (-want +got):\n%s", diff)
	}
}

// TestSignInSetting checks who may sign in.
func TestSignInSetting(t *testing.T) {
	t.Parallel()
	agents := apptest.Start(t, apptest.Options{Env: map[string]string{"ANIMA_SOCIAL_SIGN_IN": "agents"}}, social.Service)
	r, alice, bob := relay{agents.HTTP}, newWallet(t), newWallet(t)
	register(t, agents.Bus, "alice", alice)
	alice.signIn(t, r)
	var got session
	text := bob.siwe(r.base, r.nonce(t))
	if status, _ := r.do(t, "POST", "/v1/auth/verify", nil, map[string]string{"message": text, "signature": bob.sign(t, text)}, &got); status != http.StatusForbidden {
		t.Errorf("a wallet that is no agent: got %d %+v, want 403", status, got)
	}
	none := apptest.Start(t, apptest.Options{Env: map[string]string{"ANIMA_SOCIAL_SIGN_IN": "none"}}, social.Service)
	if status, _ := (relay{none.HTTP}).do(t, "POST", "/v1/auth/nonce", nil, nil, &got); status != http.StatusForbidden {
		t.Errorf("nobody may sign in: got %d %+v, want 403", status, got)
	}
}

// TestOperatorsKeys checks the keys that the operator creates.
func TestOperatorsKeys(t *testing.T) {
	t.Parallel()
	b := apptest.Bus(t, social.Service)
	alice := newWallet(t)
	register(t, b, "alice", alice)
	key := api.NewKey()
	req := api.CreateKey{Hash: api.HashKey(key), Hint: api.KeyHint(key), Agent: "Alice", Name: "script", Scopes: []api.Scope{api.ScopeRead}}
	made := call[api.APIKey](t, b, req)
	if made.Agent != "alice" || made.Address != alice.address || len(made.Scopes) != 1 {
		t.Errorf("created: got %+v", made)
	}
	if again := call[api.APIKey](t, b, req); !cmp.Equal(made, again) {
		t.Errorf("repeated: got %+v, want %+v", again, made)
	}
	outside := newWallet(t)
	other := api.NewKey()
	call[api.APIKey](t, b, api.CreateKey{Hash: api.HashKey(other), Hint: api.KeyHint(other), Address: outside.address, Name: "client"})
	if id := call[api.KeyIdentity](t, b, api.AuthenticateKey{Hash: api.HashKey(other)}); id.Account != outside.lower() {
		t.Errorf("key of an address: got %+v, want the account %s", id, outside.lower())
	}
	expired := api.NewKey()
	for name, tt := range map[string]struct {
		m    api.CreateKey
		want api.Code
	}{
		"no owner":         {api.CreateKey{Hash: req.Hash, Name: "x"}, api.Invalid},
		"two owners":       {api.CreateKey{Hash: req.Hash, Name: "x", Agent: "alice", Address: alice.address}, api.Invalid},
		"no such agent":    {api.CreateKey{Hash: req.Hash, Name: "x", Agent: "nobody"}, api.NotFound},
		"a key, no hash":   {api.CreateKey{Hash: key, Name: "x", Agent: "alice"}, api.Invalid},
		"no name":          {api.CreateKey{Hash: req.Hash, Agent: "alice"}, api.Invalid},
		"the token's":      {api.CreateKey{Hash: req.Hash, Name: "x", Agent: "alice", Scopes: []api.Scope{api.ScopeKeys}}, api.Invalid},
		"expired at once":  {api.CreateKey{Hash: api.HashKey(expired), Name: "x", Agent: "alice", ExpiresAt: 1}, api.Invalid},
		"hash of another":  {api.CreateKey{Hash: req.Hash, Name: "x", Agent: "alice"}, api.Conflict},
		"owner of another": {api.CreateKey{Hash: req.Hash, Name: "script", Address: outside.address, Scopes: req.Scopes}, api.Conflict},
	} {
		if _, err := bus.Call[api.APIKey](t.Context(), b, tt.m); api.CodeOf(err) != tt.want {
			t.Errorf("%s: got %v, want %s", name, err, tt.want)
		}
	}
	if _, err := bus.Call[api.APIKey](t.Context(), b, api.RevokeKey{ID: "unknown"}); api.CodeOf(err) != api.NotFound {
		t.Errorf("revoke an unknown key: got %v, want NotFound", err)
	}
	if got := call[api.APIKey](t, b, api.RevokeKey{ID: made.ID}); got.RevokedAt == 0 {
		t.Errorf("revoked: got %+v", got)
	}
	if _, err := bus.Call[api.KeyIdentity](t.Context(), b, api.AuthenticateKey{Hash: req.Hash}); api.CodeOf(err) != api.Denied {
		t.Errorf("revoked key: got %v, want Denied", err)
	}
}

// TestSignInVector checks the signature of a recorded sign-in of an existing client.
func TestSignInVector(t *testing.T) {
	t.Parallel()
	key, err := crypto.HexToECDSA("ac0974bec39a17e36ba4a6b4d238ff944bacb478cbed5efcae784d7bf4f2ff80") // public test key
	if err != nil {
		t.Fatal(err)
	}
	w := wallet{key, crypto.PubkeyToAddress(key.PublicKey).Hex()}
	text := strings.Replace(w.siwe("http://127.0.0.1:8080", "abcdef0123456789"), "Issued At: ", "Issued At: 2026-01-02T03:04:05.678Z", 1)
	text = text[:strings.Index(text, ".678Z")+len(".678Z")]
	const want = "0xfc6d665797ff6476af976925c486d18ffdc9273974a597d4028c03d02f1542403560b989e221e36aa6170fa77494914647ca89a9b7109760e9352628a03f63511b"
	if got := w.sign(t, text); got != want {
		t.Errorf("signature: got %s, want %s", got, want)
	}
}

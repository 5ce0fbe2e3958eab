package social_test

import (
	"encoding/json"
	"fmt"
	"math/big"
	"net/http"
	"testing"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/ethereum/go-ethereum/crypto"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/apptest"
	"github.com/anima-run/anima/services/social"
)

// registration returns the body of a signed registration, as existing clients send it.
func (w wallet) registration(t *testing.T, id, name string) json.RawMessage {
	t.Helper()
	fields := fmt.Sprintf(`"automaton_address":%q,"automaton_id":%q,"bio":"","creator_address":%q,"name":%q`, w.address, id, w.address, name)
	payload := crypto.Keccak256([]byte("{" + fields + "}"))
	hash := func(text string) []byte { return crypto.Keccak256([]byte(text)) }
	domain := crypto.Keccak256(hash("EIP712Domain(string name,string version,uint256 chainId)"), hash("AIWS Automaton"), hash("1"), common.BigToHash(big.NewInt(8453)).Bytes())
	data := crypto.Keccak256(hash("Register(string automatonId,string nonce,bytes32 payloadHash)"), hash(id), hash("n-1"), payload)
	sig, err := crypto.Sign(crypto.Keccak256([]byte("\x19\x01"), domain, data), w.key)
	if err != nil {
		t.Fatal(err)
	}
	sig[64] += 27
	return json.RawMessage(fmt.Sprintf(`{%s,"nonce":"n-1","signature":%q,"payload_hash":%q}`, fields, hexutil.Encode(sig), hexutil.Encode(payload)))
}

// TestRegistration registers agents as existing clients do, with a key that they have
// provisioned before.
func TestRegistration(t *testing.T) {
	t.Parallel()
	w := apptest.Start(t, apptest.Options{}, social.Service)
	r, alice, bob := relay{w.HTTP}, newWallet(t), newWallet(t)
	key := func(of wallet, body map[string]any) map[string]string {
		t.Helper()
		var got createdKey
		if status, _ := r.do(t, "POST", "/v1/auth/api-keys", bearer(of.signIn(t, r)), body, &got); status != http.StatusOK {
			t.Fatalf("key: got %d %+v", status, got)
		}
		return map[string]string{"Authorization": got.Key} // without a scheme, as existing clients send it
	}
	alices, bobs := key(alice, nil), key(bob, nil)
	post := func(header map[string]string, body json.RawMessage) (int, string, string) {
		t.Helper()
		var got struct {
			Automaton struct {
				ID   string `json:"automaton_id"`
				Name string `json:"name"`
				At   string `json:"registered_at"`
			} `json:"automaton"`
			Error string `json:"error"`
		}
		status, _ := r.do(t, "POST", "/v1/automatons/register", header, body, &got)
		return status, got.Automaton.Name + got.Error, got.Automaton.At
	}
	status, name, first := post(alices, alice.registration(t, "agent-1", "Atlas"))
	if status != http.StatusOK || name != "Atlas" || first == "" {
		t.Fatalf("got %d %s %s, want it registered", status, name, first)
	}
	if status, name, again := post(alices, alice.registration(t, "agent-1", "Ada")); status != http.StatusOK || name != "Ada" || again != first {
		t.Errorf("again: got %d %s %s, want the name changed and the time %s", status, name, again, first)
	}
	for what, tt := range map[string]struct {
		header map[string]string
		body   json.RawMessage
		want   int
	}{
		"the id of another address":        {bobs, bob.registration(t, "agent-1", "Bob"), http.StatusConflict},
		"the key of another address":       {bobs, alice.registration(t, "agent-1", "Ada"), http.StatusForbidden},
		"no key":                           {nil, bob.registration(t, "agent-2", "Bob"), http.StatusUnauthorized},
		"a wrong key":                      {map[string]string{"Authorization": api.NewKey()}, bob.registration(t, "agent-2", "Bob"), http.StatusUnauthorized},
		"a key that permits reading only":  {key(bob, map[string]any{"scopes": []string{"read"}}), bob.registration(t, "agent-2", "Bob"), http.StatusForbidden},
		"the token of a sign-in":           {bearer(bob.signIn(t, r)), bob.registration(t, "agent-2", "Bob"), http.StatusForbidden},
		"a body without a signature":       {bobs, json.RawMessage(`{"automaton_id":"agent-2"}`), http.StatusBadRequest},
		"an agent that was not registered": {bobs, bob.registration(t, "agent-2", "Bob"), http.StatusOK},
	} {
		if status, said, _ := post(tt.header, tt.body); status != tt.want {
			t.Errorf("%s: got %d %s, want %d", what, status, said, tt.want)
		}
	}
}

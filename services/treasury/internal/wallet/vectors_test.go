package wallet

import (
	"encoding/hex"
	"encoding/json"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/ethereum/go-ethereum/accounts"
	ethcrypto "github.com/ethereum/go-ethereum/crypto"
	"github.com/google/go-cmp/cmp"

	"github.com/anima-run/anima/pkg/api"
)

// allVectors are the parts of testdata/vectors.json that the other tests of this package do
// not read.
type allVectors struct {
	PrivateKey string `json:"private_key"`
	Address    string `json:"address"`
	Social     []struct {
		Content     string `json:"content"`
		UTF8        string `json:"content_utf8_hex"`
		ContentHash string `json:"content_hash"`
		Canonical   string `json:"canonical"`
		Hash        string `json:"eip191_hash"`
		Body        struct {
			From    string `json:"from"`
			To      string `json:"to"`
			Content string `json:"content"`
			At      string `json:"signed_at"`
		} `json:"body"`
	} `json:"social"`
	Poll struct {
		Canonical string            `json:"canonical"`
		Signature string            `json:"signature"`
		Headers   map[string]string `json:"headers"`
	} `json:"poll"`
	Register struct {
		Canonical string `json:"canonical_json"`
		Hash      string `json:"payload_hash"`
	} `json:"register"`
	SIWE struct {
		Message   string `json:"message"`
		Signature string `json:"signature"`
	} `json:"siwe"`
	Solana struct {
		Address   string `json:"address"`
		Canonical string `json:"send_canonical"`
	} `json:"solana"`
}

// TestAllVectors checks that every part of the vectors is known to a test, and the hashes
// and signatures that no other test of this package compares. The file is that of the
// reference, unchanged; docs/reference/treasury.md lists which test covers which part.
func TestAllVectors(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("testdata/vectors.json")
	if err != nil {
		t.Fatal(err)
	}
	var parts map[string]json.RawMessage
	if err := json.Unmarshal(text, &parts); err != nil {
		t.Fatal(err)
	}
	want := []string{"address", "note", "poll", "private_key", "register", "siwe", "siwe_nonce_rule", "siwe_short_nonce", "social", "solana", "x402", "x402_type_hash"}
	if diff := cmp.Diff(want, slices.Sorted(maps.Keys(parts))); diff != "" {
		t.Fatalf("parts of the vectors (-want +got):\n%s", diff)
	}
	var v allVectors
	if err := json.Unmarshal(text, &v); err != nil || len(v.Social) != 3 {
		t.Fatalf("vectors: got %d, %v, want 3", len(v.Social), err)
	}
	same := func(what, got, want string) {
		t.Helper()
		if got != want {
			t.Errorf("%s: got %s, want %s", what, got, want)
		}
	}
	private, err := ethcrypto.HexToECDSA(strings.TrimPrefix(v.PrivateKey, "0x"))
	if err != nil {
		t.Fatal(err)
	}
	k := newKey(private)
	same("address", k.address.Hex(), v.Address)
	personal := func(what, text, want string) {
		t.Helper()
		got, err := k.signed(accounts.TextHash([]byte(text)))
		if err != nil {
			t.Fatal(err)
		}
		same(what, got.Signature, want)
	}
	for _, m := range v.Social {
		same("content", "0x"+hex.EncodeToString([]byte(m.Body.Content)), m.UTF8)
		same("content of the body", m.Body.Content, m.Content)
		same("content hash", ethcrypto.Keccak256Hash([]byte(m.Content)).Hex(), m.ContentHash)
		same("sender", strings.ToLower(v.Address), m.Body.From)
		canonical, err := Canonical(m.Body.To, m.Content, m.Body.At)
		if err != nil {
			t.Fatal(err)
		}
		same("canonical", canonical, m.Canonical)
		same("EIP-191 hash", "0x"+hex.EncodeToString(accounts.TextHash([]byte(canonical))), m.Hash)
	}
	same("poll", "Conway:poll:"+v.Poll.Headers["X-Wallet-Address"]+":"+v.Poll.Headers["X-Timestamp"], v.Poll.Canonical)
	personal("poll", v.Poll.Canonical, v.Poll.Signature)
	same("payload of the registration", ethcrypto.Keccak256Hash([]byte(v.Register.Canonical)).Hex(), v.Register.Hash)
	personal("sign-in", v.SIWE.Message, v.SIWE.Signature)

	// Wallets are those of EVM chains: nothing is signed for an address of Solana.
	_, err = Canonical(v.Solana.Address, "hello", v.Social[0].Body.At)
	if api.CodeOf(err) != api.Invalid || api.IsAddress(v.Solana.Address) || !strings.Contains(v.Solana.Canonical, v.Solana.Address) {
		t.Errorf("address of Solana: got %v, want Invalid", err)
	}
}

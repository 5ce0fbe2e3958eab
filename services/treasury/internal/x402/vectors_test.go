package x402_test

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/ethereum/go-ethereum/crypto"
	"github.com/ethereum/go-ethereum/signer/core/apitypes"

	"github.com/anima-run/anima/services/treasury/internal/x402"
)

type vectors struct {
	PrivateKey string
	TypeHash   string
	Payments   []struct {
		Network string
		Domain  struct {
			Name, Version     string
			ChainID           int64
			VerifyingContract string
		}
		Separator string `json:"domain_separator"`
		Struct    string `json:"struct_hash"`
		Digest    string
		Signature string
		JSON      string `json:"payment_json"`
		Header    string `json:"x_payment_header"`
	}
}

// TestVectors checks the payments of docs/reference, which the reference client has made:
// every hash, the signature, the JSON and the header, byte for byte.
func TestVectors(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile("testdata/vectors.json")
	if err != nil {
		t.Fatal(err)
	}
	var all vectors
	if err := json.Unmarshal(data, &all); err != nil || len(all.Payments) != 3 {
		t.Fatalf("vectors: got %d payments, %v", len(all.Payments), err)
	}
	key, err := crypto.HexToECDSA(strings.TrimPrefix(all.PrivateKey, "0x"))
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range all.Payments {
		t.Run(v.Network, func(t *testing.T) {
			t.Parallel()
			same := func(what, got, want string) {
				t.Helper()
				if got != want {
					t.Errorf("%s: got %s, want %s", what, got, want)
				}
			}
			id, _, _ := strings.Cut(v.Network, " ")
			n := x402.Network{ChainID: v.Domain.ChainID, Asset: common.HexToAddress(v.Domain.VerifyingContract), Token: v.Domain.Name, Version: v.Domain.Version}
			same("network", n.ID(), id)
			p, ok, err := x402.ReadPayment(http.Header{"X-Payment": {v.Header}})
			if err != nil || !ok {
				t.Fatalf("read: %v", err)
			}
			a := &p.Authorization
			separator, content, digest := n.DomainSeparator(), a.StructHash(), a.Digest(n)
			same("domain separator", hexutil.Encode(separator[:]), v.Separator)
			same("struct hash", hexutil.Encode(content[:]), v.Struct)
			same("digest", hexutil.Encode(digest[:]), v.Digest)
			typed := a.TypedData(n)
			hash, _, err := apitypes.TypedDataAndHash(typed)
			if err != nil {
				t.Fatal(err)
			}
			same("digest of the typed data", hexutil.Encode(hash), v.Digest)
			same("type hash", hexutil.Encode(typed.TypeHash(x402.PrimaryType)), all.TypeHash)

			sig, err := crypto.Sign(digest[:], key)
			if err != nil {
				t.Fatal(err)
			}
			sig[64] += 27
			same("signature", hexutil.Encode(sig), v.Signature)
			same("signature as read", p.Signature.String(), v.Signature)
			if payer, err := p.Signature.Payer(digest); err != nil || payer != crypto.PubkeyToAddress(key.PublicKey) {
				t.Errorf("payer: got %s, %v", payer, err)
			}
			text, err := json.Marshal(&p)
			if err != nil {
				t.Fatal(err)
			}
			same("JSON", string(text), v.JSON)
			name, value := p.Header()
			same("header", name+": "+value, "X-PAYMENT: "+v.Header)

			terms := x402.Terms{Network: n, PayTo: a.To, Amount: a.Value}
			if err := p.Verify(terms, time.Unix(a.ValidBefore-300, 0)); err != nil {
				t.Errorf("verify: %v", err)
			}
		})
	}
}

// TestNetworks checks the domains of the tokens against the values that the contracts
// return from DOMAIN_SEPARATOR().
func TestNetworks(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		network         x402.Network
		id, name, bytes string
	}{
		{x402.Base, "eip155:8453", "base", "02fa7265e7c5d81118673727957699e4d68f74cd74b7db77da710fe8a2c7834f"},
		{x402.BaseSepolia, "eip155:84532", "base-sepolia", "71f17a3b2ff373b803d70a5a07c046c1a2bc8e89c09ef722fcb047abe94c9818"},
	} {
		separator := tt.network.DomainSeparator()
		if got := hex.EncodeToString(separator[:]); got != tt.bytes {
			t.Errorf("%s: domain separator %s, want %s", tt.id, got, tt.bytes)
		}
		for _, name := range []string{tt.id, tt.name, strings.ToUpper(tt.name), strings.ToUpper(tt.id)} {
			if n, ok := (x402.Networks{x402.Base, x402.BaseSepolia}).Find(name); !ok || n != tt.network {
				t.Errorf("find %s: got %+v, %t", name, n, ok)
			}
		}
		if got := tt.network.Written(x402.V1); got != tt.name {
			t.Errorf("name in version 1: got %s, want %s", got, tt.name)
		}
	}
	if _, ok := (x402.Networks{x402.Base}).Find(""); ok {
		t.Error("a network without a name is found")
	}
}

func b64(v any) string {
	data, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return base64.StdEncoding.EncodeToString(data)
}

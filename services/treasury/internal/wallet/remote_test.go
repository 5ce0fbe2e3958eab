package wallet

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/ethereum/go-ethereum/accounts"
	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/ethereum/go-ethereum/core/types"
	ethcrypto "github.com/ethereum/go-ethereum/crypto"
	"github.com/ethereum/go-ethereum/signer/core/apitypes"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/config"
)

// remoteSigner speaks the protocols of clef and of web3signer with one key.
type remoteSigner struct {
	protocol Protocol
	key      *key
	extra    []common.Address // further addresses that it lists
	wrongKey bool             // it signs with another key
	refuse   string           // error of every signature
	long     bool             // its signatures come in answers longer than the client reads
	calls    sync.Map         // method -> true
}

func (s *remoteSigner) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var req struct {
		ID     json.RawMessage   `json:"id"`
		Method string            `json:"method"`
		Params []json.RawMessage `json:"params"`
	}
	if err := json.NewDecoder(r.Body).Decode(&req); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	s.calls.Store(req.Method, true)
	result, err := s.answer(req.Method, req.Params)
	w.Header().Set("Content-Type", "application/json")
	if s.long && strings.Contains(req.Method, "_sign") {
		_, _ = w.Write(bytes.Repeat([]byte{' '}, maxSignReply))
	}
	answer := map[string]any{"jsonrpc": "2.0", "id": req.ID}
	if err != nil {
		answer["error"] = map[string]any{"code": -32000, "message": err.Error()}
	} else {
		answer["result"] = result
	}
	_ = json.NewEncoder(w).Encode(answer)
}

func (s *remoteSigner) answer(method string, params []json.RawMessage) (any, error) {
	prefix := map[Protocol]string{Clef: "account_", Web3Signer: "eth_"}[s.protocol]
	short, ok := strings.CutPrefix(method, prefix)
	if !ok {
		return nil, fmt.Errorf("the method %s does not exist", method)
	}
	if short == "list" || short == "accounts" {
		return append([]common.Address{s.key.address}, s.extra...), nil
	}
	if s.refuse != "" {
		return nil, errors.New(s.refuse)
	}
	var hash []byte
	switch short {
	case "signTypedData":
		raw := params[1]
		if s.protocol == Web3Signer {
			var text string
			if err := json.Unmarshal(raw, &text); err != nil {
				return nil, err
			}
			raw = json.RawMessage(text)
		}
		var data apitypes.TypedData
		if err := json.Unmarshal(raw, &data); err != nil {
			return nil, err
		}
		var err error
		if hash, _, err = apitypes.TypedDataAndHash(data); err != nil {
			return nil, err
		}
	case "signData", "sign":
		var text hexutil.Bytes
		if err := json.Unmarshal(params[len(params)-1], &text); err != nil {
			return nil, err
		}
		hash = accounts.TextHash(text)
	case "signTransaction":
		return s.transaction(params[0])
	default:
		return nil, fmt.Errorf("the method %s does not exist", method)
	}
	signed, err := s.signing().signed(hash)
	return signed.Signature, err
}

func (s *remoteSigner) signing() *key {
	if !s.wrongKey {
		return s.key
	}
	k, err := ethcrypto.GenerateKey()
	if err != nil {
		panic(err)
	}
	return newKey(k)
}

func (s *remoteSigner) transaction(raw json.RawMessage) (any, error) {
	var args apitypes.SendTxArgs
	if err := json.Unmarshal(raw, &args); err != nil {
		return nil, err
	}
	tx, err := args.ToTransaction()
	if err != nil {
		return nil, err
	}
	signed, err := types.SignTx(tx, types.LatestSignerForChainID(tx.ChainId()), s.signing().reveal())
	if err != nil {
		return nil, err
	}
	text, err := signed.MarshalBinary()
	if s.protocol == Clef {
		return map[string]any{"raw": hexutil.Bytes(text), "tx": signed}, err
	}
	return hexutil.Bytes(text), err
}

// remote returns a signer of the vectors' key at a server that speaks the protocol.
func remote(t *testing.T, protocol Protocol, change func(*remoteSigner)) (*Remote, *remoteSigner, *typedVectors) {
	t.Helper()
	v := readTyped(t)
	k, err := ethcrypto.HexToECDSA(strings.TrimPrefix(v.PrivateKey, "0x"))
	if err != nil {
		t.Fatal(err)
	}
	s := &remoteSigner{protocol: protocol, key: newKey(k)}
	change(s)
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	r, err := NewRemote(newShelf(), config.Secret(strings.Replace(server.URL, "http://", "http://user:s3cret@", 1)), protocol)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	return r, s, v
}

func TestRemoteSignsAsTheReference(t *testing.T) {
	t.Parallel()
	for _, protocol := range []Protocol{Clef, Web3Signer} {
		t.Run(string(protocol), func(t *testing.T) {
			t.Parallel()
			ctx := t.Context()
			r, _, v := remote(t, protocol, func(*remoteSigner) {})
			if err := r.Check(ctx); err != nil {
				t.Fatal(err)
			}
			if address, err := r.Create(ctx, "lucky"); err != nil || address != v.Address {
				t.Fatalf("create: got %s, %v, want %s", address, err, v.Address)
			}
			for i := range v.X402 {
				data, rule := v.payment(i)
				if got, err := r.SignTypedData(ctx, "lucky", data, rule); err != nil || got.Signature != v.X402[i].Signature {
					t.Errorf("%s: got %+v, %v, want %s", v.X402[i].Network, got, err, v.X402[i].Signature)
				}
			}
			const to, at = "0x70997970c51812dc3a010c7d01b50e0d17dc79c8", "2026-01-02T03:04:05.678Z"
			want, err := keeperOf(t, v.PrivateKey).SignMessage(ctx, "lucky", to, "hello", at)
			if err != nil {
				t.Fatal(err)
			}
			if got, err := r.SignMessage(ctx, "lucky", to, "hello", at); err != nil || got != want {
				t.Errorf("message: got %+v, %v, want %+v", got, err, want)
			}
			contract := common.HexToAddress("0x036CbD53842c5426634e7929541eC2318f3dCF7e")
			tx := types.NewTx(&types.DynamicFeeTx{
				ChainID: big.NewInt(84532), Nonce: 3, To: &contract, Gas: 90_000, GasFeeCap: big.NewInt(9), GasTipCap: big.NewInt(2), Value: new(big.Int), Data: []byte{1, 2},
			})
			signed, err := r.SignTransaction(ctx, "lucky", tx, TxRule{ChainID: 84532, To: contract, Nonce: 3, MaxGas: 90_000, MaxFee: big.NewInt(9)})
			if err != nil {
				t.Fatal(err)
			}
			if from, err := types.Sender(types.LatestSignerForChainID(big.NewInt(84532)), signed); err != nil || from.Hex() != v.Address {
				t.Errorf("sender: got %s, %v, want %s", from, err, v.Address)
			}
		})
	}
}

// TestRemoteChecksFirst checks that data against the rule never leaves the process.
func TestRemoteChecksFirst(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	r, s, v := remote(t, Clef, func(*remoteSigner) {})
	if _, err := r.Create(ctx, "lucky"); err != nil {
		t.Fatal(err)
	}
	data, rule := v.payment(0)
	rule.MaxValue--
	if _, err := r.SignTypedData(ctx, "lucky", data, rule); api.ReasonOf(err) != api.ReasonNotSigned {
		t.Errorf("too much: got %v, want not_signed", err)
	}
	if _, called := s.calls.Load("account_signTypedData"); called {
		t.Error("the remote signer was asked for data that the rule refuses")
	}
}

func TestRemoteFails(t *testing.T) {
	t.Parallel()
	for what, c := range map[string]struct {
		change func(*remoteSigner)
		want   api.Code
	}{
		"it signs with another key": {func(s *remoteSigner) { s.wrongKey = true }, api.Unavailable},
		"it answers too much":       {func(s *remoteSigner) { s.long = true }, api.Unavailable},
		"it refuses":                {func(s *remoteSigner) { s.refuse = "request denied" }, api.Denied},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			ctx := t.Context()
			r, _, v := remote(t, Clef, c.change)
			if _, err := r.Create(ctx, "lucky"); err != nil {
				t.Fatal(err)
			}
			data, rule := v.payment(0)
			got, err := r.SignTypedData(ctx, "lucky", data, rule)
			if api.CodeOf(err) != c.want || got != (Signed{}) || strings.Contains(err.Error(), "s3cret") {
				t.Errorf("got %+v, %v, want %s without the password", got, err, c.want)
			}
		})
	}
	away, err := NewRemote(newShelf(), "http://user:s3cret@127.0.0.1:1/key", Clef)
	if err != nil {
		t.Fatal(err)
	}
	defer away.Close()
	if err := away.Check(t.Context()); api.CodeOf(err) != api.Unavailable || strings.Contains(err.Error(), "s3cret") || strings.Contains(err.Error(), "/key") {
		t.Errorf("no server: got %v, want unavailable without the address", err)
	}
	for _, address := range []config.Secret{"", "127.0.0.1:8550", "ftp://s3cret@host", "http://%zz"} {
		if _, err := NewRemote(newShelf(), address, Clef); err == nil || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("an address that is none: got %v, want an error without it", err)
		}
	}
	if _, err := NewRemote(newShelf(), "http://127.0.0.1:1", "ledger"); err == nil {
		t.Error("an unknown protocol: got no error")
	}
}

// TestRemoteAssignsEachKeyOnce checks that two agents never have the same address.
func TestRemoteAssignsEachKeyOnce(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	second := common.HexToAddress("0x2222222222222222222222222222222222222222")
	r, _, _ := remote(t, Web3Signer, func(s *remoteSigner) { s.extra = []common.Address{second} })
	got := make([]string, 2)
	errs := make([]error, 3)
	var wg sync.WaitGroup
	for i := range got {
		wg.Go(func() { got[i], errs[i] = r.Create(ctx, fmt.Sprintf("agent-%d", i)) })
	}
	wg.Wait()
	if errs[0] != nil || errs[1] != nil || got[0] == got[1] {
		t.Errorf("addresses: got %v, %v, want two", got, errs)
	}
	if _, err := r.Create(ctx, "agent-2"); api.CodeOf(err) != api.Unavailable {
		t.Errorf("a third agent for two keys: got %v, want unavailable", err)
	}
	if again, err := r.Create(ctx, "agent-0"); err != nil || again != got[0] {
		t.Errorf("again: got %s, %v, want %s", again, err, got[0])
	}
}

package chain_test

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/ethereum/go-ethereum/core/types"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/config"
	"github.com/anima-run/anima/pkg/sqldb"
	"github.com/anima-run/anima/pkg/sqldb/sqldbtest"
	"github.com/anima-run/anima/services/treasury/devchain"
	"github.com/anima-run/anima/services/treasury/internal/chain"
	"github.com/anima-run/anima/services/treasury/internal/chain/chaintest"
	"github.com/anima-run/anima/services/treasury/internal/facilitator"
	"github.com/anima-run/anima/services/treasury/internal/pay"
	"github.com/anima-run/anima/services/treasury/internal/sqlstore"
	"github.com/anima-run/anima/services/treasury/internal/wallet"
	"github.com/anima-run/anima/services/treasury/internal/x402"
	"github.com/anima-run/anima/services/treasury/internal/x402/x402test"
)

var (
	_ facilitator.Chain = (*chain.Submitter)(nil)
	_ pay.Chain         = (*chain.Submitter)(nil)
)

// withoutBlocks is a node that has no block yet.
type withoutBlocks struct{ http.Handler }

func (n withoutBlocks) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil || !bytes.Contains(body, []byte("eth_getBlockByNumber")) {
		r.Body = io.NopCloser(bytes.NewReader(body))
		n.Handler.ServeHTTP(w, r)
		return
	}
	var batch []map[string]any
	_ = json.Unmarshal(body, &batch) // a request for blocks is a batch
	for i, m := range batch {
		batch[i] = map[string]any{"jsonrpc": "2.0", "id": m["id"], "result": nil}
		if m["method"] == "eth_chainId" {
			batch[i]["result"] = "0x539"
		}
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(batch) // fails only if the client has disconnected
}

// aged is a node whose last block is a million after that of a dev chain, as if a day of
// blocks and more had followed. The blocks in between are empty.
type aged struct{ *chaintest.Proxy }

const agedBlocks = 1_000_000

func (n aged) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var batch []map[string]json.RawMessage
	body, err := io.ReadAll(r.Body)
	head, herr := n.Client().HeaderByNumber(r.Context(), nil)
	if err != nil || herr != nil || json.Unmarshal(body, &batch) != nil {
		http.Error(w, "down", http.StatusBadGateway)
		return
	}
	answers := make([]json.RawMessage, len(batch))
	for i, m := range batch {
		if answers[i] = n.late(m, head); answers[i] != nil {
			continue
		}
		one, rec := r.Clone(r.Context()), httptest.NewRecorder()
		text, err := json.Marshal(batch[i : i+1])
		if err != nil {
			panic(err) // it was decoded before
		}
		one.Body, one.ContentLength = io.NopCloser(bytes.NewReader(text)), int64(len(text))
		n.Proxy.ServeHTTP(rec, one)
		answers[i] = bytes.TrimSuffix(bytes.TrimPrefix(bytes.TrimSpace(rec.Body.Bytes()), []byte("[")), []byte("]"))
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(answers) // fails only if the client has disconnected
}

// late returns the answer to a call for a later block than those of the dev chain, nil for
// any other call.
func (n aged) late(m map[string]json.RawMessage, head *types.Header) json.RawMessage {
	var params []json.RawMessage
	_ = json.Unmarshal(m["params"], &params) // a call without parameters is none for a block
	var result any
	switch string(m["method"]) {
	case `"eth_getBlockByNumber"`:
		number := head.Number.Uint64() + agedBlocks
		var tag hexutil.Uint64
		if string(params[0]) != `"latest"` {
			if json.Unmarshal(params[0], &tag) != nil || uint64(tag) <= head.Number.Uint64() {
				return nil
			}
			number = uint64(tag)
		}
		after := number - head.Number.Uint64()
		result = map[string]any{"number": hexutil.Uint64(number), "hash": common.Hash{1}, "timestamp": hexutil.Uint64(head.Time + 2*after)}
	case `"eth_getLogs"`:
		var of struct{ FromBlock, ToBlock hexutil.Uint64 }
		if json.Unmarshal(params[0], &of) != nil || uint64(of.ToBlock) <= head.Number.Uint64() {
			return nil
		}
		if uint64(of.FromBlock) <= head.Number.Uint64() {
			return json.RawMessage(`{"jsonrpc":"2.0","id":` + string(m["id"]) + `,"error":{"code":-32000,"message":"ask for fewer blocks"}}`)
		}
		result = []any{}
	default:
		return nil
	}
	answer, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": m["id"], "result": result})
	if err != nil {
		panic(err) // texts and numbers
	}
	return answer
}

// TestFindsAnOldTransfer asks for the transaction of an authorization that was executed long
// ago, as after an outage: the payer is not refused what it has paid for.
func TestFindsAnOldTransfer(t *testing.T) {
	t.Parallel()
	proxy := chaintest.Start(t, devchain.Options{})
	payer := x402test.NewPayer(t)
	proxy.Give(t, payer.Address(), 1_000_000, "payer")
	now := time.Now().Unix()
	a := x402.Authorization{From: payer.Address(), To: common.Address{0x70}, Value: 300_000, ValidAfter: now - 600, ValidBefore: now + 600, Nonce: [32]byte{1}}
	wallets := wallet.NewKeeper(sqlstore.New(sqldbtest.SQLite(t, sqlstore.Migrations()), nil), "secret", 2)
	submitter := func(url string) *chain.Submitter {
		client, err := chain.NewClient(chain.Options{URL: config.Secret(url), Network: chain.Dev, Now: time.Now})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(client.Close)
		s, err := chain.NewSubmitter(t.Context(), client, wallets)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	hash, ok, err := submitter(proxy.URL.Reveal()).Transfer(t.Context(), a, payer.Sign(t, a, chain.Dev))
	if err != nil || !ok {
		t.Fatalf("transfer: got %s, %t, %v", hash, ok, err)
	}
	later := httptest.NewServer(aged{proxy})
	defer later.Close()
	if got, err := submitter(later.URL).Transferred(t.Context(), a); got != hash || err != nil {
		t.Errorf("got %q, %v, want %s", got, err, hash)
	}
}

// TestSubmits executes authorizations on the node: once each, also after another program
// has done it, and again when the chain answers again.
func TestSubmits(t *testing.T) {
	t.Parallel()
	sqldbtest.Each(t, sqlstore.Migrations(), func(t *testing.T, db *sqldb.DB) {
		proxy := chaintest.Start(t, devchain.Options{})
		wallets := wallet.NewKeeper(sqlstore.New(db, nil), "secret", 2)
		submitter := func(url config.Secret) *chain.Submitter {
			client, err := chain.NewClient(chain.Options{URL: url, Network: chain.Dev, Now: time.Now, MaxAge: time.Nanosecond})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(client.Close)
			s, err := chain.NewSubmitter(t.Context(), client, wallets)
			if err != nil {
				t.Fatal(err)
			}
			return s
		}
		s := submitter(proxy.URL)
		payer, payee := x402test.NewPayer(t), common.Address{0x70}
		proxy.Give(t, payer.Address(), 1_000_000, "payer")
		now := time.Now().Unix()
		a := x402.Authorization{From: payer.Address(), To: payee, Value: 300_000, ValidAfter: now - 600, ValidBefore: now + 600, Nonce: [32]byte{1}}
		sig := payer.Sign(t, a, chain.Dev)
		if hash, err := s.Transferred(t.Context(), a); hash != "" || err != nil {
			t.Errorf("before: got %s, %v", hash, err)
		}
		hash, ok, err := s.Transfer(t.Context(), a, sig)
		if err != nil || !ok {
			t.Fatalf("transfer: got %s, %t, %v", hash, ok, err)
		}
		if got, err := s.Transferred(t.Context(), a); got != hash || err != nil {
			t.Errorf("afterwards: got %s, %v, want %s", got, err, hash)
		}
		syncing := httptest.NewServer(withoutBlocks{proxy})
		defer syncing.Close()
		if got, err := submitter(config.Secret(syncing.URL)).Transferred(t.Context(), a); got != "" || api.CodeOf(err) != api.Unavailable {
			t.Errorf("of a node without a block: got %s, %v, want unavailable", got, err)
		}
		used, at, err := s.State(t.Context(), chain.Dev, a.From, a.Nonce)
		if !used || err != nil || time.Since(at.Time) > time.Minute {
			t.Errorf("state: got %t at %+v, %v", used, at, err)
		}
		if part, final, err := s.Stands(t.Context(), chain.Dev, at); !part || final || err != nil {
			t.Errorf("its block: got %t, final %t, %v", part, final, err)
		}
		lost := at
		lost.Hash[0]++
		if part, final, err := s.Stands(t.Context(), chain.Dev, lost); part || final || err != nil {
			t.Errorf("another block: got %t, final %t, %v", part, final, err)
		}
		for range 40 { // 32 blocks later one is final
			proxy.Commit()
		}
		if part, final, err := s.Stands(t.Context(), chain.Dev, at); !part || !final || err != nil {
			t.Errorf("40 blocks later: got %t, final %t, %v", part, final, err)
		}
		if _, _, err := s.Stands(t.Context(), x402.Base, at); api.CodeOf(err) != api.Unavailable {
			t.Errorf("on another network: got %v", err)
		}
		if _, ok, err := s.Transfer(t.Context(), a, sig); ok || err != nil {
			t.Errorf("again: got %t, %v, want no transfer", ok, err)
		}
		other := a
		other.To = common.Address{1}
		if got, err := s.Transferred(t.Context(), other); got != "" || err != nil {
			t.Errorf("to another payee: got %s, %v", got, err)
		}
		a.Nonce = [32]byte{2}
		sig = payer.Sign(t, a, chain.Dev)
		for _, mode := range []chaintest.Mode{chaintest.Refuses, chaintest.Busy} { // neither is a refusal of the token
			proxy.Set(mode)
			if hash, ok, err := s.Transfer(t.Context(), a, sig); api.CodeOf(err) != api.Unavailable {
				t.Errorf("the RPC %s: got %q, %t, %v, want unavailable", mode, hash, ok, err)
			}
		}
		proxy.Set(chaintest.Works)
		for i := range byte(2) {
			a.Nonce = [32]byte{2 + i}
			if _, ok, err := s.Transfer(t.Context(), a, payer.Sign(t, a, chain.Dev)); !ok || err != nil {
				t.Errorf("transfer %d: got %t, %v", i, ok, err)
			}
		}
		a.Nonce = [32]byte{9}
		if _, ok, err := s.Transfer(t.Context(), a, payer.Sign(t, a, chain.Dev)); ok || err != nil {
			t.Errorf("without funds: got %t, %v", ok, err)
		}
		if got, err := s.Balance(t.Context(), payee); got != 900_000 || err != nil {
			t.Errorf("payee: got %d, %v, want 900000", got, err)
		}
	})
}

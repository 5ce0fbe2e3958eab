package devchain_test

import (
	"bytes"
	"context"
	"math/big"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum"
	"github.com/ethereum/go-ethereum/accounts/abi"
	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/ethclient"
	"github.com/ethereum/go-ethereum/rpc"

	"github.com/anima-run/anima/services/treasury/devchain"
)

var payee = common.HexToAddress("0x1111111111111111111111111111111111111111")

func start(t testing.TB, o devchain.Options) *devchain.Chain {
	t.Helper()
	c, err := devchain.Start(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return c
}

func tokenABI(t testing.TB) abi.ABI {
	t.Helper()
	a, err := abi.JSON(bytes.NewReader(devchain.MiniUSDC().ABI))
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// balance returns the MiniUSDC of an address.
func balance(t testing.TB, c *ethclient.Client, token, of common.Address) int64 {
	t.Helper()
	data, err := tokenABI(t).Pack("balanceOf", of)
	if err != nil {
		t.Fatal(err)
	}
	out, err := c.CallContract(t.Context(), ethereum.CallMsg{To: &token, Data: data}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return new(big.Int).SetBytes(out).Int64()
}

func TestFaucetFundsOncePerID(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	c, err := devchain.Start(devchain.Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	if tx, err := c.Fund(t.Context(), payee, 5_000_000, "one"); err != nil || tx == nil {
		t.Fatalf("fund: got %v, %v, want a transaction", tx, err)
	}
	if tx, err := c.Fund(t.Context(), payee, 5_000_000, "one"); err != nil || tx != nil {
		t.Errorf("the same id: got %v, %v, want nothing", tx, err)
	}
	if got := balance(t, c.Client(), c.Token(), payee); got != 5_000_000 {
		t.Errorf("balance: got %d, want 5000000", got)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	again := start(t, devchain.Options{Dir: dir})
	if got := balance(t, again.Client(), again.Token(), payee); got != 5_000_000 {
		t.Errorf("balance after a restart: got %d, want 5000000", got)
	}
	if tx, err := again.Fund(t.Context(), payee, 5_000_000, "one"); err != nil || tx != nil {
		t.Errorf("the same id after a restart: got %v, %v, want nothing", tx, err)
	}
	for _, c := range []struct {
		to    common.Address
		value uint64
		id    string
	}{{payee, 0, "x"}, {payee, 10_000_000_001, "x"}, {payee, 1, ""}, {common.Address{}, 1, "x"}} {
		if _, err := again.Fund(t.Context(), c.to, c.value, c.id); err == nil {
			t.Errorf("fund %+v: got no error", c)
		}
	}
}

// TestCrashKeepsTransactions copies the files of a running chain, which are what a crash
// leaves, and checks that a chain with them has the transaction.
func TestCrashKeepsTransactions(t *testing.T) {
	t.Parallel()
	dir, left := t.TempDir(), t.TempDir()
	c := start(t, devchain.Options{Dir: dir, Interval: -1})
	if _, err := c.Fund(t.Context(), payee, 5_000_000, "one"); err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(left, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	again := start(t, devchain.Options{Dir: left, Interval: -1})
	if got := balance(t, again.Client(), again.Token(), payee); got != 5_000_000 {
		t.Errorf("balance after a crash: got %d, want 5000000", got)
	}
}

// TestServerStartsWithItsFirstRequest checks that a chain which nobody uses is not
// started, and that the answer to a transaction follows its block.
func TestServerStartsWithItsFirstRequest(t *testing.T) {
	t.Parallel()
	ctx, stop := context.WithCancel(t.Context())
	s, err := devchain.Listen(ctx, "0", devchain.Options{})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx) }()
	defer func() {
		stop()
		if err := <-done; err != nil {
			t.Errorf("serve: %v", err)
		}
	}()
	for _, change := range []func(*http.Request){
		func(r *http.Request) { r.Header.Set("Origin", "https://example.com") },
		func(r *http.Request) { r.Host = "example.com" },
	} {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.URL(), strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		change(req)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusForbidden {
			t.Errorf("a web page: got status %d, want 403", resp.StatusCode)
		}
	}
	if s.Running() {
		t.Error("the chain runs before its first request")
	}
	client, err := rpc.DialContext(ctx, s.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	var tx *common.Hash
	if err := client.CallContext(ctx, &tx, "anima_fund", payee, 7, "id"); err != nil || tx == nil {
		t.Fatalf("anima_fund: got %v, %v, want a transaction", tx, err)
	}
	ec := ethclient.NewClient(client)
	if got := balance(t, ec, devchain.Token, payee); got != 7 {
		t.Errorf("balance: got %d, want 7", got)
	}
	if err := client.CallContext(ctx, &tx, "anima_gas", payee); err != nil || tx == nil {
		t.Errorf("anima_gas: got %v, %v, want a transaction", tx, err)
	}
	if err := client.CallContext(ctx, &tx, "anima_gas", payee); err != nil || tx != nil {
		t.Errorf("anima_gas again: got %v, %v, want nothing", tx, err)
	}
	id, err := ec.ChainID(ctx)
	if err != nil || id.Uint64() != devchain.ChainID {
		t.Errorf("chain id: got %v, %v, want %d", id, err, devchain.ChainID)
	}
	for _, method := range []string{"admin_nodeInfo", "debug_setHead", "miner_stop"} {
		var any any
		if err := client.CallContext(ctx, &any, method); err == nil {
			t.Errorf("%s: got an answer, want none", method)
		}
	}
}

// TestBlocksEndWhenAllIsFinal checks that a transaction becomes final without further
// ones.
func TestBlocksEndWhenAllIsFinal(t *testing.T) {
	t.Parallel()
	c := start(t, devchain.Options{Interval: time.Millisecond})
	if _, err := c.Fund(t.Context(), payee, 1, "id"); err != nil {
		t.Fatal(err)
	}
	at, err := c.Client().BlockNumber(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for final := uint64(0); final < at; {
		h, err := c.Client().HeaderByNumber(t.Context(), big.NewInt(int64(rpc.FinalizedBlockNumber)))
		if err != nil {
			if t.Context().Err() != nil {
				t.Fatal(err)
			}
			continue // no block is final yet
		}
		final = h.Number.Uint64()
	}
}

func BenchmarkStart(b *testing.B) {
	for b.Loop() {
		c, err := devchain.Start(devchain.Options{Dir: b.TempDir()})
		if err != nil {
			b.Fatal(err)
		}
		if err := c.Close(); err != nil {
			b.Fatal(err)
		}
	}
}

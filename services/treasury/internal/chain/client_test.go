package chain_test

import (
	"strings"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	ethcrypto "github.com/ethereum/go-ethereum/crypto"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/config"
	"github.com/anima-run/anima/services/treasury/devchain"
	"github.com/anima-run/anima/services/treasury/internal/chain"
	"github.com/anima-run/anima/services/treasury/internal/chain/chaintest"
	"github.com/anima-run/anima/services/treasury/internal/x402"
)

var owner = common.HexToAddress("0x1111111111111111111111111111111111111111")

func client(t testing.TB, p *chaintest.Proxy, change func(*chain.Options)) *chain.Client {
	t.Helper()
	o := chain.Options{URL: p.URL, Network: chain.Dev, Now: time.Now, Timeout: 2 * time.Second, MaxAge: time.Nanosecond}
	change(&o)
	c, err := chain.NewClient(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// TestSeparatorsOfNetworks compares the domains of the table with those of the reference.
func TestSeparatorsOfNetworks(t *testing.T) {
	t.Parallel()
	for n, want := range map[*x402.Network]string{
		&x402.Base:        "0x02fa7265e7c5d81118673727957699e4d68f74cd74b7db77da710fe8a2c7834f",
		&x402.BaseSepolia: "0x71f17a3b2ff373b803d70a5a07c046c1a2bc8e89c09ef722fcb047abe94c9818",
	} {
		if got, err := chain.DomainSeparator(*n); err != nil || got.Hex() != want {
			t.Errorf("%s: got %s, %v, want %s", n.Name, got, err, want)
		}
	}
	if n, err := chain.Find("eip155:1337"); err != nil || n != chain.Dev {
		t.Errorf("find: got %v, %v, want dev", n, err)
	}
	if _, err := chain.Find("ethereum"); err == nil || !strings.Contains(err.Error(), "base-sepolia") {
		t.Errorf("an unknown network: got %v, want the known ones", err)
	}
}

// TestBalanceIsNeverAGuess checks each way in which the RPC fails: before the first
// balance it is unknown, afterwards the last one is stale, and it recovers by itself.
func TestBalanceIsNeverAGuess(t *testing.T) {
	t.Parallel()
	p := chaintest.Start(t, devchain.Options{Interval: -1})
	p.Give(t, owner, 42, "one")
	for _, mode := range []chaintest.Mode{chaintest.Refuses, chaintest.Hangs, chaintest.Lies, chaintest.Floods} {
		p.Set(mode)
		c := client(t, p, func(*chain.Options) {})
		ctx := t.Context()
		if b, err := c.Balance(ctx, owner); api.CodeOf(err) != api.Unavailable || api.ReasonOf(err) != api.ReasonChain || strings.Contains(err.Error(), chaintest.Password) {
			t.Errorf("%s, before the first balance: got %+v, %v, want unavailable without the address", mode, b, err)
		}
		if err := c.Verify(ctx); api.CodeOf(err) != api.Unavailable {
			t.Errorf("%s: verify: got %v, want unavailable", mode, err)
		}
		p.Set(chaintest.Works)
		b, err := c.Balance(ctx, owner)
		if err != nil || b.Value != 42 || b.Stale || b.Block.Number == 0 || b.Block.Hash == (common.Hash{}) {
			t.Errorf("%s, working again: got %+v, %v, want 42 with its block", mode, b, err)
		}
		if err := c.Verify(ctx); err != nil {
			t.Errorf("%s, working again: verify: %v", mode, err)
		}
		p.Set(mode)
		stale, err := c.Balance(ctx, owner)
		if err != nil || stale.Value != 42 || !stale.Stale || stale.Block != b.Block || stale.At != b.At || api.ReasonOf(stale.Err) != api.ReasonChain {
			t.Errorf("%s, afterwards: got %+v, %v, want the stale %+v", mode, stale, err, b)
		}
		if err := c.Verify(ctx); api.CodeOf(err) != api.Unavailable {
			t.Errorf("%s, afterwards: verify: got %v, want unavailable", mode, err)
		}
		p.Set(chaintest.Works)
	}
}

// TestBalancesOfPayersAreNotKept checks that the balances of those who pay here do not fill
// the memory.
func TestBalancesOfPayersAreNotKept(t *testing.T) {
	t.Parallel()
	p := chaintest.Start(t, devchain.Options{Interval: -1})
	p.Give(t, owner, 42, "one")
	c := client(t, p, func(*chain.Options) {})
	if got, err := (&chain.Submitter{Client: c}).Balance(t.Context(), owner); err != nil || got != 42 {
		t.Fatalf("got %d, %v, want 42", got, err)
	}
	p.Set(chaintest.Refuses)
	if b, err := c.Balance(t.Context(), owner); err == nil {
		t.Errorf("the balance is kept: %+v", b)
	}
}

// TestAnotherDomainIsNotSignedFor checks the comparison with DOMAIN_SEPARATOR().
func TestAnotherDomainIsNotSignedFor(t *testing.T) {
	t.Parallel()
	p := chaintest.Start(t, devchain.Options{Interval: -1})
	for what, change := range map[string]func(*chain.Options){
		"another name":     func(o *chain.Options) { o.Network.Token = "USD Coin" },
		"another version":  func(o *chain.Options) { o.Network.Version = "1" },
		"another contract": func(o *chain.Options) { o.Network.Asset = owner },
		"another chain":    func(o *chain.Options) { o.Network.ChainID = 8453 },
	} {
		if err := client(t, p, change).Verify(t.Context()); api.CodeOf(err) != api.Unavailable {
			t.Errorf("%s: got %v, want unavailable", what, err)
		}
	}
	if err := client(t, p, func(*chain.Options) {}).Verify(t.Context()); err != nil {
		t.Errorf("the dev chain: %v", err)
	}
}

func TestReadsTransfersAndAuthorizations(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	p := chaintest.Start(t, devchain.Options{Interval: -1})
	c := client(t, p, func(*chain.Options) {})
	p.Give(t, owner, 5, "one")
	p.Give(t, common.HexToAddress("0x2222222222222222222222222222222222222222"), 6, "two")
	p.Give(t, owner, 7, "three")
	h, err := c.Heads(ctx)
	if err != nil {
		t.Fatal(err)
	}
	ts, err := c.Transfers(ctx, 0, h.Latest.Number, owner)
	if err != nil || len(ts) != 2 || ts[0].Value != 5 || ts[1].Value != 7 || ts[1].To != owner || ts[1].From != devchain.Faucet || ts[1].Hash != h.Latest.Hash {
		t.Errorf("transfers: got %+v, %v, want 5 and 7, the last in %+v", ts, err, h.Latest)
	}
	used, err := c.AuthorizationsUsed(ctx, 0, h.Latest.Number, devchain.Faucet)
	if err != nil || len(used) != 3 || used[0].Nonce != ethcrypto.Keccak256Hash([]byte("one")) {
		t.Errorf("authorizations: got %+v, %v, want three", used, err)
	}
	for id, want := range map[string]bool{"one": true, "four": false} {
		if got, err := c.AuthorizationState(ctx, devchain.Faucet, ethcrypto.Keccak256Hash([]byte(id))); err != nil || got != want {
			t.Errorf("authorization %s: got %v, %v, want %v", id, got, err, want)
		}
	}
	blocks, last, err := c.Blocks(ctx, h.Latest.Number, h.Latest.Number+1)
	if err != nil || len(blocks) != 2 || blocks[0] == nil || *blocks[0] != h.Latest || blocks[1] != nil || last != h.Latest {
		t.Errorf("blocks: got %v before %v, %v, want the last one and none", blocks, last, err)
	}
	p.Set(chaintest.Refuses)
	if _, err := c.AuthorizationState(ctx, devchain.Faucet, common.Hash{}); api.CodeOf(err) != api.Unavailable {
		t.Errorf("authorization while the RPC is down: got %v, want unavailable, not false", err)
	}
	for _, u := range []string{"", "127.0.0.1:1", "ftp://" + chaintest.Password + "@h", "http://%zz" + chaintest.Password} {
		if _, err := chain.NewClient(chain.Options{URL: config.Secret(u)}); err == nil || strings.Contains(err.Error(), chaintest.Password) {
			t.Errorf("the address %q: got %v, want an error without it", u, err)
		}
	}
}

// TestFreeNode asks a node that permits few calls in a request and few blocks in a search,
// or answers a search of many blocks with too many bytes: everything is read, in parts.
func TestFreeNode(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	p := chaintest.Start(t, devchain.Options{Interval: -1})
	c := client(t, p, func(*chain.Options) {})
	p.Give(t, owner, 5, "one")
	for range 3 * chaintest.FreeBlocks {
		p.Commit()
	}
	p.Give(t, owner, 7, "two")
	h, err := c.Heads(ctx)
	if err != nil {
		t.Fatal(err)
	}
	p.Set(chaintest.Free)
	if ts, err := c.Transfers(ctx, 0, h.Latest.Number, owner); err != nil || len(ts) != 2 || ts[0].Value != 5 || ts[1].Value != 7 {
		t.Errorf("transfers: got %+v, %v, want 5 and 7", ts, err)
	}
	p.Set(chaintest.Long)
	if ts, err := c.Transfers(ctx, 0, h.Latest.Number, owner); err != nil || len(ts) != 2 || ts[0].Value != 5 || ts[1].Value != 7 {
		t.Errorf("transfers with long answers: got %+v, %v, want 5 and 7", ts, err)
	}
	p.Set(chaintest.Free)
	of, numbers := make([]common.Address, 3*chaintest.FreeCalls), make([]uint64, 3*chaintest.FreeCalls)
	for i := range numbers {
		of[i], numbers[i] = common.Address{1}, uint64(i) //nolint:gosec // small
	}
	of[0], of[len(of)-1] = owner, owner
	values, err := c.BalancesAt(ctx, h.Latest.Hash, of...)
	if err != nil || len(values) != len(of) || values[0] != 12 || values[1] != 0 || values[len(of)-1] != 12 {
		t.Errorf("balances: got %v, %v, want the first and the last of 12", values, err)
	}
	blocks, last, err := c.Blocks(ctx, numbers...)
	if err != nil || last != h.Latest || len(blocks) != len(numbers) {
		t.Fatalf("blocks: got %d before %v, %v, want %d before %v", len(blocks), last, err, len(numbers), h.Latest)
	}
	for i, b := range blocks {
		if b == nil || b.Number != numbers[i] {
			t.Errorf("block %d: got %v", numbers[i], b)
		}
	}
}

// TestNodeThatGrows asks a node that gets the last block while it answers: it must prove
// neither that the chain does not have this block nor that the block has no transfer.
func TestNodeThatGrows(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	p := chaintest.Start(t, devchain.Options{Interval: -1})
	c := client(t, p, func(*chain.Options) {})
	p.Give(t, owner, 5, "one")
	h, err := c.Heads(ctx)
	if err != nil {
		t.Fatal(err)
	}
	p.Set(chaintest.Grows)
	if ts, err := c.Transfers(ctx, h.Latest.Number, h.Latest.Number, owner); api.CodeOf(err) != api.Unavailable {
		t.Errorf("transfers: got %+v, %v, want unavailable", ts, err)
	}
	blocks, last, err := c.Blocks(ctx, h.Latest.Number)
	if err != nil || blocks[0] == nil && last.Number >= h.Latest.Number {
		t.Errorf("blocks: got %v before %v, %v, want the block, or an earlier last one", blocks, last, err)
	}
}

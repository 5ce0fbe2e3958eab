// Package x402test has a payer and a chain for tests of the sides of a payment. The chain
// is a model of the token: balances and used authorizations in memory. It must not be
// used where a rule of the real token is tested.
package x402test

import (
	"context"
	"crypto/ecdsa"
	"fmt"
	"math/big"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/crypto"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/services/treasury/internal/chain"
	"github.com/anima-run/anima/services/treasury/internal/x402"
)

// Payer signs payments.
type Payer struct {
	key   *ecdsa.PrivateKey
	nonce byte
}

// NewPayer returns a payer with a new key.
func NewPayer(t testing.TB) *Payer {
	t.Helper()
	key, err := crypto.GenerateKey()
	if err != nil {
		t.Fatal(err)
	}
	return &Payer{key: key}
}

// Address returns the address of the payer.
func (p *Payer) Address() common.Address { return crypto.PubkeyToAddress(p.key.PublicKey) }

// Sign signs an authorization.
func (p *Payer) Sign(t testing.TB, a x402.Authorization, n x402.Network) (s x402.Signature) {
	t.Helper()
	digest := a.Digest(n)
	sig, err := crypto.Sign(digest[:], p.key)
	if err != nil {
		t.Fatal(err)
	}
	copy(s[:], sig)
	s[64] += 27
	return s
}

// Pay returns a new payment of a price, in the shape of a version, after change.
func (p *Payer) Pay(t testing.TB, price x402.Price, version int, change func(*x402.Authorization)) x402.Payment {
	t.Helper()
	h := http.Header{}
	cs, err := x402.ReadChallenges(h, x402.Demand{Price: price}.Write(h))
	if err != nil {
		t.Fatal(err)
	}
	p.nonce++
	now := time.Now().Unix()
	pay := x402.Payment{Version: version, Scheme: x402.Exact, Network: price.Network.Written(version), Authorization: x402.Authorization{
		From: p.Address(), To: price.PayTo, Value: price.Amount, ValidAfter: now - 600, ValidBefore: now + price.Timeout, Nonce: [32]byte{p.nonce},
	}}
	if version == x402.V2 {
		pay.Accepted, pay.Resource, pay.Extensions = &cs[0].Offers[0], cs[0].Resource, cs[0].Extensions
	}
	if change != nil {
		change(&pay.Authorization)
	}
	pay.Signature = p.Sign(t, pay.Authorization, price.Network)
	return pay
}

// Chain is a token in memory. It implements the chain of a facilitator and of a payer.
type Chain struct {
	Net   x402.Network
	Clock func() time.Time

	mu        sync.Mutex
	balances  map[common.Address]api.Micros
	used      map[string]string // hash of the transaction by payer and nonce
	done      []x402.Authorization
	transfers int
	fork      int64 // number of reorganizations
	open      bool  // blocks are not final
	behind    bool  // the payer's node does not have the last block
	failing   error
	lost      bool // the next transfer is executed; its answer is lost
	delayed   bool // the next transfer waits in the pool; its answer is lost
	waiting   *x402.Authorization
}

// NewChain returns a chain in which an address has an amount.
func NewChain(n x402.Network, rich common.Address, amount api.Micros) *Chain {
	return &Chain{Net: n, Clock: time.Now, balances: map[common.Address]api.Micros{rich: amount}, used: map[string]string{}}
}

// Fail makes every request fail until it is called with nil.
func (c *Chain) Fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failing = err
}

// Lose makes the next transfer succeed without an answer.
func (c *Chain) Lose() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lost = true
}

// Delay makes the next transfer wait in the pool, without an answer. It is executed with
// the one after it, before that one.
func (c *Chain) Delay() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.delayed = true
}

// Transfers returns the number of transfers.
func (c *Chain) Transfers() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.transfers
}

// Network implements the chain of a facilitator.
func (c *Chain) Network() x402.Network { return c.Net }

// Signer implements the chain of a facilitator.
func (c *Chain) Signer() common.Address { return common.Address{0xfa} }

// Balance implements the chain of a facilitator.
func (c *Chain) Balance(_ context.Context, of common.Address) (api.Micros, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.balances[of], c.failing
}

// Used implements the chain of a facilitator.
func (c *Chain) Used(_ context.Context, payer common.Address, nonce [32]byte) (bool, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.used[id(payer, nonce)] != "", c.failing
}

// State implements the chain of a payer.
func (c *Chain) State(_ context.Context, _ x402.Network, payer common.Address, nonce [32]byte) (bool, chain.Block, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.behind {
		return false, chain.Block{Time: c.Clock()}, c.failing
	}
	return c.used[id(payer, nonce)] != "", chain.Block{Number: 1, Hash: c.hash(), Time: c.Clock()}, c.failing
}

func (c *Chain) hash() common.Hash { return common.BigToHash(big.NewInt(c.fork + 1)) }

// Stands implements the chain of a payer. Blocks are final unless Open was called.
func (c *Chain) Stands(_ context.Context, _ x402.Network, b chain.Block) (part, final bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	part = b.Hash == c.hash() && !c.behind
	return part, part && !c.open, c.failing
}

// Open sets whether the blocks are not final.
func (c *Chain) Open(open bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open = open
}

// Behind sets whether the payer's node does not have the last block.
func (c *Chain) Behind(behind bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.behind = behind
}

// Reorganize replaces all blocks, with the transfers or without.
func (c *Chain) Reorganize(keep bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fork++
	if keep {
		return
	}
	for _, a := range c.done {
		c.balances[a.From] += a.Value
		c.balances[a.To] -= a.Value
		delete(c.used, id(a.From, a.Nonce))
	}
	c.done = nil
}

// Transferred implements the chain of a facilitator.
func (c *Chain) Transferred(_ context.Context, a x402.Authorization) (string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.used[id(a.From, a.Nonce)], c.failing
}

// Transfer implements the chain of a facilitator.
func (c *Chain) Transfer(_ context.Context, a x402.Authorization, s x402.Signature) (string, bool, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	payer, err := s.Payer(a.Digest(c.Net))
	if w := c.waiting; w != nil && c.failing == nil {
		c.waiting = nil
		c.execute(*w)
	}
	switch key := id(a.From, a.Nonce); {
	case c.failing != nil:
		return "", false, c.failing
	case err != nil || payer != a.From || c.used[key] != "" || c.balances[a.From] < a.Value:
		return fmt.Sprintf("0x%064x", 0xdead), false, nil
	case c.delayed:
		c.delayed, c.waiting = false, &a
		return "", false, context.DeadlineExceeded
	default:
		c.execute(a)
		if c.lost {
			c.lost = false
			return "", false, context.DeadlineExceeded
		}
		return c.used[key], true, nil
	}
}

func (c *Chain) execute(a x402.Authorization) {
	c.transfers++
	c.done = append(c.done, a)
	c.used[id(a.From, a.Nonce)] = fmt.Sprintf("0x%064x", c.transfers)
	c.balances[a.From] -= a.Value
	c.balances[a.To] += a.Value
}

func id(payer common.Address, nonce [32]byte) string { return fmt.Sprintf("%s/%x", payer, nonce) }

package chain

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"strings"
	"time"

	"github.com/ethereum/go-ethereum/accounts/abi"
	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/ethereum/go-ethereum/rpc"

	"github.com/anima-run/anima/pkg/api"
)

// token is the part of EIP-20 and EIP-3009 that treasury reads.
var token = func() abi.ABI {
	a, err := abi.JSON(strings.NewReader(`[
		{"type":"function","stateMutability":"view","name":"DOMAIN_SEPARATOR","inputs":[],"outputs":[{"name":"","type":"bytes32"}]},
		{"type":"function","stateMutability":"view","name":"balanceOf","inputs":[{"name":"owner","type":"address"}],"outputs":[{"name":"","type":"uint256"}]},
		{"type":"function","stateMutability":"view","name":"authorizationState","inputs":[{"name":"authorizer","type":"address"},{"name":"nonce","type":"bytes32"}],"outputs":[{"name":"","type":"bool"}]},
		{"type":"event","name":"Transfer","inputs":[{"name":"from","type":"address","indexed":true},{"name":"to","type":"address","indexed":true},{"name":"value","type":"uint256","indexed":false}]},
		{"type":"event","name":"AuthorizationUsed","inputs":[{"name":"authorizer","type":"address","indexed":true},{"name":"nonce","type":"bytes32","indexed":true}]}
	]`))
	if err != nil {
		panic(fmt.Sprintf("chain: %v", err)) // the text is part of the program
	}
	return a
}()

// Balance is the USDC of an address at a block.
type Balance struct {
	Value api.Micros
	Block Block
	At    time.Time // when it was read
	Stale bool      // the chain could not be read since; Err says why
	Err   error

	old bool // a transaction has changed it
}

// Balance returns the USDC of an address. If the chain cannot be read, it returns the last
// balance with Stale set. Errors: Unavailable if there is no earlier balance; then the
// balance is unknown, not zero.
func (c *Client) Balance(ctx context.Context, of common.Address) (Balance, error) {
	now := c.opts.Now()
	c.mu.Lock()
	last, known := c.balances[of]
	c.mu.Unlock()
	if known && !last.Stale && !last.old && now.Sub(last.At) < c.opts.MaxAge {
		return last, nil
	}
	fresh, err := c.latestBalance(ctx, of)
	c.mu.Lock()
	defer c.mu.Unlock()
	last, known = c.balances[of] // another request may have been faster
	switch {
	case err == nil:
		fresh.At = now
		c.balances[of] = fresh
		return fresh, nil
	case !known:
		return Balance{}, err
	}
	last.Stale, last.Err = true, err
	c.balances[of] = last
	return last, nil
}

func (c *Client) latestBalance(ctx context.Context, of common.Address) (Balance, error) {
	blocks, err := c.blocks(ctx, "latest")
	if err != nil {
		return Balance{}, err
	}
	if blocks[0] == nil {
		return Balance{}, c.failed("has no block", "wait until the node has synced")
	}
	at := blocks[0].block()
	values, err := c.BalancesAt(ctx, at.Hash, of)
	if err != nil {
		return Balance{}, err
	}
	return Balance{Value: values[0], Block: at}, nil
}

// BalancesAt returns the USDC of addresses at the block with a hash.
func (c *Client) BalancesAt(ctx context.Context, hash common.Hash, of ...common.Address) ([]api.Micros, error) {
	raw := make([]hexutil.Bytes, len(of))
	err := c.inParts(len(of), func(from, to int) error {
		calls := make([]rpc.BatchElem, to-from)
		for i, a := range of[from:to] {
			var err error
			if calls[i], err = c.read("balanceOf", map[string]any{"blockHash": hash}, &raw[from+i], a); err != nil {
				return err
			}
		}
		return c.call(ctx, calls...)
	})
	if err != nil {
		return nil, err
	}
	values := make([]api.Micros, len(of))
	for i, r := range raw {
		v := new(big.Int).SetBytes(r)
		if len(r) != 32 || v.Cmp(big.NewInt(int64(api.MaxMicros))) > 0 {
			return nil, c.failed("returned a balance that cannot be read", "check that the network's token is at its address")
		}
		values[i] = api.Micros(v.Int64())
	}
	return values, nil
}

// AuthorizationState reports whether the token has used or cancelled an authorization, as
// of the last block. It is the answer to an unknown outcome of a payment.
func (c *Client) AuthorizationState(ctx context.Context, from common.Address, nonce common.Hash) (bool, error) {
	return c.authorizationState(ctx, "latest", from, nonce)
}

func (c *Client) authorizationState(ctx context.Context, at any, from common.Address, nonce common.Hash) (bool, error) {
	var out hexutil.Bytes
	elem, err := c.read("authorizationState", at, &out, from, [32]byte(nonce))
	if err != nil {
		return false, err
	}
	if err := c.call(ctx, elem); err != nil {
		return false, err
	}
	if len(out) != 32 {
		return false, c.failed("returned a state that cannot be read", "check that the network's token is at its address")
	}
	return out[31] == 1, nil
}

// Transfer is a transfer of USDC in a block.
type Transfer struct {
	Tx    common.Hash
	Index uint // of its log in the block
	From  common.Address
	To    common.Address
	Value api.Micros
	Block uint64
	Hash  common.Hash // of the block
}

// Transfers returns the transfers to any of the addresses in a range of blocks, in order.
func (c *Client) Transfers(ctx context.Context, first, last uint64, to ...common.Address) ([]Transfer, error) {
	logs, err := c.logs(ctx, first, last, token.Events["Transfer"].ID, nil, to)
	if err != nil {
		return nil, err
	}
	var all []Transfer
	for i := range logs {
		l := &logs[i]
		if len(l.Topics) != 3 || len(l.Data) != 32 {
			return nil, c.failed("returned a log that cannot be read", "check that the network's token is at its address")
		}
		v := new(big.Int).SetBytes(l.Data)
		if v.Cmp(big.NewInt(int64(api.MaxMicros))) > 0 {
			return nil, c.failed("returned a transfer of more money than there is", "check that the network's token is at its address")
		}
		all = append(all, Transfer{
			Tx: l.TxHash, Index: l.Index, From: common.BytesToAddress(l.Topics[1][:]), To: common.BytesToAddress(l.Topics[2][:]),
			Value: api.Micros(v.Int64()), Block: l.BlockNumber, Hash: l.BlockHash,
		})
	}
	return all, nil
}

// Used is an authorization that the token has used.
type Used struct {
	Authorizer common.Address
	Nonce      common.Hash
	Tx         common.Hash
	Block      uint64
}

// AuthorizationsUsed returns the used authorizations of an address in a range of blocks,
// which it reads in parts: providers limit the blocks of a request.
func (c *Client) AuthorizationsUsed(ctx context.Context, first, last uint64, of common.Address) ([]Used, error) {
	var all []Used
	for ; first <= last; first += scanBlocks {
		logs, err := c.logs(ctx, first, min(first+scanBlocks-1, last), token.Events["AuthorizationUsed"].ID, []common.Address{of}, nil)
		if err != nil {
			return nil, err
		}
		for i := range logs {
			if l := &logs[i]; len(l.Topics) == 3 {
				all = append(all, Used{Authorizer: common.BytesToAddress(l.Topics[1][:]), Nonce: l.Topics[2], Tx: l.TxHash, Block: l.BlockNumber})
			}
		}
	}
	return all, nil
}

// logs returns the logs of an event of the token whose first or second address is among
// the given ones; nil means any. A range that the node refuses, or whose answer is too long,
// is read in halves: plans of providers permit as few as 10 blocks, and their errors have
// nothing in common.
func (c *Client) logs(ctx context.Context, first, last uint64, event common.Hash, one, two []common.Address) (all []types.Log, err error) {
	for most := last - first + 1; first <= last; {
		end := min(last, first+most-1)
		part, err := c.logsIn(ctx, first, end, event, one, two)
		_, refused := errors.AsType[*CallError](err)
		switch {
		case err == nil:
			all, first = append(all, part...), end+1
		case (refused || errors.Is(err, errWhole)) && end > first:
			most = (end - first + 1) / 2
		default:
			return nil, err
		}
	}
	return all, nil
}

// logsIn is logs in one request. The same request asks for the last block first: behind a
// load balancer may be a node that does not have it yet, or gets it between two answers, and
// some nodes return the logs of the blocks that they have without an error.
func (c *Client) logsIn(ctx context.Context, first, last uint64, event common.Hash, one, two []common.Address) ([]types.Log, error) {
	topic := func(as []common.Address) any {
		if as == nil {
			return nil
		}
		ts := make([]common.Hash, len(as))
		for i, a := range as {
			ts[i] = common.BytesToHash(a[:])
		}
		return ts
	}
	topics := []any{event, topic(one)}
	if two != nil {
		topics = append(topics, topic(two))
	}
	var raw json.RawMessage
	var end *header
	err := c.call(ctx,
		rpc.BatchElem{Method: "eth_getBlockByNumber", Args: []any{hexutil.Uint64(last), false}, Result: &end},
		rpc.BatchElem{Method: "eth_getLogs", Result: &raw, Args: []any{map[string]any{
			"address": c.opts.Network.Asset, "fromBlock": hexutil.Uint64(first), "toBlock": hexutil.Uint64(last), "topics": topics,
		}}})
	if err != nil {
		return nil, err
	}
	if end == nil {
		return nil, c.failed(fmt.Sprintf("does not have block %d yet", last), "it is read again by itself")
	}
	var logs []types.Log
	if err := json.Unmarshal(raw, &logs); err != nil {
		return nil, c.failed("returned logs that cannot be read", "check the provider of the RPC")
	}
	var kept []types.Log
	for i := range logs {
		if l := &logs[i]; !l.Removed && l.Address == c.opts.Network.Asset && l.BlockNumber >= first && l.BlockNumber <= last {
			kept = append(kept, *l)
		}
	}
	return kept, nil
}

// Faucet asks the faucet of the dev chain to pay USDC, once for each id, and returns the
// hash of the transaction, "" if the id was paid before.
func (c *Client) Faucet(ctx context.Context, to common.Address, value api.Micros, id string) (string, error) {
	if err := c.Verify(ctx); err != nil { // a node of another chain would execute it before its id is compared
		return "", err
	}
	var tx *common.Hash
	err := c.call(ctx, rpc.BatchElem{Method: "anima_fund", Args: []any{to, uint64(value), id}, Result: &tx}) //nolint:gosec // the faucet refuses a large one
	if refused, ok := errors.AsType[*CallError](err); ok {
		return "", &api.Error{Code: api.Invalid, Message: refused.Error(), Next: "the faucet gives at most 10,000 dollars at once"}
	}
	if err != nil || tx == nil {
		return "", err
	}
	c.forget(to)
	return tx.Hex(), nil
}

// forget has the balances of addresses that a transaction has changed read again.
func (c *Client) forget(of ...common.Address) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, a := range of {
		if b, ok := c.balances[a]; ok {
			b.old = true
			c.balances[a] = b
		}
	}
}

package chain

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ethereum/go-ethereum/accounts/abi"
	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/ethereum/go-ethereum/rpc"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/wait"

	"github.com/anima-run/anima/services/treasury/internal/wallet"
	"github.com/anima-run/anima/services/treasury/internal/x402"
)

// FeesWallet is the name of the wallet that pays the fees of submitted authorizations. No
// agent can have the name.
const FeesWallet = "treasury:fees"

// Bounds of one transaction. The gas of a transfer with authorization is 80,000 to 190,000
// by the token and the forks of the chain.
const (
	maxGas      = 500_000
	receiptWait = 8 * time.Second // until the fee is raised
	receiptPoll = 200 * time.Millisecond
)

// maxFee is the largest fee per gas that is paid, in wei: 200 gwei.
var maxFee = big.NewInt(200_000_000_000)

// Submitter submits signed authorizations to the token. It sends one transaction at a
// time, with the number of its included transactions as the nonce: a transaction that is
// stuck in the pool, or that a stopped process has left there, is replaced by the next
// one with a higher fee. So there are no gaps. Two processes with one wallet may replace
// each other's transactions; then a submission has no outcome and is repeated, and the
// token executes an authorization at most once. It is safe for concurrent use.
type Submitter struct {
	*Client

	wallets wallet.Signer
	address common.Address
	one     sync.Mutex // one transaction at a time
}

// NewSubmitter returns a submitter, and creates its wallet if there is none.
func NewSubmitter(ctx context.Context, c *Client, wallets wallet.Signer) (*Submitter, error) {
	address, err := wallets.Create(ctx, FeesWallet)
	return &Submitter{Client: c, wallets: wallets, address: common.HexToAddress(address)}, err
}

// Signer returns the address that pays the fees.
func (s *Submitter) Signer() common.Address { return s.address }

// Balance returns the amount of the token that an address has now. It is not kept as by
// [Client.Balance]: anybody can pay here, from any number of addresses.
func (s *Submitter) Balance(ctx context.Context, of common.Address) (api.Micros, error) {
	b, err := s.latestBalance(ctx, of)
	return b.Value, err
}

// Used reports whether an authorization was used or cancelled.
func (s *Submitter) Used(ctx context.Context, payer common.Address, nonce [32]byte) (bool, error) {
	if err := s.Verify(ctx); err != nil {
		return false, err
	}
	return s.AuthorizationState(ctx, payer, nonce)
}

// State reports whether an authorization was used or cancelled at the last block, which it
// returns.
func (s *Submitter) State(ctx context.Context, n x402.Network, payer common.Address, nonce [32]byte) (used bool, at Block, err error) {
	if err := s.ready(ctx, n); err != nil {
		return false, at, err
	}
	head, err := s.blocks(ctx, "latest")
	if err != nil {
		return false, at, err
	}
	if head[0] == nil {
		return false, at, s.failed("has no block", "wait until the node has synced")
	}
	at = head[0].block()
	used, err = s.authorizationState(ctx, map[string]any{"blockHash": at.Hash}, payer, nonce)
	if _, refused := errors.AsType[*CallError](err); refused { // the block was replaced, or another node of the provider has answered
		err = s.failed("does not have the state of its last block", "check the provider of the RPC; treasury asks again by itself")
	}
	return used, at, err
}

// Stands reports whether a block is part of the chain, and whether it is final too.
func (s *Submitter) Stands(ctx context.Context, n x402.Network, b Block) (part, final bool, err error) {
	if err := s.ready(ctx, n); err != nil {
		return false, false, err
	}
	all, err := s.blocks(ctx, hexutil.Uint64(b.Number), "latest", "finalized")
	if err != nil {
		return false, false, err
	}
	if all[1] == nil {
		return false, false, s.failed("has no block", "wait until the node has synced")
	}
	part = all[0] != nil && all[0].Hash == b.Hash
	return part, part && all[2] != nil && uint64(all[2].Number) >= b.Number, nil
}

// ready returns an error if n is not the network of s, or its token cannot be read.
func (s *Submitter) ready(ctx context.Context, n x402.Network) error {
	if n.ChainID != s.Network().ChainID {
		return api.Errorf(api.Unavailable, "the chain of %s is not configured", n.ID())
	}
	return s.Verify(ctx)
}

// lookBack is the number of blocks in which a settled authorization is searched: more
// than twice the longest window on a chain with a block in two seconds.
const lookBack = 4000

// Transferred returns the transaction in which the token executed an authorization, ""
// if there is none that moved its value to its payee. It is searched before the end of the
// window of the authorization, however long ago that was.
func (s *Submitter) Transferred(ctx context.Context, a x402.Authorization) (string, error) {
	used, err := s.Used(ctx, a.From, a.Nonce)
	if err != nil || !used {
		return "", err
	}
	head, err := s.blocks(ctx, "latest")
	if err != nil {
		return "", err
	}
	if head[0] == nil {
		return "", s.failed("has no block", "wait until the node has synced")
	}
	last, err := s.lastBefore(ctx, head[0].block().Number, a.ValidBefore)
	if err != nil {
		return "", err
	}
	all, err := s.AuthorizationsUsed(ctx, last-min(last, lookBack), last, a.From)
	if err != nil {
		return "", err
	}
	i := slices.IndexFunc(all, func(u Used) bool { return u.Nonce == common.Hash(a.Nonce) })
	if i < 0 {
		return "", nil
	}
	r, err := s.receipt(ctx, all[i].Tx)
	switch {
	case err != nil:
		return "", err
	case r == nil:
		return "", s.failed("does not have the receipt of a transaction in its blocks", "check the provider of the RPC; treasury asks again by itself")
	case !s.moved(r, a):
		return "", nil
	}
	return all[i].Tx.Hex(), nil
}

// lastBefore returns the number of a block that is not before the last one of a time, in Unix
// seconds, and at most lookBack/2 blocks after it. It doubles the steps back from the head and
// then halves the range, so that recent times need one request.
func (s *Submitter) lastBefore(ctx context.Context, head uint64, end int64) (uint64, error) {
	low, high := uint64(0), head
	for step := uint64(lookBack / 2); high-low > lookBack/2; step *= 2 {
		at := high - min(step, (high-low)/2)
		all, err := s.blocks(ctx, hexutil.Uint64(at))
		switch {
		case err != nil:
			return 0, err
		case all[0] == nil:
			return 0, s.failed(fmt.Sprintf("does not have block %d", at), "check the provider of the RPC; treasury asks again by itself")
		case int64(all[0].Time) < end: //nolint:gosec // a time in seconds
			low = at
		default:
			high = at
		}
	}
	return high, nil
}

// moved reports whether a transaction has transferred the value of an authorization.
func (s *Submitter) moved(r *types.Receipt, a x402.Authorization) bool {
	return slices.ContainsFunc(r.Logs, func(l *types.Log) bool {
		return l.Address == s.Network().Asset && len(l.Topics) == 3 && len(l.Data) == 32 && l.Topics[0] == token.Events["Transfer"].ID &&
			common.BytesToAddress(l.Topics[1][:]) == a.From && common.BytesToAddress(l.Topics[2][:]) == a.To &&
			new(big.Int).SetBytes(l.Data).Cmp(big.NewInt(int64(a.Value))) == 0
	})
}

// transferABI has the form of the function that every version of USDC has.
var transferABI = func() abi.ABI {
	a, err := abi.JSON(strings.NewReader(`[{"type":"function","name":"transferWithAuthorization","inputs":[
		{"name":"from","type":"address"},{"name":"to","type":"address"},{"name":"value","type":"uint256"},{"name":"validAfter","type":"uint256"},
		{"name":"validBefore","type":"uint256"},{"name":"nonce","type":"bytes32"},{"name":"v","type":"uint8"},{"name":"r","type":"bytes32"},{"name":"s","type":"bytes32"}]}]`))
	if err != nil {
		panic(fmt.Sprintf("chain: %v", err)) // the text is part of the program
	}
	return a
}()

// Transfer submits an authorization and waits until it is included in a block. It returns
// the hash of the transaction and whether it moved the money. After an error the outcome
// is not known: the transaction may be in the pool.
func (s *Submitter) Transfer(ctx context.Context, a x402.Authorization, sig x402.Signature) (hash string, ok bool, err error) {
	if err := s.Verify(ctx); err != nil {
		return "", false, err
	}
	data, err := transferABI.Pack("transferWithAuthorization", a.From, a.To, big.NewInt(int64(a.Value)), big.NewInt(a.ValidAfter),
		big.NewInt(a.ValidBefore), a.Nonce, sig[64], [32]byte(sig[:32]), [32]byte(sig[32:64]))
	if err != nil {
		return "", false, err
	}
	s.one.Lock()
	defer s.one.Unlock()
	if s.Network() == Dev { // its faucet gives the fees
		var tx *common.Hash
		if err := s.call(ctx, rpc.BatchElem{Method: "anima_gas", Args: []any{s.address}, Result: &tx}); err != nil {
			return "", false, err
		}
	}
	var count hexutil.Uint64
	var gas hexutil.Uint64
	var tip hexutil.Big
	var head struct {
		BaseFee *hexutil.Big `json:"baseFeePerGas"`
	}
	call := map[string]any{"from": s.address, "to": s.Network().Asset, "data": hexutil.Bytes(data)}
	err = s.call(ctx,
		rpc.BatchElem{Method: "eth_getTransactionCount", Args: []any{s.address, "latest"}, Result: &count},
		rpc.BatchElem{Method: "eth_getBlockByNumber", Args: []any{"latest", false}, Result: &head},
		rpc.BatchElem{Method: "eth_maxPriorityFeePerGas", Result: &tip},
		rpc.BatchElem{Method: "eth_estimateGas", Args: []any{call}, Result: &gas})
	refused, isRefusal := errors.AsType[*CallError](err)
	switch {
	case isRefusal && refused.reverted: // the token would refuse it
		return "", false, nil
	case isRefusal && strings.Contains(refused.text, "insufficient funds"): // of the wallet for fees, not of the payer
		return "", false, s.failed("refuses the transaction: the wallet "+s.address.Hex()+" cannot pay its fee", "send it the currency of the network")
	case err != nil:
		return "", false, err
	}
	if head.BaseFee == nil {
		return "", false, s.failed("has a block without a base fee", "use a network with EIP-1559")
	}
	fee := new(big.Int).Mul((*big.Int)(head.BaseFee), big.NewInt(2))
	return s.include(ctx, a, data, uint64(count), uint64(gas)*5/4, fee, (*big.Int)(&tip))
}

// include sends a transaction, and again with a higher fee while it is not in a block.
func (s *Submitter) include(ctx context.Context, a x402.Authorization, data []byte, nonce, gas uint64, base, tip *big.Int) (string, bool, error) {
	asset := s.Network().Asset
	var sent []common.Hash
	for ctx.Err() == nil {
		limit := new(big.Int).Add(base, tip)
		if limit.Cmp(maxFee) > 0 {
			return "", false, s.failed("demands a fee above 200 gwei", "wait until the network is less busy")
		}
		tx := types.NewTx(&types.DynamicFeeTx{
			ChainID: big.NewInt(s.Network().ChainID), Nonce: nonce, To: &asset, Value: new(big.Int), Data: data, Gas: min(gas, maxGas), GasTipCap: tip, GasFeeCap: limit,
		})
		signed, err := s.wallets.SignTransaction(ctx, FeesWallet, tx, wallet.TxRule{
			ChainID: uint64(s.Network().ChainID), To: asset, Nonce: nonce, MaxGas: maxGas, MaxFee: maxFee, //nolint:gosec // an id is positive
		})
		if err != nil {
			return "", false, err
		}
		raw, err := signed.MarshalBinary()
		if err != nil {
			return "", false, err
		}
		err = s.call(ctx, rpc.BatchElem{Method: "eth_sendRawTransaction", Args: []any{hexutil.Bytes(raw)}, Result: new(common.Hash)})
		refused, isRefusal := errors.AsType[*CallError](err)
		switch {
		case err == nil, isRefusal && strings.Contains(refused.text, "already known"):
			sent = append(sent, signed.Hash())
		case isRefusal && strings.Contains(refused.text, "underpriced"): // another transaction has the nonce
		case isRefusal && strings.Contains(refused.text, "nonce too low") && len(sent) > 0: // one that was sent before is included
		default:
			return "", false, err
		}
		r, err := s.await(ctx, sent)
		if err != nil {
			return "", false, err
		}
		if r != nil {
			s.forget(a.From, a.To)
			return r.TxHash.Hex(), r.Status == types.ReceiptStatusSuccessful && s.moved(r, a), nil
		}
		// A replacement needs at least a tenth more of both.
		base, tip = raised(base), raised(tip)
	}
	return "", false, ctx.Err()
}

func raised(n *big.Int) *big.Int {
	n = new(big.Int).Mul(n, big.NewInt(5))
	return n.Add(n.Div(n, big.NewInt(4)), big.NewInt(1))
}

// await waits for the receipt of one of the transactions, nil if there is none in time.
func (s *Submitter) await(ctx context.Context, sent []common.Hash) (*types.Receipt, error) {
	for end := s.opts.Now().Add(receiptWait); len(sent) > 0 && s.opts.Now().Before(end); {
		for _, hash := range sent {
			if r, err := s.receipt(ctx, hash); err != nil || r != nil {
				return r, err
			}
		}
		if err := wait.For(ctx, receiptPoll); err != nil {
			return nil, err
		}
	}
	return nil, nil
}

// receipt returns the receipt of a transaction, nil if it is in no block.
func (s *Submitter) receipt(ctx context.Context, hash common.Hash) (*types.Receipt, error) {
	var raw json.RawMessage
	if err := s.call(ctx, rpc.BatchElem{Method: "eth_getTransactionReceipt", Args: []any{hash}, Result: &raw}); err != nil {
		return nil, err
	}
	if len(raw) == 0 || string(raw) == "null" {
		return nil, nil
	}
	var r types.Receipt
	if err := json.Unmarshal(raw, &r); err != nil {
		return nil, s.failed("returned a receipt that cannot be read", "check the provider of the RPC")
	}
	return &r, nil
}

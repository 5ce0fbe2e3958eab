// Package devchain runs a chain for development and tests: go-ethereum's own node in this
// process, with the token MiniUSDC in its genesis block and a faucet. It answers JSON-RPC
// over HTTP. Its keys are public, so it must not be used for anything of value, and it
// listens on loopback only. The services must not import it: they reach any chain by its
// address, and so the service's program does not contain a node.
package devchain

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	"path/filepath"
	"sync"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core"
	"github.com/ethereum/go-ethereum/core/rawdb"
	"github.com/ethereum/go-ethereum/core/txpool"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/ethereum/go-ethereum/eth"
	"github.com/ethereum/go-ethereum/eth/catalyst"
	"github.com/ethereum/go-ethereum/eth/ethconfig"
	"github.com/ethereum/go-ethereum/eth/filters"
	"github.com/ethereum/go-ethereum/ethclient"
	"github.com/ethereum/go-ethereum/node"
	"github.com/ethereum/go-ethereum/p2p"
	"github.com/ethereum/go-ethereum/params"
	"github.com/ethereum/go-ethereum/rpc"
)

// Options holds the options of a chain. The zero value is a chain in memory.
type Options struct {
	// Dir is the folder of the chain; "" means that it is in memory. Every block is
	// written before it is answered, so an unclean exit loses at most the last blocks.
	Dir     string
	ChainID uint64         // 0 means [ChainID]
	Token   common.Address // of MiniUSDC; zero means [Token]
	// Interval is the time between blocks without transactions, which are made only until
	// the last transaction is final. 0 means 2 s. Negative: blocks are made by
	// [Chain.Commit] only, for tests.
	Interval time.Duration
	Log      *slog.Logger // nil means none
}

func (o *Options) defaults() {
	if o.ChainID == 0 {
		o.ChainID = ChainID
	}
	if o.Token == (common.Address{}) {
		o.Token = Token
	}
	if o.Interval == 0 {
		o.Interval = 2 * time.Second
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
}

// Chain is a running chain. Its methods are safe for concurrent use.
type Chain struct {
	opts   Options
	node   *node.Node
	eth    *eth.Ethereum
	rpc    *rpc.Server
	client *ethclient.Client

	mu     sync.Mutex // serializes blocks, forks and transactions of the faucet
	beacon *catalyst.SimulatedBeacon
	last   uint64 // number of the block with the last transaction

	stop context.CancelFunc
	done sync.WaitGroup
}

// Start starts a chain. Close stops it.
func Start(o Options) (_ *Chain, err error) {
	o.defaults()
	g := genesis(o)
	conf := node.Config{Name: "devchain", P2P: p2p.Config{NoDiscovery: true, NoDial: true, PrivateKey: faucetKey()}}
	if o.Dir != "" {
		// Another genesis block is another chain, in another folder.
		conf.DataDir = filepath.Join(o.Dir, hex.EncodeToString(g.ToBlock().Hash().Bytes()[:8]))
	}
	stack, err := node.New(&conf)
	if err != nil {
		return nil, fmt.Errorf("dev chain: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("dev chain: %w", err), stack.Close())
		}
	}()
	c := &Chain{opts: o, node: stack, rpc: rpc.NewServer()}
	if c.eth, err = eth.New(stack, small(o, g)); err != nil {
		return nil, err
	}
	apis := append(c.eth.APIs(), rpc.API{
		Namespace: "eth", Service: filters.NewFilterAPI(filters.NewFilterSystem(c.eth.APIBackend, filters.Config{})),
	}, rpc.API{Namespace: "anima", Service: &faucet{c}})
	for _, a := range apis {
		switch a.Namespace {
		case "eth", "net", "anima", "txpool": // not debug, admin and miner
			if err := c.rpc.RegisterName(a.Namespace, a.Service); err != nil {
				return nil, err
			}
		}
	}
	if err := stack.Start(); err != nil {
		return nil, err
	}
	if c.beacon, err = catalyst.NewSimulatedBeacon(0, common.Address{}, c.eth); err != nil {
		return nil, err
	}
	c.client = ethclient.NewClient(rpc.DialInProc(c.rpc))
	// The genesis block is of 1970. Authorizations compare their window with the time of
	// the last block, so there must be one of now.
	c.Commit()
	ctx, cancel := context.WithCancel(context.Background())
	c.stop = cancel
	c.done.Go(func() { c.finalize(ctx) })
	return c, nil
}

// small returns the configuration of a node with small caches that keeps the state of
// every block.
func small(o Options, g *core.Genesis) *ethconfig.Config {
	conf := ethconfig.Defaults
	conf.Genesis = g
	conf.NetworkId = o.ChainID
	conf.SyncMode = ethconfig.FullSync
	conf.NoPruning, conf.StateScheme = true, rawdb.HashScheme
	conf.DatabaseCache, conf.DatabaseHandles = 16, 64
	conf.TrieCleanCache, conf.TrieDirtyCache, conf.SnapshotCache = 8, 8, 0
	conf.LogNoHistory = true // logs are searched without an index
	conf.TxPool.NoLocals, conf.TxPool.Journal = true, ""
	return &conf
}

// Close stops the chain and closes its database.
func (c *Chain) Close() error {
	c.stop()
	c.done.Wait()
	c.client.Close()
	c.rpc.Stop()
	return errors.Join(c.beacon.Stop(), c.node.Close())
}

// Commit makes a block of the waiting transactions and returns its hash.
func (c *Chain) Commit() common.Hash {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.commit()
}

func (c *Chain) commit() common.Hash {
	hash := c.beacon.Commit()
	if b := c.eth.BlockChain().GetBlockByHash(hash); b != nil && len(b.Transactions()) > 0 {
		c.last = b.NumberU64()
		// The database writes its log late: a crash would take blocks that the ledger has.
		if err := c.eth.ChainDb().SyncKeyValue(); err != nil {
			c.opts.Log.Error("dev chain: a block is not synced", "block", c.last, "err", err)
		}
	}
	return hash
}

// Fork makes the block with the given hash the head of the chain. The transactions of the
// blocks after it wait to be included again.
func (c *Chain) Fork(parent common.Hash) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.beacon.Fork(parent)
}

// Drop removes the waiting transactions, such as those of blocks that Fork has removed.
func (c *Chain) Drop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.beacon.Rollback()
}

// Client returns a client of the chain in this process.
func (c *Chain) Client() *ethclient.Client { return c.client }

// Token returns the address of MiniUSDC.
func (c *Chain) Token() common.Address { return c.opts.Token }

// ID returns the chain id.
func (c *Chain) ID() *big.Int { return new(big.Int).SetUint64(c.opts.ChainID) }

// mine makes a block if transactions wait, or if the last block is older than the
// interval and fresh is set: calls compare windows with the time of the last block.
func (c *Chain) mine(fresh bool) {
	if c.opts.Interval < 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	head := c.eth.BlockChain().CurrentBlock()
	old := time.Now().Unix()-int64(head.Time) > max(1, int64(c.opts.Interval/time.Second)) //nolint:gosec // the time of our own block
	if old && fresh || c.waiting() {
		c.commit()
	}
}

func (c *Chain) waiting() bool {
	if err := c.eth.TxPool().Sync(); err != nil {
		return false // the node is stopping
	}
	pending, _ := c.eth.TxPool().Pending(txpool.PendingFilter{})
	return len(pending) > 0
}

// finalize makes empty blocks until the last transaction is final, one per interval, as
// on a network: 32 blocks on this one.
func (c *Chain) finalize(ctx context.Context) {
	if c.opts.Interval < 0 {
		return
	}
	tick := time.NewTicker(c.opts.Interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		c.mu.Lock()
		if final := c.eth.BlockChain().CurrentFinalBlock(); c.waiting() || final == nil && c.last > 0 || final != nil && final.Number.Uint64() < c.last {
			c.commit()
		}
		c.mu.Unlock()
	}
}

// send signs a transaction of the faucet, makes a block of it and returns its receipt.
func (c *Chain) send(ctx context.Context, to common.Address, value *big.Int, data []byte) (*types.Receipt, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	nonce, err := c.client.PendingNonceAt(ctx, Faucet)
	if err != nil {
		return nil, err
	}
	head := c.eth.BlockChain().CurrentBlock()
	fee := new(big.Int).Mul(head.BaseFee, big.NewInt(2))
	tx, err := types.SignNewTx(faucetKey(), types.LatestSignerForChainID(c.ID()), &types.DynamicFeeTx{
		ChainID: c.ID(), Nonce: nonce, To: &to, Value: value, Data: data, Gas: faucetGas,
		GasTipCap: big.NewInt(params.GWei), GasFeeCap: fee.Add(fee, big.NewInt(params.GWei)),
	})
	if err != nil {
		return nil, err
	}
	if err := c.client.SendTransaction(ctx, tx); err != nil {
		return nil, err
	}
	c.commit()
	return c.client.TransactionReceipt(ctx, tx.Hash())
}

// faucetGas is the gas limit of transactions of the faucet. The gas of a transfer depends
// on the forks; a transfer with authorization took 184,000 on this chain.
const faucetGas = 500_000

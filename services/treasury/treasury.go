// Package treasury implements the service treasury: it owns the ledger of all credits,
// and the wallets with the agents' keys. Other services use it over the bus; keys never
// leave it.
//
// It must not decide whether a payment is allowed, which policy does, nor the cost of a
// model call, which the router does.
package treasury

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"
	"github.com/anima-run/anima/pkg/config"
	"github.com/anima-run/anima/pkg/executor"
	"github.com/anima-run/anima/pkg/host"
	"github.com/anima-run/anima/pkg/outbox"
	"github.com/anima-run/anima/pkg/sqldb"

	"github.com/anima-run/anima/services/treasury/internal/chain"
	"github.com/anima-run/anima/services/treasury/internal/ledger"
	"github.com/anima-run/anima/services/treasury/internal/sqlstore"
	"github.com/anima-run/anima/services/treasury/internal/wallet"
)

// Config holds the settings of the service.
type Config struct {
	Faucet      bool          `env:"faucet" help:"accept deposits of the source faucet, which create credits; for development only"`
	Sweep       time.Duration `env:"sweep" help:"how often expired holds are released"`
	Passphrase  config.Secret `env:"keystore_passphrase" help:"passphrase of the wallets, the same on every replica; empty: a random one is created in the data folder, which then must not be lost"`
	TopupURL    string        `env:"topup_url" help:"address of the server that sells credits (GET /pay/{usd}/{address}), for agents that buy them with USDC; self: this treasury; empty: none are bought"`
	TopupPayees []string      `env:"topup_payees" help:"the only addresses that are paid for credits, such as those that the seller has published; empty: the one that the seller names. Not for self"`
	TopupEvery  time.Duration `env:"topup_every" help:"how often treasury looks for agents at a low tier whose wallets can buy credits, besides when a tier falls"`
	ConwayURL   string        `env:"conway_url" help:"address of the Conway API, on whose account agents rent sandboxes and register domains, such as https://api.conway.tech; empty: these tools are refused"`
	ConwayKey   config.Secret `env:"conway_key" help:"API key of the operator for the Conway API"`
	ScryptN     int           `env:"keystore_scrypt_n" help:"scrypt cost of new wallets, a power of two"`

	SignerURL      config.Secret `env:"signer_url" help:"HTTP address of a remote signer that has the keys of the agents; empty: treasury has them, in its database, encrypted"`
	SignerProtocol string        `env:"signer_protocol" help:"protocol of the remote signer: clef or web3signer"`

	RPCURL         config.Secret `env:"rpc_url" help:"HTTP address of the JSON-RPC of the chain; empty: treasury has no chain and no USDC. It is never logged, because it may contain a key"`
	RPCTimeout     time.Duration `env:"rpc_timeout" help:"timeout of one request to the chain"`
	Network        string        `env:"network" help:"network of the RPC: base, base-sepolia or dev"`
	ChainPoll      time.Duration `env:"chain_poll" help:"how often the chain is read for deposits"`
	ChainReconcile time.Duration `env:"chain_reconcile" help:"how often the ledger is compared with the chain, and how long a difference has to last before the agent is frozen"`
	ChainStart     int64         `env:"chain_start" help:"first block to read for deposits; -1: the last one at the first start"`
	ChainLazy      bool          `env:"chain_lazy" help:"read the chain only after it is used for the first time, as anima up does with its dev chain"`

	X402
	Limits LimitConfig
}

// Validate reports the first setting that is out of range.
func (c *Config) Validate() error {
	switch {
	case c.Sweep < 10*time.Millisecond:
		return fmt.Errorf("ANIMA_TREASURY_SWEEP is %s: at least 10ms is needed", c.Sweep)
	case c.RPCTimeout < 10*time.Millisecond || c.ChainPoll < 10*time.Millisecond || c.ChainReconcile < 10*time.Millisecond:
		return errors.New("ANIMA_TREASURY_RPC_TIMEOUT, ANIMA_TREASURY_CHAIN_POLL and ANIMA_TREASURY_CHAIN_RECONCILE need at least 10ms")
	case c.ScryptN < 2 || c.ScryptN > 1<<20 || c.ScryptN&(c.ScryptN-1) != 0:
		return fmt.Errorf("ANIMA_TREASURY_KEYSTORE_SCRYPT_N is %d: use a power of two from 2 to 1048576, for example %d", c.ScryptN, wallet.LightN)
	case !validTopupURL(c.TopupURL):
		return fmt.Errorf("ANIMA_TREASURY_TOPUP_URL is %.80q: use an address such as https://treasury.example.com, or self", c.TopupURL)
	case slices.ContainsFunc(c.TopupPayees, func(a string) bool { return !api.IsAddress(a) }):
		return fmt.Errorf("ANIMA_TREASURY_TOPUP_PAYEES is %.200q: use a list of 0x and 40 hex digits each", strings.Join(c.TopupPayees, ","))
	case c.TopupEvery < time.Second:
		return fmt.Errorf("ANIMA_TREASURY_TOPUP_EVERY is %s: at least 1s is needed", c.TopupEvery)
	case (c.ConwayURL == "") != (c.ConwayKey.Reveal() == ""):
		return errors.New("ANIMA_TREASURY_CONWAY_URL and ANIMA_TREASURY_CONWAY_KEY are needed together: set both or none")
	}
	if err := c.Limits.validate(); err != nil {
		return err
	}
	if err := c.checkChain(); err != nil {
		return err
	}
	return c.checkX402()
}

// checkChain reports an unknown network, and addresses of the chain and of the signer that
// cannot be used. It makes no request.
func (c *Config) checkChain() error {
	network, err := chain.Find(c.Network)
	if err != nil {
		return fmt.Errorf("ANIMA_TREASURY_NETWORK: %w", err)
	}
	if c.RPCURL.Reveal() != "" {
		client, err := chain.NewClient(chain.Options{URL: c.RPCURL, Network: network})
		if err != nil {
			return err
		}
		client.Close()
	}
	if c.SignerURL.Reveal() != "" {
		remote, err := wallet.NewRemote(nil, c.SignerURL, wallet.Protocol(c.SignerProtocol))
		if err != nil {
			return fmt.Errorf("ANIMA_TREASURY_SIGNER_URL and ANIMA_TREASURY_SIGNER_PROTOCOL: %w", err)
		}
		remote.Close()
	}
	return nil
}

// Service is the definition of treasury for package host.
var Service = host.Define("treasury", Config{
	Sweep: time.Second, TopupEvery: 5 * time.Minute, ScryptN: wallet.LightN, SignerProtocol: string(wallet.Clef),
	RPCTimeout: 5 * time.Second, Network: "base", ChainPoll: 4 * time.Second, ChainReconcile: time.Minute, ChainStart: -1,
	X402: X402{SettleFirst: int64(api.Dollar), Kept: 90 * 24 * time.Hour}, Limits: standardLimits(),
}, sqlstore.Migrations(), run)

func run(ctx context.Context, env *host.Env, cfg Config) error {
	db, err := env.DB(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = db.Close() }() // all transactions are committed by now
	tel, err := newInstruments(env.Meter)
	if err != nil {
		return err
	}
	store := sqlstore.New(db, announce)
	if db.Engine == sqldb.SQLite { // only one process can use a SQLite file; replicas need PostgreSQL
		store = sqlstore.NewAlone(db, announce)
		if err := store.EndClaims(ctx); err != nil {
			return err
		}
	}
	wallets, closeWallets, err := openWallets(ctx, env, cfg, store)
	if err != nil {
		return err
	}
	defer closeWallets()
	plain := wallets
	onchain, err := newOnchain(env, cfg, store, tel)
	if err != nil {
		return err
	}
	defer onchain.Close()
	if onchain != nil {
		wallets = guarded{wallets, onchain}
	}
	relay := outbox.NewRelay(db, env.Bus, env.Log)
	feed := newFeed(store, postedStream{env.Bus}, env.Log)
	low := make(chan struct{}, 1)
	kick := func() {
		select { // the top-ups look at the balances themselves
		case low <- struct{}{}:
		default:
		}
	}
	standard := cfg.Limits.limits()
	accounts := ledger.New(store, ledger.Options{Now: env.Now, Limits: &standard, Committed: func(ctx context.Context, c ledger.Changes, operations int) {
		tel.committed(ctx, c, operations)
		if len(c.Transactions) > 0 {
			feed.Kick()
		}
		if len(c.Tiers) > 0 {
			relay.Wake()
			kick()
		}
	}})
	h := &handlers{cfg: cfg, log: env.Log, now: env.Now, ledger: accounts, wallets: wallets, tel: tel, directory: store, chain: onchain}
	if onchain != nil {
		onchain.watcher.Ledger = usdcLedger{accounts, kick}
	}
	if h.outside, err = openOutside(h, store); err != nil {
		return err
	}
	defer h.outside.close()
	h.creditsRoutes(env.HTTP)
	closePayments, err := openX402(env, cfg.X402, h, store, wallets, accounts, openLink(ctx, env, onchain, wallets))
	if err != nil {
		return err
	}
	defer closePayments()
	if onchain != nil && h.payer != nil {
		onchain.watcher.Reorganized = h.payer.Recheck
	}
	h.topups = openTopups(h, store, low)
	turning := &rotations{handlers: h, store: store, plain: plain, alone: db.Engine == sqldb.SQLite, wake: relay.Wake, kick: kick}

	// The writer runs until the routes have ended, because requests in progress need it.
	writing, stop := context.WithCancel(context.WithoutCancel(ctx))
	var writer sync.WaitGroup
	writer.Go(func() { accounts.Run(writing) })
	defer writer.Wait()
	defer stop()
	routes := []bus.Route{
		bus.Reply(h.openAccount),
		bus.Reply(h.getBalance),
		bus.Reply(h.hold),
		bus.Reply(h.settle),
		bus.Reply(h.settleMany),
		bus.Reply(h.release),
		bus.Reply(h.listHolds),
		bus.Reply(h.getSpent),
		bus.Reply(h.deposit),
		bus.Reply(h.transfer),
		bus.Reply(h.listEntries),
		bus.Reply(h.verifyLedger, bus.Workers(1)),
		bus.Stream(h.verifyLedgerV2, bus.Workers(1)),
		bus.Reply(h.getBalanceAt, bus.Workers(8)),
		bus.Reply(h.exportLedger, bus.Workers(8)),
		bus.Reply(h.getLimits),
		bus.Reply(h.setLimits),
		bus.Reply(h.listApprovals),
		bus.Reply(h.decideApproval),
		bus.Reply(h.getEconomics, bus.Workers(4)),
		bus.Reply(h.signMessage),
		bus.Reply(h.topups.topUp),
		bus.Reply(h.topups.trigger),
		bus.Reply(h.signReturn),
		bus.Reply(h.returnCredits),
		bus.Reply(h.pay),
		bus.Reply(h.getPayment),
		bus.Reply(h.listPayments),
		bus.Reply(h.getChain),
		bus.Reply(h.getWallet),
		bus.Reply(h.fundUSDC),
		bus.Reply(h.reconcileLedger, bus.Workers(1)),
		bus.Reply(h.resolveFreeze),
		bus.Reply(h.backupWallet),
		bus.Reply(h.restoreWallet, bus.Workers(1)),
		bus.Reply(turning.rotate, bus.Workers(1)),
		executor.Routes[api.ListTreasuryTools, api.CallTreasuryTool](env.Bus, env.Now, h.tools(), h.absentTools()),
		bus.Go(h.sweep),
		bus.Go(h.reconcile),
		bus.Go(h.confirmSales),
		bus.Go((&pruner{store, cfg.Kept, env.Now, env.Log}).run),
		bus.Go(h.outside.reconcile),
		bus.Go(h.topups.watch),
		bus.Go(turning.follow),
		bus.Go(relay.Run),
		bus.Go(feed.Run),
	}
	if onchain != nil {
		routes = append(routes, bus.Go(onchain.run))
	}
	return env.Serve(ctx, routes...)
}

// openWallets returns the configured signer and a function that closes it.
func openWallets(ctx context.Context, env *host.Env, cfg Config, store wallet.Store) (wallet.Signer, func(), error) {
	if cfg.SignerURL.Reveal() != "" {
		remote, err := wallet.NewRemote(store, cfg.SignerURL, wallet.Protocol(cfg.SignerProtocol))
		if err != nil {
			return nil, nil, err
		}
		// A signer that is not reachable yet does not stop the ledger.
		if err := remote.Check(ctx); err != nil {
			env.Log.WarnContext(ctx, "the remote signer cannot sign now", "err", err)
		}
		return remote, remote.Close, nil
	}
	passphrase := cfg.Passphrase
	if passphrase.Reveal() == "" {
		dir, err := env.Folder()
		if err != nil {
			return nil, nil, err
		}
		if passphrase, err = wallet.Passphrase(dir); err != nil {
			return nil, nil, err
		}
	}
	wallets := wallet.NewKeeper(store, passphrase, cfg.ScryptN)
	return wallets, func() {}, wallets.Check(ctx)
}

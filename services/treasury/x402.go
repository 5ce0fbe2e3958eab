package treasury

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/ethereum/go-ethereum/common"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/config"
	"github.com/anima-run/anima/pkg/host"
	"github.com/anima-run/anima/pkg/safehttp"
	"github.com/anima-run/anima/pkg/telemetry"

	"github.com/anima-run/anima/services/treasury/internal/chain"
	"github.com/anima-run/anima/services/treasury/internal/facilitator"
	"github.com/anima-run/anima/services/treasury/internal/ledger"
	"github.com/anima-run/anima/services/treasury/internal/pay"
	"github.com/anima-run/anima/services/treasury/internal/paywall"
	"github.com/anima-run/anima/services/treasury/internal/sqlstore"
	"github.com/anima-run/anima/services/treasury/internal/wallet"
	"github.com/anima-run/anima/services/treasury/internal/x402"
)

// X402 holds the settings of payments over HTTP 402.
type X402 struct {
	Private     bool          `env:"x402_private" help:"let agents pay servers over http, on this machine and in private networks; for development only"`
	PayTo       string        `env:"x402_pay_to" help:"address that receives the USDC for credits; empty: the wallet that pays the fees of the facilitator"`
	SettleFirst int64         `env:"x402_settle_first" help:"price in micro-USD from which a payment for a route is settled before the route is served"`
	Facilitator string        `env:"x402_facilitator" help:"address of the facilitator that settles payments for credits; empty: the built-in one"`
	Token       config.Secret `env:"x402_facilitator_token" help:"bearer token for the facilitator"`
	Public      bool          `env:"x402_facilitator_public" help:"let anybody use the built-in facilitator, which pays the fees; otherwise only the operator may"`

	Kept time.Duration `env:"x402_kept" help:"how long payments are kept after they have ended, with the answers that were bought and sold; at least 24h"`
}

func (c *X402) checkX402() error {
	switch u, err := url.Parse(c.Facilitator); {
	case c.Kept < leastKept:
		return fmt.Errorf("ANIMA_TREASURY_X402_KEPT is %s: use at least %s", c.Kept, leastKept)
	case c.SettleFirst < 0:
		return fmt.Errorf("ANIMA_TREASURY_X402_SETTLE_FIRST is %d: use micro-USD, 0 or more", c.SettleFirst)
	case c.PayTo != "" && !api.IsAddress(c.PayTo):
		return fmt.Errorf("ANIMA_TREASURY_X402_PAY_TO is %.50q: use 0x and 40 hex digits", c.PayTo)
	case c.Facilitator != "" && (err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http"):
		return fmt.Errorf("ANIMA_TREASURY_X402_FACILITATOR is not an address such as https://x402.example.com")
	}
	return nil
}

// chainLink is the access to the configured network.
type chainLink interface {
	facilitator.Chain
	pay.Chain
}

// openLink returns what pays on the configured network; nil without one. It makes no
// request: a dev chain starts with the first.
func openLink(ctx context.Context, env *host.Env, c *onchain, wallets wallet.Signer) chainLink {
	if c == nil {
		return nil
	}
	s, err := chain.NewSubmitter(ctx, c.client, wallets)
	if err != nil { // a remote signer that is not reachable does not stop the ledger
		env.Log.WarnContext(ctx, "nothing is paid in USDC until the next start, because the wallet for fees cannot be opened", "err", err)
		return nil
	}
	return s
}

// openX402 adds the routes of payments over HTTP 402 and sets the payer of h. Without a
// chain, which is nil then, there are neither. The function that it returns closes the
// clients.
func openX402(env *host.Env, cfg X402, h *handlers, store *sqlstore.Store, wallets wallet.Signer, accounts *ledger.Ledger, link chainLink) (func(), error) {
	h.payments = store
	tel, err := newPaymentInstruments(env.Meter)
	if err != nil {
		return nil, err
	}
	if link == nil {
		// A route that is missing is a 404, which existing clients repeat.
		env.HTTP.Public("GET /pay/{usd}/{address}", func(w http.ResponseWriter, _ *http.Request) { host.WriteError(w, 0, noChain()) })
		return func() {}, nil
	}
	h.link = link
	own := http.NewServeMux()
	options := pay.Options{
		Store: store, Money: usdc{accounts, h.chain}, Signer: walletSigner{wallets}, Chain: link, Networks: x402.Networks{link.Network()},
		Outbound: safehttp.Options{AllowPrivate: cfg.Private}, Log: env.Log, Now: env.Now, Changed: tel.changed,
	}
	if h.cfg.TopupURL == topupSelf {
		options.Own = inProcess{own}
	}
	h.payer = pay.New(options)
	settler := facilitator.New(store, env.Log, env.Now, link)
	facilitatorRoutes(env.HTTP, settler, cfg.Public)
	closeAll := h.payer.Close
	o := paywall.Options{
		Facilitator: settler, Store: store, Log: env.Log, Now: env.Now, SettleFirst: api.Micros(cfg.SettleFirst),
		Handled: func(ctx context.Context, outcome string) { tel.sold(ctx, outcome) },
	}
	if cfg.Facilitator != "" {
		base := http.DefaultTransport.(*http.Transport).Clone() //nolint:forcetypeassert // its documented type
		client := &http.Client{Transport: telemetry.NewTransport(base), Timeout: 2 * time.Minute}
		o.Facilitator = &facilitator.Remote{URL: cfg.Facilitator, Client: client, Token: cfg.Token.Reveal()}
		o.Transferred = link.Transferred
		closeAll = func() { h.payer.Close(); client.CloseIdleConnections() }
	}
	payTo := link.Signer()
	if cfg.PayTo != "" {
		payTo = common.HexToAddress(cfg.PayTo)
	}
	h.shop = &shop{handlers: h, network: link.Network(), payTo: payTo}
	sell := h.shop.handler(o)
	env.HTTP.Public("GET /pay/{usd}/{address}", sell)
	own.HandleFunc("GET /pay/{usd}/{address}", sell)
	return closeAll, nil
}

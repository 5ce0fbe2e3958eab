//go:build interop

package treasury_test

import (
	"bufio"
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	ethcrypto "github.com/ethereum/go-ethereum/crypto"
	"github.com/ethereum/go-ethereum/rpc"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/host"
	"github.com/anima-run/anima/pkg/safehttp"
	"github.com/anima-run/anima/pkg/sqldb"
	"github.com/anima-run/anima/pkg/sqldb/sqldbtest"
	"github.com/anima-run/anima/services/treasury/devchain"
	"github.com/anima-run/anima/services/treasury/internal/chain"
	"github.com/anima-run/anima/services/treasury/internal/chain/chaintest"
	"github.com/anima-run/anima/services/treasury/internal/facilitator"
	"github.com/anima-run/anima/services/treasury/internal/pay"
	"github.com/anima-run/anima/services/treasury/internal/paywall"
	"github.com/anima-run/anima/services/treasury/internal/sqlstore"
	"github.com/anima-run/anima/services/treasury/internal/wallet"
	"github.com/anima-run/anima/services/treasury/internal/x402"
)

// TestX402Interop pays between the official packages for Node and the parts of treasury,
// in both versions, on a node with the chain id and the token's address of Base Sepolia.
// It needs node and npm, and installs the packages from the package registry.
func TestX402Interop(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"package.json", "package-lock.json", "client.mjs", "server.mjs", "facilitator.mjs"} {
		data, err := os.ReadFile(filepath.Join("testdata", "interop", name))
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), data, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	npm := exec.CommandContext(t.Context(), "npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts")
	npm.Dir = dir
	if out, err := npm.CombinedOutput(); err != nil {
		t.Fatalf("npm ci: %v\n%s", err, out)
	}
	sqldbtest.Each(t, sqlstore.Migrations(), func(t *testing.T, db *sqldb.DB) {
		w := newInterop(t, db, dir)
		for _, version := range []string{"v1", "v2"} {
			t.Run("client "+version, func(t *testing.T) { w.client(t, version) })
			t.Run("simultaneous "+version, func(t *testing.T) { w.simultaneous(t, version) })
			t.Run("server "+version+", our facilitator", func(t *testing.T) { w.server(t, version, w.ours.URL+"/x402") })
			t.Run("server "+version+", their facilitator", func(t *testing.T) { w.server(t, version, w.theirs) })
			t.Run("lost answer "+version, func(t *testing.T) { w.lostAnswer(t, version) })
		}
		t.Run("our paywall, their facilitator", w.remote)
	})
}

// interop is a chain with a buyer, and our server on it.
type interop struct {
	dir    string
	rpc    string
	env    []string
	chain  *chaintest.Proxy
	submit *chain.Submitter
	store  *sqlstore.Store
	ours   *httptest.Server
	theirs string // address of the official facilitator
	payer  *pay.Payer
	buyer  common.Address
	payee  common.Address
	runs   atomic.Int64
	n      int
}

func newInterop(t *testing.T, db *sqldb.DB, dir string) *interop {
	t.Helper()
	n := x402.BaseSepolia
	w := &interop{dir: dir, store: sqlstore.New(db, nil), payee: common.HexToAddress("0x90F79bf6EB2c4f870365E785982E1f101E93b906")}
	w.chain = chaintest.Start(t, devchain.Options{ChainID: uint64(n.ChainID), Token: n.Asset})
	w.rpc = w.chain.URL.Reveal()
	client, err := chain.NewClient(chain.Options{URL: w.chain.URL, Network: n, Now: time.Now, MaxAge: time.Nanosecond})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	keeper := wallet.NewKeeper(w.store, "secret", 2)
	if w.submit, err = chain.NewSubmitter(t.Context(), client, keeper); err != nil {
		t.Fatal(err)
	}
	buyer, err := keeper.Create(t.Context(), "buyer")
	if err != nil {
		t.Fatal(err)
	}
	w.buyer = common.HexToAddress(buyer)
	key, theirKey := newKey(t), newKey(t)
	for i, who := range []common.Address{w.buyer, key.address, theirKey.address, w.submit.Signer()} {
		w.chain.Give(t, who, 10_000_000, fmt.Sprint(i))
		w.gas(t, who)
	}
	w.env = append(os.Environ(), "CLIENT_KEY="+key.hex, "FACILITATOR_KEY="+theirKey.hex, "RPC_URL="+w.rpc, "PAY_TO="+w.payee.Hex())

	log := slog.New(slog.DiscardHandler)
	settler := facilitator.New(w.store, log, time.Now, w.submit)
	mux := http.NewServeMux()
	mux.HandleFunc("POST /x402/verify", settler.ServeVerify)
	mux.HandleFunc("POST /x402/settle", settler.ServeSettle)
	mux.HandleFunc("GET /x402/supported", settler.ServeSupported)
	w.sell(mux, "/paid", paywall.Options{Facilitator: settler, Store: w.store, Log: log, Now: time.Now, SettleFirst: api.Dollar})
	w.theirs = w.run(t, nil, "facilitator.mjs")
	w.sell(mux, "/remote", paywall.Options{
		Facilitator: &facilitator.Remote{URL: w.theirs, Client: &http.Client{Timeout: time.Minute}}, Store: w.store, Log: log, Now: time.Now,
	})
	w.ours = httptest.NewServer(mux)
	t.Cleanup(w.ours.Close)
	w.payer = pay.New(pay.Options{
		Store: w.store, Money: noMoney{}, Signer: interopSigner{keeper}, Chain: w.submit, Networks: x402.Networks{n},
		Outbound: safehttp.Options{AllowPrivate: true}, Log: log, Now: time.Now,
	})
	t.Cleanup(w.payer.Close)
	return w
}

func (w *interop) sell(mux *http.ServeMux, path string, o paywall.Options) {
	price := func(*http.Request) (x402.Price, error) {
		return x402.Price{
			Terms:    x402.Terms{Network: x402.BaseSepolia, PayTo: w.payee, Amount: api.Cent, Timeout: 60},
			Resource: x402.Resource{Description: "one cent", MimeType: "application/json"},
		}, nil
	}
	mux.HandleFunc("GET "+path, paywall.New(o).Protect(price, host.WriteError, http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
		rw.Header().Set("Content-Type", "application/json")
		_, _ = fmt.Fprintf(rw, `{"secret":%d}`, w.runs.Add(1))
	})))
}

type testKey struct {
	hex     string
	address common.Address
}

func newKey(t *testing.T) testKey {
	t.Helper()
	key, err := ethcrypto.GenerateKey()
	if err != nil {
		t.Fatal(err)
	}
	return testKey{"0x" + hex.EncodeToString(ethcrypto.FromECDSA(key)), ethcrypto.PubkeyToAddress(key.PublicKey)}
}

func (w *interop) gas(t *testing.T, to common.Address) {
	t.Helper()
	c, err := rpc.DialContext(t.Context(), w.rpc)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	var tx *common.Hash
	if err := c.CallContext(t.Context(), &tx, "anima_gas", to); err != nil {
		t.Fatal(err)
	}
}

// earned returns what the seller has.
func (w *interop) earned(t *testing.T) api.Micros {
	t.Helper()
	b, err := w.submit.Balance(t.Context(), w.payee)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// run starts a program for Node and returns its address.
func (w *interop) run(t *testing.T, env []string, args ...string) string {
	t.Helper()
	node := exec.CommandContext(context.WithoutCancel(t.Context()), "node", args...)
	node.Dir, node.Env, node.Stderr = w.dir, append(slices.Clone(w.env), env...), os.Stderr
	out, err := node.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := node.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = node.Process.Signal(syscall.SIGTERM)
		_ = node.Wait()
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("node %v: %v", args, err)
	}
	return "http://127.0.0.1:" + strings.TrimSpace(line)
}

type clientResult struct {
	Status   int
	Body     string
	Header   string
	Receipt  x402.Receipt
	Statuses []int
	Replayed int
}

func (w *interop) fetch(t *testing.T, args ...string) (r clientResult) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	node := exec.CommandContext(ctx, "node", append([]string{"client.mjs"}, args...)...)
	node.Dir, node.Env, node.Stderr = w.dir, w.env, os.Stderr
	out, err := node.Output()
	if err != nil {
		t.Fatalf("node client.mjs %v: %v", args, err)
	}
	if err := json.Unmarshal(out, &r); err != nil {
		t.Fatalf("the client printed %q: %v", out, err)
	}
	return r
}

// client has an official client pay our paywall.
func (w *interop) client(t *testing.T, version string) {
	before := w.earned(t)
	r := w.fetch(t, version, w.ours.URL+"/paid")
	header := map[string]string{"v1": "x-payment", "v2": "payment-signature"}[version]
	if r.Status != http.StatusOK || !strings.HasPrefix(r.Body, `{"secret":`) || !r.Receipt.Success || r.Header != header || len(r.Receipt.Transaction) != 66 {
		t.Errorf("got %+v", r)
	}
	if got := w.earned(t) - before; got != api.Cent {
		t.Errorf("the seller has earned %s, want $0.01", got)
	}
}

// simultaneous uses one payment of an official client 20 times at once.
func (w *interop) simultaneous(t *testing.T, version string) {
	before, runs := w.earned(t), w.runs.Load()
	r := w.fetch(t, version, w.ours.URL+"/paid", "20")
	grants := -r.Replayed
	for _, s := range r.Statuses {
		switch s {
		case http.StatusOK:
			grants++
		case http.StatusConflict:
		default:
			t.Errorf("got status %d", s)
		}
	}
	if got := w.earned(t) - before; grants != 1 || w.runs.Load()-runs != 1 || got != api.Cent {
		t.Errorf("20 uses of one payment: %d grants, %d runs, %s earned, want 1, 1, $0.01", grants, w.runs.Load()-runs, got)
	}
	t.Logf("%d grants, %d runs, %d answers replayed of %d", grants, w.runs.Load()-runs, r.Replayed, len(r.Statuses))
}

// buy has our client buy at an address.
func (w *interop) buy(t *testing.T, url string) (pay.Payment, error) {
	t.Helper()
	w.n++
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	r := pay.Request{ID: fmt.Sprintf("p%d", w.n), Agent: "buyer", URL: url}
	p, err := w.payer.Pay(ctx, r)
	if api.CodeOf(err) == api.Unavailable {
		p, err = w.payer.Pay(ctx, r) // its caller repeats the request
	}
	return p, err
}

// server has our client pay an official server with a facilitator.
func (w *interop) server(t *testing.T, version, facilitator string) {
	url := w.run(t, []string{"FACILITATOR_URL=" + facilitator}, "server.mjs", version)
	before := w.earned(t)
	p, err := w.buy(t, url+"/paid")
	if err != nil || p.State != api.PaymentSettled || string(p.Answer.Body) != `{"secret":1}` || len(p.Transaction) != 66 {
		t.Errorf("got %+v, %v", p, err)
	}
	if got := w.earned(t) - before; got != api.Cent {
		t.Errorf("the seller has earned %s, want $0.01", got)
	}
}

// lostAnswer loses the first paid answer of an official server.
func (w *interop) lostAnswer(t *testing.T, version string) {
	url := w.run(t, []string{"FACILITATOR_URL=" + w.ours.URL + "/x402"}, "server.mjs", version)
	var lost atomic.Int64
	proxy := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		req, err := http.NewRequestWithContext(r.Context(), r.Method, url+r.URL.Path, nil)
		if err != nil {
			panic(err)
		}
		req.Header = r.Header.Clone()
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			panic(http.ErrAbortHandler)
		}
		defer func() { _ = resp.Body.Close() }()
		_, paid, _ := x402.ReadPayment(r.Header)
		if paid && lost.Add(1) == 1 {
			panic(http.ErrAbortHandler) // it has been settled
		}
		for name, values := range resp.Header {
			rw.Header()[name] = values
		}
		rw.WriteHeader(resp.StatusCode)
		_, _ = bufio.NewReader(resp.Body).WriteTo(rw)
	}))
	defer proxy.Close()
	before := w.earned(t)
	p, err := w.buy(t, proxy.URL+"/paid")
	if got := w.earned(t) - before; got != api.Cent {
		t.Errorf("a lost answer: the seller has earned %s, want $0.01", got)
	}
	if p.State != api.PaymentSettled {
		t.Errorf("got %+v, %v, want it settled", p, err)
	}
	t.Logf("%s after %d paid requests: %v", p.State, lost.Load(), err)
}

// remote has our client pay our paywall that uses the official facilitator.
func (w *interop) remote(t *testing.T) {
	before := w.earned(t)
	p, err := w.buy(t, w.ours.URL+"/remote")
	if err != nil || p.State != api.PaymentSettled {
		t.Errorf("got %+v, %v", p, err)
	}
	if got := w.earned(t) - before; got != api.Cent {
		t.Errorf("the seller has earned %s, want $0.01", got)
	}
}

// noMoney is a ledger that allows every payment.
type noMoney struct{}

func (noMoney) Hold(context.Context, *pay.Payment, string, int64) error { return nil }
func (noMoney) Settle(context.Context, *pay.Payment) error              { return nil }
func (noMoney) Release(context.Context, *pay.Payment, string) error     { return nil }
func (noMoney) Reopen(context.Context, *pay.Payment, int64) error       { return nil }

type interopSigner struct{ keeper *wallet.Keeper }

func (s interopSigner) Address(ctx context.Context, agent string) (common.Address, error) {
	a, err := s.keeper.Address(ctx, agent)
	return common.HexToAddress(a), err
}

func (s interopSigner) Sign(ctx context.Context, agent string, a x402.Authorization, t x402.Terms, now time.Time) (x402.Signature, error) {
	signed, err := s.keeper.SignTypedData(ctx, agent, a.TypedData(t.Network), wallet.Rule{
		Types: []string{wallet.TypeTransfer}, Name: t.Network.Token, Version: t.Network.Version, ChainID: uint64(t.Network.ChainID),
		Contract: t.Network.Asset, Payee: t.PayTo, MaxValue: t.Amount, MaxWindow: x402.MaxWindow, Now: now,
	})
	if err != nil {
		return x402.Signature{}, err
	}
	return x402.ParseSignature(signed.Signature)
}

package treasury_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/accounts"
	"github.com/ethereum/go-ethereum/common/hexutil"
	ethcrypto "github.com/ethereum/go-ethereum/crypto"
	"github.com/google/go-cmp/cmp"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/apptest"
	"github.com/anima-run/anima/pkg/bus"

	"github.com/anima-run/anima/services/treasury"
)

// development holds the settings of the development profile with deposits. The scrypt
// cost is the smallest valid one: the tests need the format, not the strength.
var development = map[string]string{
	"ANIMA_TREASURY_FAUCET":              "true",
	"ANIMA_TREASURY_SWEEP":               "10ms",
	"ANIMA_TREASURY_KEYSTORE_SCRYPT_N":   "2",
	"ANIMA_TREASURY_KEYSTORE_PASSPHRASE": "",

	// The agents of the tests have less than the standard reserve.
	"ANIMA_TREASURY_MINIMUM_RESERVE_CENTS": "0",
}

func start(t *testing.T, o apptest.Options) *apptest.World {
	t.Helper()
	if o.Env == nil {
		o.Env = development
	}
	return apptest.Start(t, o, treasury.Service)
}

func ask[Resp any](t *testing.T, b *bus.Bus, req api.Message) Resp {
	t.Helper()
	resp, err := bus.Call[Resp](t.Context(), b, req)
	if err != nil {
		t.Fatalf("%T: %v", req, err)
	}
	return resp
}

func refused(t *testing.T, b *bus.Bus, req api.Message, code api.Code, reason string) {
	t.Helper()
	_, err := bus.Call[json.RawMessage](t.Context(), b, req)
	if api.CodeOf(err) != code || api.ReasonOf(err) != reason {
		t.Errorf("%T: got error %v, want code %q and reason %q", req, err, code, reason)
	}
}

// fund opens an account for lucky and deposits an amount.
func fund(t *testing.T, b *bus.Bus, amount api.Micros) api.Account {
	t.Helper()
	a := ask[api.Account](t, b, api.OpenAccount{Agent: "lucky"})
	ask[api.Posted](t, b, api.Deposit{ID: "fund-lucky", Agent: "lucky", Amount: amount, Source: "faucet"})
	return a
}

// published returns a function that waits for the next published transaction that fits.
func published(t *testing.T, b *bus.Bus) func(fits func(api.Posted) bool) api.Posted {
	t.Helper()
	batches := apptest.Watch[api.PostedBatch](t, b)
	var entries []api.Posted
	return func(fits func(api.Posted) bool) api.Posted {
		t.Helper()
		for {
			for len(entries) == 0 {
				entries = apptest.Next(t, batches, nil).Entries
			}
			e := entries[0]
			if entries = entries[1:]; fits == nil || fits(e) {
				return e
			}
		}
	}
}

func later() int64 { return time.Now().Add(time.Minute).UnixMicro() }

func TestPaysForAThought(t *testing.T) {
	t.Parallel()
	w := start(t, apptest.Options{})
	posted, tiers := published(t, w.Bus), apptest.Watch[api.TierChanged](t, w.Bus)
	a := fund(t, w.Bus, 600*api.Cent)

	const traceID = "0af7651916cd43dd8448eb211c80319c"
	ctx := bus.WithTraceParent(t.Context(), "00-"+traceID+"-b7ad6b7169203331-01")
	expires := later()
	hold, err := bus.Call[api.HoldState](ctx, w.Bus, api.Hold{
		ID: "r1.1", Agent: "lucky", Amount: 200 * api.Cent, Category: "inference", Turn: "r1.1", ExpiresAt: expires, Payee: "provider:first",
	})
	want := api.HoldState{
		ID: "r1.1", Agent: "lucky", Status: api.HoldActive, Amount: 200 * api.Cent, Available: 400 * api.Cent, Tier: api.TierHigh, ExpiresAt: expires,
		Category: "inference", Turn: "r1.1", Payee: "provider:first",
	}
	if diff := cmp.Diff(want, hold); err != nil || diff != "" {
		t.Fatalf("hold: %v, (-want +got):\n%s", err, diff)
	}
	if got := ask[api.Holds](t, w.Bus, api.ListHolds{Agent: "lucky"}); len(got.Holds) != 1 || got.Holds[0] != hold {
		t.Errorf("holds: got %+v, want %+v", got, hold)
	}
	settled := ask[api.HoldState](t, w.Bus, api.Settle{ID: "r1.1", Amount: 150 * api.Cent, Payee: "provider:openai", Memo: "gpt"})
	want.Status, want.Settled, want.Available, want.Tier, want.Payee = api.HoldSettled, 150*api.Cent, 450*api.Cent, api.TierNormal, "provider:openai"
	if diff := cmp.Diff(want, settled); diff != "" {
		t.Errorf("settle (-want +got):\n%s", diff)
	}
	balance := ask[api.Balance](t, w.Bus, api.GetBalance{Agent: "lucky"})
	if balance.Address != a.Address || balance.Available != 450*api.Cent || balance.Held != 0 || balance.Tier != api.TierNormal || balance.Entries != 3 {
		t.Errorf("balance: got %+v, want 450 cents at %s after 3 entries", balance, a.Address)
	}

	// All transactions are announced in order, with the content that is stored.
	entries := ask[api.Entries](t, w.Bus, api.ListEntries{Agent: "lucky"})
	if len(entries.Entries) != 3 {
		t.Fatalf("entries: got %+v, want three", entries)
	}
	for _, e := range entries.Entries {
		if diff := cmp.Diff(e, posted(nil)); diff != "" {
			t.Errorf("announced (-kept +announced):\n%s", diff)
		}
	}
	if e := entries.Entries[1]; e.Trace != traceID || e.Turn != "r1.1" || e.ID != "r1.1/hold" || e.Previous != entries.Entries[0].Hash {
		t.Errorf("entry of the hold: got %+v, want trace %s, its turn and the hash before it", e, traceID)
	}
	for _, to := range []api.Tier{api.TierHigh, api.TierNormal} {
		if tc := apptest.Next(t, tiers, nil); tc.Agent != "lucky" || tc.To != to {
			t.Errorf("tier change: got %+v, want one to %s", tc, to)
		}
	}
	report := ask[api.LedgerReport](t, w.Bus, api.VerifyLedger{})
	if !report.OK || report.Transactions != 3 || report.Head != entries.Entries[2].Hash {
		t.Errorf("verify: got %+v, want three sound transactions up to %s", report, entries.Entries[2].Hash)
	}
}

func TestRefuses(t *testing.T) {
	t.Parallel()
	b := start(t, apptest.Options{}).Bus
	fund(t, b, 100)
	ask[api.Account](t, b, api.OpenAccount{Agent: "bob"})
	refused(t, b, api.OpenAccount{Agent: "no good"}, api.Invalid, "")
	refused(t, b, api.GetBalance{Agent: "nobody"}, api.NotFound, "")
	refused(t, b, api.Hold{ID: "h", Agent: "lucky", Amount: 101, ExpiresAt: later()}, api.Denied, api.ReasonInsufficient)
	refused(t, b, api.Transfer{ID: "t", From: "lucky", To: "bob", Amount: 101}, api.Denied, api.ReasonInsufficient)
	refused(t, b, api.Settle{ID: "h", Amount: 1, Payee: "provider:x"}, api.NotFound, "")
	refused(t, b, api.Release{ID: "h"}, api.NotFound, "")
	refused(t, b, api.Deposit{ID: "d", Agent: "lucky", Amount: 1, Source: "bank"}, api.Denied, "")
	refused(t, b, api.SignMessage{Agent: "nobody", To: "0x", Content: "x"}, api.NotFound, "")
	refused(t, b, api.SignMessage{Agent: "", To: "0x", Content: "x"}, api.NotFound, "")
	refused(t, b, api.SignMessage{Agent: "lucky", To: "0x", Content: "x"}, api.Invalid, "")
}

func TestSettlesMany(t *testing.T) {
	t.Parallel()
	b := start(t, apptest.Options{}).Bus
	fund(t, b, 100)
	for _, id := range []string{"h1", "h2"} {
		ask[api.HoldState](t, b, api.Hold{ID: id, Agent: "lucky", Amount: 40, ExpiresAt: later()})
	}
	m := api.SettleMany{Settlements: []api.Settlement{
		{ID: "h1", Amount: 30, Payee: "provider:x"},
		{ID: "h3", Amount: 1, Payee: "provider:x"},
		{ID: "h2", Amount: 0, Payee: "provider:x"},
	}}
	for range 2 {
		got := ask[api.Settled](t, b, m)
		if len(got.Results) != 3 || got.Results[0].Hold == nil || got.Results[0].Hold.Settled != 30 || got.Results[2].Hold == nil {
			t.Fatalf("settle many: got %+v, want the first and the third settled", got)
		}
		if e := got.Results[1].Error; e == nil || e.Code != api.NotFound || got.Results[1].Hold != nil {
			t.Errorf("settle a hold that is not there: got %+v, want not_found", got.Results[1])
		}
		want := []api.AgentFunds{{Agent: "lucky", Funds: api.Funds{Available: 70, Tier: api.TierOf(70)}}}
		if diff := cmp.Diff(want, got.Funds); diff != "" {
			t.Errorf("funds (-want +got):\n%s", diff)
		}
	}
	refused(t, b, api.SettleMany{}, api.Invalid, "")
	refused(t, b, api.SettleMany{Settlements: make([]api.Settlement, api.MaxSettlements+1)}, api.Invalid, "")
}

func TestFaucetIsOffByDefault(t *testing.T) {
	t.Parallel()
	b := start(t, apptest.Options{Env: map[string]string{"ANIMA_TREASURY_KEYSTORE_SCRYPT_N": "2"}}).Bus
	ask[api.Account](t, b, api.OpenAccount{Agent: "lucky"})
	refused(t, b, api.Deposit{ID: "d", Agent: "lucky", Amount: 1, Source: "faucet"}, api.Denied, "")
}

// TestEconomicsOfManyAgents checks that the payments between the members of a large group
// cancel out.
func TestEconomicsOfManyAgents(t *testing.T) {
	t.Parallel()
	b := apptest.Start(t, apptest.Options{Env: development}, treasury.Service).Bus
	var agents []string
	for i := range 120 {
		agents = append(agents, fmt.Sprintf("agent-%03d", i))
		ask[api.Account](t, b, api.OpenAccount{Agent: agents[i]})
	}
	first, last := agents[0], agents[len(agents)-1]
	ask[api.Posted](t, b, api.Deposit{ID: "d", Agent: first, Amount: api.Dollar, Source: "faucet"})
	ask[api.Posted](t, b, api.Transfer{ID: "t", From: first, To: last, Amount: 10 * api.Cent})
	got := ask[api.Economics](t, b, api.GetEconomics{Agents: agents})
	if len(got.Agents) != len(agents) || got.Balance != api.Dollar || got.Deposits != api.Dollar || got.TransfersIn != 0 || got.TransfersOut != 0 {
		t.Errorf("economics: got %+v, want a dollar of %d agents and no transfers", got, len(agents))
	}
}

func TestTransfers(t *testing.T) {
	t.Parallel()
	b := start(t, apptest.Options{}).Bus
	fund(t, b, 100)
	ask[api.Account](t, b, api.OpenAccount{Agent: "bob"})
	first := ask[api.Posted](t, b, api.Transfer{ID: "t1", From: "lucky", To: "bob", Amount: 30, Memo: "thanks"})
	again := ask[api.Posted](t, b, api.Transfer{ID: "t1", From: "lucky", To: "bob", Amount: 30, Memo: "thanks"})
	if diff := cmp.Diff(first.Hash, again.Hash); diff != "" {
		t.Errorf("transfer again (-first +again):\n%s", diff)
	}
	for agent, want := range map[string]api.Micros{"lucky": 70, "bob": 30} {
		if got := ask[api.Balance](t, b, api.GetBalance{Agent: agent}); got.Available != want {
			t.Errorf("balance of %s: got %d, want %d", agent, got.Available, want)
		}
	}
	if got := ask[api.Entries](t, b, api.ListEntries{Agent: "bob"}); len(got.Entries) != 1 || got.Entries[0].ID != "t1" {
		t.Errorf("bob's entries: got %+v, want t1", got)
	}
}

func TestHoldExpires(t *testing.T) {
	t.Parallel()
	w := start(t, apptest.Options{})
	posted := published(t, w.Bus)
	fund(t, w.Bus, 100)
	ask[api.HoldState](t, w.Bus, api.Hold{ID: "h1", Agent: "lucky", Amount: 40, ExpiresAt: time.Now().Add(300 * time.Millisecond).UnixMicro()})
	expired := posted(func(p api.Posted) bool { return p.Kind == "expire" })
	if expired.ID != "h1/release" {
		t.Errorf("expiry: got %+v, want h1/release", expired)
	}
	if got := ask[api.Balance](t, w.Bus, api.GetBalance{Agent: "lucky"}); got.Available != 100 || got.Held != 0 {
		t.Errorf("balance: got %+v, want all 100 back", got)
	}
	refused(t, w.Bus, api.Settle{ID: "h1", Amount: 1, Payee: "provider:x"}, api.Conflict, "")
}

func TestSigns(t *testing.T) {
	t.Parallel()
	b := start(t, apptest.Options{}).Bus
	a := ask[api.Account](t, b, api.OpenAccount{Agent: "lucky"})
	const to, at = "0x70997970c51812dc3a010c7d01b50e0d17dc79c8", "2026-11-21T08:00:00.000Z"
	got := ask[api.Signature](t, b, api.SignMessage{Agent: "lucky", To: to, Content: "hello", SignedAt: at})
	sig := hexutil.MustDecode(got.Signature)
	sig[64] -= 27
	text := "Conway:send:" + to + ":" + ethcrypto.Keccak256Hash([]byte("hello")).Hex() + ":" + at
	pub, err := ethcrypto.SigToPub(accounts.TextHash([]byte(text)), sig)
	if err != nil {
		t.Fatal(err)
	}
	if address := ethcrypto.PubkeyToAddress(*pub).Hex(); address != a.Address || got.From != a.Address {
		t.Errorf("signer: got %s from %s, want %s", address, got.From, a.Address)
	}
}

func TestKeepsEverythingOverRestart(t *testing.T) {
	t.Parallel()
	server := apptest.Server(t)
	first := start(t, apptest.Options{Server: server})
	a := fund(t, first.Bus, 100)
	ask[api.HoldState](t, first.Bus, api.Hold{ID: "h1", Agent: "lucky", Amount: 40, ExpiresAt: later()})
	head := ask[api.LedgerReport](t, first.Bus, api.VerifyLedger{}).Head
	first.Stop()

	b := start(t, apptest.Options{Data: first.Data, Server: server}).Bus
	if again := ask[api.Account](t, b, api.OpenAccount{Agent: "lucky"}); again != a {
		t.Errorf("account: got %+v, want %+v", again, a)
	}
	if got := ask[api.Balance](t, b, api.GetBalance{Agent: "lucky"}); got.Available != 60 || got.Held != 40 {
		t.Errorf("balance: got %+v, want 60 available and 40 held", got)
	}
	if r := ask[api.LedgerReport](t, b, api.VerifyLedger{}); !r.OK || r.Head != head {
		t.Errorf("verify: got %+v, want it sound and at %s", r, head)
	}
	got := ask[api.Signature](t, b, api.SignMessage{Agent: "lucky", To: a.Address, Content: "hello", SignedAt: "2026-11-21T08:00:00.000Z"})
	if got.From != a.Address {
		t.Errorf("signer: got %s, want %s", got.From, a.Address)
	}
}

// TestReplicas checks that two replicas on one database never spend more than is
// available, and create one wallet.
func TestReplicas(t *testing.T) {
	t.Parallel()
	server, data := apptest.Server(t), t.TempDir()
	first := start(t, apptest.Options{Server: server, Data: data})
	start(t, apptest.Options{Server: server, Data: data})
	ctx, b := t.Context(), first.Bus

	addresses := make([]string, 8)
	var wg sync.WaitGroup
	for i := range addresses {
		wg.Go(func() {
			a, err := bus.Call[api.Account](ctx, b, api.OpenAccount{Agent: "lucky"})
			if err != nil {
				t.Errorf("open: %v", err)
			}
			addresses[i] = a.Address
		})
	}
	wg.Wait()
	for _, a := range addresses {
		if a != addresses[0] {
			t.Fatalf("addresses: got %q, want one", addresses)
		}
	}
	const amount, funds = 7, 100
	fund(t, b, funds)
	var granted atomic.Int64
	for c := range 16 {
		wg.Go(func() {
			for i := range 4 {
				_, err := bus.Call[api.HoldState](ctx, b, api.Hold{ID: fmt.Sprintf("%d-%d", c, i), Agent: "lucky", Amount: amount, ExpiresAt: later()})
				switch {
				case err == nil:
					granted.Add(1)
				case api.ReasonOf(err) != api.ReasonInsufficient:
					t.Errorf("hold: %v", err)
				}
			}
		})
	}
	wg.Wait()
	if got := granted.Load(); got != funds/amount {
		t.Errorf("holds of %d from %d: got %d, want %d", amount, funds, got, funds/amount)
	}
	if r := ask[api.LedgerReport](t, b, api.VerifyLedger{}); !r.OK || r.ActiveHolds != funds/amount {
		t.Errorf("verify: got %+v, want it sound", r)
	}
}

func TestBalanceOverHTTP(t *testing.T) {
	t.Parallel()
	w := start(t, apptest.Options{})
	a := fund(t, w.Bus, 129_999)
	get := func(query, token string) (int, map[string]any) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, w.HTTP+"/v1/credits/balance"+query, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", token)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = resp.Body.Close() }()
		var body map[string]any
		if err := json.NewDecoder(resp.Body).Decode(&body); err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, body
	}
	status, body := get("?agent=lucky", w.Token)
	want := map[string]any{
		"agent": "lucky", "address": a.Address, "balance_cents": 12.0, "credits_cents": 12.0,
		"available_micros": 129_999.0, "held_micros": 0.0, "tier": "low_compute",
	}
	if diff := cmp.Diff(want, body); status != http.StatusOK || diff != "" {
		t.Errorf("balance: got status %d, (-want +got):\n%s", status, diff)
	}
	for query, want := range map[string]int{"": http.StatusBadRequest, "?agent=nobody": http.StatusNotFound} {
		if status, body := get(query, w.Token); status != want {
			t.Errorf("balance of %q: got status %d %v, want %d", query, status, body, want)
		}
	}
	if status, _ := get("?agent=lucky", "wrong"); status != http.StatusUnauthorized {
		t.Errorf("balance with a wrong token: got status %d, want 401", status)
	}
}

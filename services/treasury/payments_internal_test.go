package treasury

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/sqldb"
	"github.com/anima-run/anima/pkg/sqldb/sqldbtest"

	"github.com/anima-run/anima/services/treasury/internal/ledger"
	"github.com/anima-run/anima/services/treasury/internal/pay"
	"github.com/anima-run/anima/services/treasury/internal/sqlstore"
	"github.com/anima-run/anima/services/treasury/internal/wallet"
	"github.com/anima-run/anima/services/treasury/internal/x402"
)

// TestUSDCOfPayments holds, settles and releases the money of payments in the ledger, each
// twice.
func TestUSDCOfPayments(t *testing.T) {
	t.Parallel()
	sqldbtest.Each(t, sqlstore.Migrations(), func(t *testing.T, db *sqldb.DB) {
		accounts := ledger.New(sqlstore.New(db, nil), ledger.Options{Now: time.Now})
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { accounts.Run(ctx) })
		defer running.Wait()
		defer cancel()
		if err := accounts.Open(ctx, "lucky"); err != nil {
			t.Fatal(err)
		}
		if _, err := accounts.Deposit(ctx, ledger.DepositRequest{ID: "d1", Agent: "lucky", Amount: 100, Source: ledger.ChainUSDC("dev")}); err != nil {
			t.Fatal(err)
		}
		money := usdc{ledger: accounts}
		payee := common.Address{0x70}
		paid := &pay.Payment{ID: "p1", Agent: "lucky", Method: "GET", URL: "https://example.com/", Payee: payee.Hex(), Amount: 30}
		unpaid := &pay.Payment{ID: "p2", Agent: "lucky", Payee: payee.Hex(), Amount: 20}
		tooMuch := &pay.Payment{ID: "p3", Agent: "lucky", Payee: payee.Hex(), Amount: 51}
		never := &pay.Payment{ID: "p4", Agent: "lucky"}
		expires := time.Now().Add(time.Hour).UnixMicro()
		for range 2 {
			for _, p := range []*pay.Payment{paid, unpaid} {
				if b, _ := accounts.Balance(ctx, "lucky"); b.USDCHeld == 0 && b.USDC < 100 {
					break // the second round: both have ended
				}
				if err := money.Hold(ctx, p, "example.com", expires); err != nil {
					t.Errorf("hold: %v", err)
				}
			}
			if err := money.Hold(ctx, tooMuch, "example.com", expires); api.CodeOf(err) != api.Denied {
				t.Errorf("hold more than there is: got %v", err)
			}
			if err := money.Settle(ctx, paid); err != nil {
				t.Errorf("settle: %v", err)
			}
			for _, p := range []*pay.Payment{unpaid, never} {
				if err := money.Release(ctx, p, "expired"); err != nil {
					t.Errorf("release: %v", err)
				}
			}
			tooMuch.Amount = 71
		}
		b, err := accounts.Balance(ctx, "lucky")
		if err != nil || b.USDC != 70 || b.USDCHeld != 0 {
			t.Errorf("balance: got %+v, %v, want 70 and nothing held", b, err)
		}
		if err := money.Hold(ctx, paid, "example.com", expires); api.CodeOf(err) != api.Conflict {
			t.Errorf("hold again after the settlement: got %v, want conflict", err)
		}
	})
}

// TestWalletSignsTerms signs what the terms permit, and nothing else.
func TestWalletSignsTerms(t *testing.T) {
	t.Parallel()
	sqldbtest.Each(t, sqlstore.Migrations(), func(t *testing.T, db *sqldb.DB) {
		keeper := wallet.NewKeeper(sqlstore.New(db, nil), "secret", 2)
		if _, err := keeper.Create(t.Context(), "lucky"); err != nil {
			t.Fatal(err)
		}
		s := walletSigner{keeper}
		from, err := s.Address(t.Context(), "lucky")
		if err != nil {
			t.Fatal(err)
		}
		now := time.Now()
		terms := x402.Terms{Network: x402.Base, PayTo: common.Address{0x70}, Amount: 10}
		good := x402.Authorization{From: from, To: terms.PayTo, Value: 10, ValidAfter: now.Unix() - 600, ValidBefore: now.Unix() + 60, Nonce: [32]byte{1}}
		sig, err := s.Sign(t.Context(), "lucky", good, terms, now)
		if err != nil {
			t.Fatal(err)
		}
		if payer, err := sig.Payer(good.Digest(x402.Base)); err != nil || payer != from {
			t.Errorf("signed by %s, %v, want %s", payer, err, from)
		}
		for name, change := range map[string]func(*x402.Authorization){
			"payee":  func(a *x402.Authorization) { a.To = common.Address{1} },
			"value":  func(a *x402.Authorization) { a.Value = 11 },
			"window": func(a *x402.Authorization) { a.ValidBefore = now.Unix() + 7200 },
			"payer":  func(a *x402.Authorization) { a.From = common.Address{1} },
		} {
			bad := good
			change(&bad)
			if _, err := s.Sign(t.Context(), "lucky", bad, terms, now); api.CodeOf(err) != api.Denied {
				t.Errorf("%s: got %v, want a refusal", name, err)
			}
		}
	})
}

func TestDescribesPayments(t *testing.T) {
	t.Parallel()
	p := pay.Payment{ID: "p1", URL: "https://api.weather.example/today?key=x", State: api.PaymentSettled, Amount: api.Cent, Network: "eip155:8453", Payee: "0x7000000000000000000000000000000000000000"}
	p.Answer = pay.Answer{Status: 200, Body: []byte("sunny")}
	want := "HTTP 200 OK from api.weather.example, the price was $0.01, paid in USDC on eip155:8453 to 0x7000000000000000000000000000000000000000\n\nsunny"
	if got := describe(&p); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	p.State, p.Answer.Body = api.PaymentUnknown, []byte{0xff}
	if got := describe(&p); !strings.Contains(got, "not confirmed the payment yet") || !strings.Contains(got, "1 bytes of ") {
		t.Errorf("got %q", got)
	}
	p.State, p.Answer = api.PaymentSettled, pay.Answer{}
	if got := describe(&p); !strings.Contains(got, "Do not pay again") {
		t.Errorf("got %q", got)
	}
}

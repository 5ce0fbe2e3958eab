package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"
	"github.com/anima-run/anima/pkg/wait"
)

//go:embed demo/penny.md
var pennyMD string

// Amounts of the part of the demo in which an agent buys credits.
const (
	pennyCredits = 20 * api.Cent // of the tier low_compute
	pennyUSDC    = 6 * api.Dollar
)

// demoPurchase is what an agent has bought.
type demoPurchase struct {
	Agent       string     `json:"agent"`
	Credits     api.Micros `json:"credits"`
	Network     string     `json:"network"`
	Payee       string     `json:"payee"`
	Transaction string     `json:"transaction"`
	OnChain     api.Micros `json:"onChain"` // USDC that is left
}

// topUp shows an agent at a low tier that gets USDC, buys credits with it and works.
func (d *demo) topUp(ctx context.Context) (api.Agent, error) {
	d.out.head("Penny has little credit; her wallet gets USDC of the dev chain, with which she buys more")
	penny, err := d.createAgent(ctx, pennyMD, pennyCredits)
	if err != nil {
		return penny, err
	}
	before, err := bus.Call[api.Balance](ctx, d.bus, api.GetBalance{Agent: penny.ID})
	if err != nil {
		return penny, err
	}
	funded, err := bus.Call[api.FundedUSDC](ctx, d.bus, api.FundUSDC{ID: "demo", Agent: penny.ID, Amount: pennyUSDC})
	if err != nil {
		return penny, err
	}
	d.out.line("the faucet pays %s of USDC to %s (%.10s…)", pennyUSDC, penny.Name, funded.Tx)
	d.out.waiting("the purchase over x402")
	b, err := d.bought(ctx, penny.ID, before.Available)
	if err != nil {
		return penny, err
	}
	d.given += b.Available - before.Available
	p, err := d.receipt(ctx, penny.ID)
	if err != nil {
		return penny, err
	}
	d.out.line("%s pays %s on %s in %.10s…; tier %s → %s", penny.Name, p.Credits, p.Network, p.Transaction, before.Tier, b.Tier)
	const text = "Write a note about your money."
	acc, err := bus.Call[api.Accepted](ctx, d.bus, api.SendMessage{Agent: penny.ID, Content: text})
	if err != nil {
		return penny, err
	}
	d.out.line("you → %s: %s", penny.ID, text)
	return penny, d.waitForRun(ctx, len(d.ends), "Penny's work", func(e api.LoopEnd) bool { return e.Run == acc.Run })
}

// bought waits until an agent has more credits than before and the payment is posted.
func (d *demo) bought(ctx context.Context, agent string, before api.Micros) (api.Balance, error) {
	for {
		b, err := bus.Call[api.Balance](ctx, d.bus, api.GetBalance{Agent: agent})
		if err != nil || b.Available > before && b.USDCHeld == 0 {
			return b, err
		}
		if err := wait.For(ctx, 20*time.Millisecond); err != nil {
			return b, fmt.Errorf("%s has bought no credits: %w", agent, err)
		}
	}
}

// receipt compares the payment, the ledger and the chain, which must agree.
func (d *demo) receipt(ctx context.Context, agent string) (demoPurchase, error) {
	payments, err := bus.Call[api.Payments](ctx, d.bus, api.ListPayments{Agent: agent})
	if err != nil {
		return demoPurchase{}, err
	}
	if len(payments.Payments) != 1 || payments.Payments[0].State != api.PaymentSettled {
		return demoPurchase{}, fmt.Errorf("%s has %d payments, want one that is settled", agent, len(payments.Payments))
	}
	r, err := bus.Call[api.Reconciliation](ctx, d.bus, api.ReconcileLedger{Agent: agent})
	if err != nil {
		return demoPurchase{}, err
	}
	pay := payments.Payments[0]
	p := demoPurchase{Agent: agent, Credits: pay.Amount, Network: pay.Network, Payee: pay.Payee, Transaction: pay.Transaction}
	if !r.OK || len(r.Accounts) != 1 || r.Accounts[0].Chain != pennyUSDC-pay.Amount {
		return p, errors.New("the ledger and the chain differ")
	}
	p.OnChain = r.Accounts[0].Chain
	d.sum.Purchases = append(d.sum.Purchases, p)
	return p, nil
}

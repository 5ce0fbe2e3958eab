package main

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/services/treasury/devchain"
)

// chainProxy is an RPC that fails on request, in front of a dev chain.
type chainProxy struct {
	url  string
	mode atomic.Value // of string: "", refuses, hangs or lies
}

func newChainProxy(t *testing.T) *chainProxy {
	t.Helper()
	c, err := devchain.Start(devchain.Options{})
	if err != nil {
		t.Fatal(err)
	}
	p := &chainProxy{}
	p.mode.Store("")
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch p.mode.Load() {
		case "refuses":
			http.Error(w, "down", http.StatusBadGateway)
		case "hangs":
			_, _ = io.Copy(io.Discard, r.Body) // the server sees the end of the client only after the body
			<-r.Context().Done()
		case "lies":
			answer := httptest.NewRecorder()
			c.ServeHTTP(answer, r)
			w.Header().Set("Content-Type", "application/json")
			_, _ = w.Write(bytes.Replace(answer.Body.Bytes(), []byte(`"result":"0x539"`), []byte(`"result":"0x1"`), 1))
		default:
			c.ServeHTTP(w, r)
		}
	}))
	p.url = server.URL
	t.Cleanup(func() {
		p.mode.Store("")
		server.Close()
		if err := c.Close(); err != nil {
			t.Errorf("close the chain: %v", err)
		}
	})
	return p
}

// outputWhen runs a command until its output, with the errors, has a text.
func (m *machine) outputWhen(text string, args ...string) result {
	m.t.Helper()
	for end := time.Now().Add(patience); ; {
		r := m.run("", args...)
		if strings.Contains(r.out+r.err, text) {
			return r
		}
		if time.Now().After(end) {
			m.t.Fatalf("anima %q: got %q %q, want %q within %s", args, r.out, r.err, text, patience)
		}
	}
}

// usdc gives an agent USDC, once. The dev chain starts with the first request, which may
// take longer than the time limit of the request.
func (m *machine) usdc(agent, dollars string) {
	m.t.Helper()
	r := m.outputWhen(" to 0x", "wallet", "fund", agent, dollars, "--id", "first")
	if !strings.Contains(r.out, "$"+dollars+".00 of USDC to 0x") && !strings.Contains(r.out, "nothing was paid to 0x") {
		m.t.Errorf("fund: got %q", r.out)
	}
}

// TestChainCommandsWhileTheRPCIsDown runs the commands of the runbook rpc-down with an RPC
// that refuses, hangs, and says another chain id.
func TestChainCommandsWhileTheRPCIsDown(t *testing.T) {
	t.Parallel()
	p := newChainProxy(t)
	m := newMachine(t)
	for name, value := range map[string]string{
		"ANIMA_TREASURY_RPC_URL": p.url + "/a-key", "ANIMA_TREASURY_NETWORK": "dev", "ANIMA_TREASURY_RPC_TIMEOUT": "2s", "ANIMA_TREASURY_CHAIN_POLL": "50ms",
		"ANIMA_TREASURY_TOPUP_URL": "self",
	} {
		m.env[name] = value
	}
	if u := m.up(); u.Chain != "" {
		t.Errorf("up: got a dev chain at %q, want none besides the configured one", u.Chain)
	}
	m.usdc("lucky", "6")
	m.outputWhen("$6.00 at block", "wallet", "show", "lucky")
	before := asked[[]api.Balance](m, "ledger", "balance", "lucky")[0]
	for mode, why := range map[string]string{"refuses": "does not answer", "hangs": "does not answer", "lies": "is of chain 1, not of dev (1337)"} {
		p.mode.Store(mode)
		down := m.outputWhen("not read", "chain")
		if !strings.Contains(down.out, why) || strings.Contains(down.out, "a-key") {
			t.Errorf("%s: chain: got %q, want %q in it, and not the key", mode, down.out, why)
		}
		m.outputWhen("$6.00, stale: of block", "wallet", "show", "lucky")
		for _, args := range [][]string{{"ledger", "reconcile"}, {"ledger", "topup", "lucky", "5"}, {"wallet", "fund", "lucky", "1"}} {
			m.fails(exitUnavailable, "", args, why)
		}
		if end := asked[api.LoopEnd](m, "session", "send", "lucky", "hello"); !end.Success {
			t.Errorf("%s: a turn: got %+v, want success, because credits need no chain", mode, end)
		}
		now := asked[[]api.Balance](m, "ledger", "balance", "lucky")[0]
		if now.Tier != before.Tier || now.USDC != before.USDC {
			t.Errorf("%s: balance: got %+v, want the tier and the USDC of %+v", mode, now, before)
		}
		p.mode.Store("")
		m.outputWhen("state       ok", "chain")
		m.outputWhen("$6.00 at block", "wallet", "show", "lucky")
	}
	m.cli("ledger", "reconcile")
	m.cli("ledger", "topup", "lucky", "5")
	m.cli("ledger", "reconcile")
}

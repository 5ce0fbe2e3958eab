// Package chaintest runs a dev chain behind a proxy that fails on request, for tests of
// what depends on a chain.
package chaintest

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	"github.com/ethereum/go-ethereum/common"

	"github.com/anima-run/anima/pkg/config"
	"github.com/anima-run/anima/services/treasury/devchain"
)

// Mode is how the proxy answers.
type Mode string

// The modes. A lying proxy says another chain id; its other answers are true.
const (
	Works   Mode = "works"
	Refuses Mode = "refuses"
	Hangs   Mode = "hangs"
	Lies    Mode = "lies"
	Forgets Mode = "forgets" // receipts; everything else works
)

// Proxy is a dev chain behind a proxy.
type Proxy struct {
	*devchain.Chain

	URL config.Secret // with a password that must not be in an error

	mu     sync.Mutex
	mode   Mode
	change chan struct{} // closed when the mode changes
	calls  int
}

// Password is in the URL of the proxy.
const Password = "rpc-s3cret"

// Start starts a chain and its proxy.
func Start(t testing.TB, o devchain.Options) *Proxy {
	t.Helper()
	c, err := devchain.Start(o)
	if err != nil {
		t.Fatal(err)
	}
	p := &Proxy{Chain: c, mode: Works, change: make(chan struct{})}
	server := httptest.NewServer(p)
	p.URL = config.Secret(server.URL + "/" + Password)
	t.Cleanup(func() {
		p.Set(Refuses) // ends requests that hang
		server.Close()
		if err := c.Close(); err != nil {
			t.Errorf("close the chain: %v", err)
		}
	})
	return p
}

// Set changes the mode. Requests that hang fail.
func (p *Proxy) Set(m Mode) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mode = m
	close(p.change)
	p.change = make(chan struct{})
}

// Calls returns the number of requests so far.
func (p *Proxy) Calls() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.calls
}

// ServeHTTP answers a request as the mode says.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	mode, change := p.mode, p.change
	p.calls++
	p.mu.Unlock()
	switch mode {
	case Refuses:
		http.Error(w, "down", http.StatusBadGateway)
	case Hangs:
		_, _ = io.Copy(io.Discard, r.Body) // the server sees the end of the client only after the body
		select {
		case <-r.Context().Done():
		case <-change:
			http.Error(w, "down", http.StatusBadGateway)
		}
	case Lies:
		answer := httptest.NewRecorder()
		p.Chain.ServeHTTP(answer, r)
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(bytes.Replace(answer.Body.Bytes(), []byte(`"result":"0x539"`), []byte(`"result":"0x1"`), 1)) // 0x539 is 1337
	case Forgets:
		body, err := io.ReadAll(r.Body)
		if err != nil || bytes.Contains(body, []byte("eth_getTransactionReceipt")) {
			http.Error(w, "down", http.StatusBadGateway)
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		p.Chain.ServeHTTP(w, r)
	case Works:
		p.Chain.ServeHTTP(w, r)
	}
}

// Give transfers USDC from the faucet, once for each id.
func (p *Proxy) Give(t testing.TB, to common.Address, value uint64, id string) {
	t.Helper()
	if _, err := p.Fund(t.Context(), to, value, id); err != nil {
		t.Fatal(err)
	}
}

// Package chaintest runs a dev chain behind a proxy that fails on request, for tests of
// what depends on a chain.
package chaintest

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"

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
	Lags    Mode = "lags"    // logs are answered by a node without any block
	Limits  Mode = "limits"  // logs of more than MaxBlocks blocks are refused
	Behind  Mode = "behind"  // every second request for blocks by number is answered by a node without the last one
	Grows   Mode = "grows"   // the first call of each request is answered by a node that gets the last block afterwards
	Free    Mode = "free"    // as public nodes: requests of more than FreeCalls calls and logs of more than FreeBlocks blocks are refused
	Floods  Mode = "floods"  // answers are true, and longer than a client reads
	Long    Mode = "long"    // answers with logs of more than FreeBlocks blocks are so long
	Busy    Mode = "busy"    // estimates are refused for their rate; everything else works
)

// MaxBlocks is the limit of a proxy that limits, and FreeCalls and FreeBlocks are those of a
// public node.
const (
	MaxBlocks  = 500
	FreeCalls  = 10
	FreeBlocks = 10
)

// Proxy is a dev chain behind a proxy.
type Proxy struct {
	*devchain.Chain

	URL config.Secret // with a password that must not be in an error

	mu     sync.Mutex
	mode   Mode
	change chan struct{} // closed when the mode changes
	calls  int
	turns  int // requests for blocks by number while the proxy is behind
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
	case Floods:
		p.long(w, r)
	case Lags, Limits, Free, Long:
		p.logs(w, r, mode)
	case Busy:
		p.busy(w, r)
	case Behind, Grows:
		p.behind(w, r, mode == Grows)
	case Works:
		p.Chain.ServeHTTP(w, r)
	}
}

// logs answers a batch with a request for logs as the mode says, and others truly.
func (p *Proxy) logs(w http.ResponseWriter, r *http.Request, mode Mode) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		http.Error(w, "down", http.StatusBadGateway)
		return
	}
	var batch []struct {
		ID     json.RawMessage   `json:"id"`
		Method string            `json:"method"`
		Params []json.RawMessage `json:"params"`
	}
	_ = json.Unmarshal(body, &batch) // a single request is none for logs
	if mode == Free && len(batch) > FreeCalls {
		_, _ = io.WriteString(w, `{"jsonrpc":"2.0","error":{"code":-32014,"message":"maximum 10 calls in 1 batch"},"id":null}`)
		return
	}
	most := hexutil.Uint64(MaxBlocks)
	if mode == Free || mode == Long {
		most = FreeBlocks
	}
	altered := false
	answers := make([]map[string]any, len(batch))
	for i, m := range batch {
		answers[i] = map[string]any{"jsonrpc": "2.0", "id": m.ID, "result": nil}
		switch m.Method {
		case "eth_chainId":
			answers[i]["result"] = "0x539"
		case "eth_getLogs":
			var of struct {
				FromBlock hexutil.Uint64 `json:"fromBlock"`
				ToBlock   hexutil.Uint64 `json:"toBlock"`
			}
			if err := json.Unmarshal(m.Params[0], &of); err == nil && mode != Lags && of.ToBlock-of.FromBlock >= most {
				if mode == Long {
					r.Body = io.NopCloser(bytes.NewReader(body))
					p.long(w, r)
					return
				}
				delete(answers[i], "result")
				answers[i]["error"] = map[string]any{"code": -32602, "message": "too many blocks"}
				altered = true
			}
			if mode == Lags {
				answers[i]["result"] = []any{}
				altered = true
			}
		}
	}
	if !altered {
		r.Body = io.NopCloser(bytes.NewReader(body))
		p.Chain.ServeHTTP(w, r)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(answers) // fails only if the client has disconnected
}

// long answers truly after 9 MiB of spaces, which a decoder of JSON skips.
func (p *Proxy) long(w http.ResponseWriter, r *http.Request) {
	answer := httptest.NewRecorder()
	p.Chain.ServeHTTP(answer, r)
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(append(bytes.Repeat([]byte{' '}, 9<<20), answer.Body.Bytes()...))
}

// busy answers estimates as a node whose limit of the rate is reached in the middle of a
// request, and all else truly.
func (p *Proxy) busy(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		http.Error(w, "down", http.StatusBadGateway)
		return
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	answer := httptest.NewRecorder()
	p.Chain.ServeHTTP(answer, r)
	var batch, answers []map[string]json.RawMessage
	if json.Unmarshal(body, &batch) != nil || json.Unmarshal(answer.Body.Bytes(), &answers) != nil {
		_, _ = w.Write(answer.Body.Bytes())
		return
	}
	for i, m := range batch {
		if string(m["method"]) == `"eth_estimateGas"` {
			answers[i] = map[string]json.RawMessage{"jsonrpc": answers[i]["jsonrpc"], "id": m["id"], "error": json.RawMessage(`{"code":-32016,"message":"over rate limit"}`)}
		}
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(answers) // fails only if the client has disconnected
}

// behind answers for a node that does not have the last block, or gets it after its first
// answer.
func (p *Proxy) behind(w http.ResponseWriter, r *http.Request, grows bool) {
	body, err := io.ReadAll(r.Body)
	head, herr := p.Client().BlockNumber(r.Context())
	if err != nil || herr != nil {
		http.Error(w, "down", http.StatusBadGateway)
		return
	}
	var batch []map[string]any
	_ = json.Unmarshal(body, &batch) // a single request is none for blocks
	altered := false
	if grows && len(batch) > 1 {
		older(batch[1], head) // the call before is for the chain id
		altered = true
	}
	if !grows {
		for _, m := range batch {
			altered = older(m, head) || altered
		}
		p.mu.Lock()
		if altered {
			p.turns++
			altered = p.turns%2 == 0
		}
		p.mu.Unlock()
	}
	if text, err := json.Marshal(batch); altered && err == nil {
		body = text
	}
	r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	p.Chain.ServeHTTP(w, r)
}

// older makes a call one for a node without the block head, and reports whether it was for
// that block by number.
func older(call map[string]any, head uint64) bool {
	params, _ := call["params"].([]any)
	if len(params) == 0 {
		return false
	}
	switch call["method"] {
	case "eth_getLogs":
		if of, ok := params[0].(map[string]any); ok {
			of["fromBlock"], of["toBlock"] = "0x0", hexutil.EncodeUint64(head-1)
		}
	case "eth_getBlockByNumber":
		tag, _ := params[0].(string)
		switch n, err := hexutil.DecodeUint64(tag); {
		case tag == "latest":
			params[0] = hexutil.EncodeUint64(head - 1)
		case err == nil && n >= head:
			params[0] = hexutil.EncodeUint64(1 << 40)
			return true
		}
	}
	return false
}

// Give transfers USDC from the faucet, once for each id.
func (p *Proxy) Give(t testing.TB, to common.Address, value uint64, id string) {
	t.Helper()
	if _, err := p.Fund(t.Context(), to, value, id); err != nil {
		t.Fatal(err)
	}
}

package chain

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/ethereum/go-ethereum/rpc"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/config"
	"github.com/anima-run/anima/pkg/safehttp"
	"github.com/anima-run/anima/pkg/telemetry"
	"github.com/anima-run/anima/services/treasury/internal/x402"
)

// Options holds the options of a [Client].
type Options struct {
	URL     config.Secret // of the JSON-RPC; it may contain a key and is never in an error
	Network x402.Network
	Now     func() time.Time
	Timeout time.Duration // of one request; 0 means 5 s
	MaxAge  time.Duration // how long a balance is used again; 0 means 2 s
}

// Client reads one network. Each request asks for the chain id too, so that no value of
// another chain is used. It is safe for concurrent use.
type Client struct {
	opts Options
	host string
	rpc  *rpc.Client
	few  atomic.Bool // the node has refused a request of many calls

	mu       sync.Mutex
	verified bool // the token's domain was compared since the last failure
	balances map[common.Address]Balance
}

// NewClient returns a client. It makes no request.
func NewClient(o Options) (*Client, error) {
	if o.Timeout <= 0 {
		o.Timeout = 5 * time.Second
	}
	if o.MaxAge <= 0 {
		o.MaxAge = 2 * time.Second
	}
	u, err := url.Parse(o.URL.Reveal())
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, errors.New("the address of the chain's RPC is not a URL like https://host/path (ANIMA_TREASURY_RPC_URL)")
	}
	client, err := rpc.DialOptions(context.Background(), u.String(), // dialing HTTP makes no connection
		rpc.WithHTTPClient(&http.Client{Transport: safehttp.Limit(telemetry.NewTransport(nil), maxReply), Timeout: o.Timeout}))
	if err != nil {
		return nil, errors.New("the address of the chain's RPC cannot be used (ANIMA_TREASURY_RPC_URL)")
	}
	return &Client{opts: o, host: u.Host, rpc: client, balances: map[common.Address]Balance{}}, nil
}

// maxReply is the largest answer to one request, in bytes. The rpc package reads answers of
// any length.
const maxReply = 8 << 20

// Close closes idle connections.
func (c *Client) Close() { c.rpc.Close() }

// Network returns the network.
func (c *Client) Network() x402.Network { return c.opts.Network }

// call makes one request with several calls and the chain id. It returns an error if any
// call fails, Unavailable except for an error of the node about the call itself.
func (c *Client) call(ctx context.Context, calls ...rpc.BatchElem) error {
	ctx, cancel := context.WithTimeout(ctx, c.opts.Timeout)
	defer cancel()
	var id hexutil.Big
	batch := append([]rpc.BatchElem{{Method: "eth_chainId", Result: &id}}, calls...)
	err := c.rpc.BatchCallContext(ctx, batch)
	if err == nil && batch[0].Error == nil && (*big.Int)(&id).Cmp(big.NewInt(c.opts.Network.ChainID)) != 0 {
		err = c.failed(fmt.Sprintf("is of chain %s, not of %s (%d)", (*big.Int)(&id), c.opts.Network.Name, c.opts.Network.ChainID),
			"set ANIMA_TREASURY_RPC_URL to an RPC of the network, or ANIMA_TREASURY_NETWORK to that of the RPC")
	}
	for i := range batch {
		if err == nil && batch[i].Error != nil {
			err = batch[i].Error
		}
	}
	if err == nil {
		return nil
	}
	c.mu.Lock()
	c.verified = false
	c.mu.Unlock()
	if e, ok := errors.AsType[*api.Error](err); ok {
		return e
	}
	const next = "check the provider of the RPC; treasury asks again by itself"
	if answer, ok := errors.AsType[rpc.Error](err); ok {
		text := fmt.Sprintf("%.200s", answer.Error())
		return &CallError{text: text, reverted: reverts(answer.ErrorCode(), text), err: c.failed("refuses a request", next)}
	}
	// The text of other errors contains the address with its key.
	failed := c.failed("does not answer", next)
	if refusedWhole(err) {
		return fmt.Errorf("%w: %w", failed, errWhole)
	}
	return failed
}

// errWhole is in the error of a request that the node has refused as a whole, maybe because
// it has too many calls, or whose answer is too long.
var errWhole = errors.New("the request is refused as a whole")

// refusedWhole reports whether a node has answered a batch with one error: an object instead
// of a list, or a status of HTTP. A smaller request may also have an answer that is not too
// long.
func refusedWhole(err error) bool {
	other, _ := errors.AsType[*json.UnmarshalTypeError](err)
	status, _ := errors.AsType[rpc.HTTPError](err)
	long, _ := errors.AsType[*http.MaxBytesError](err)
	return long != nil || other != nil && other.Value == "object" || status.StatusCode == http.StatusBadRequest || status.StatusCode == http.StatusRequestEntityTooLarge
}

// Calls in one request, with those for the chain id and the last block two more. Nodes
// permit different numbers and do not tell them: the public ones of Base permit 10.
const (
	manyCalls = 100
	fewCalls  = 8
)

// inParts calls f for parts of n elements, each of which is a call. If the node refuses a
// request as a whole, this and all later ones have fewer calls.
func (c *Client) inParts(n int, f func(from, to int) error) error {
	for from := 0; from < n; {
		most := manyCalls
		if c.few.Load() {
			most = fewCalls
		}
		to := min(n, from+most)
		err := f(from, to)
		switch {
		case err == nil:
			from = to
		case errors.Is(err, errWhole) && to-from > fewCalls:
			c.few.Store(true)
		default:
			return err
		}
	}
	return nil
}

func (c *Client) failed(what, next string) error {
	return &api.Error{Code: api.Unavailable, Reason: api.ReasonChain, Message: "the RPC at " + c.host + " " + what, Next: next, RetryAfter: 1000}
}

// CallError is the answer of a node that a call is not possible, such as a transaction
// that would fail. It wraps an Unavailable [api.Error] without the text of the node.
type CallError struct {
	text     string
	reverted bool // the contract has refused the call, and not the node
	err      error
}

// Error returns the text of the node.
func (e *CallError) Error() string { return "the chain refuses the call: " + e.text }

// Unwrap returns the wrapped error.
func (e *CallError) Unwrap() error { return e.err }

// reverts reports whether an error of a node means that it has executed a call and the
// contract has refused it. Every other error, such as that of a rate limit, says nothing
// about the call.
func reverts(code int, text string) bool {
	const executionReverted = 3 // of go-ethereum and others; some nodes have only the text
	text = strings.ToLower(text)
	return code == executionReverted || strings.Contains(text, "revert") || strings.Contains(text, "vm execution error")
}

// read calls a method of the token at a block.
func (c *Client) read(method string, at any, out *hexutil.Bytes, args ...any) (rpc.BatchElem, error) {
	data, err := token.Pack(method, args...)
	if err != nil {
		return rpc.BatchElem{}, err
	}
	return rpc.BatchElem{
		Method: "eth_call", Args: []any{map[string]any{"to": c.opts.Network.Asset, "data": hexutil.Bytes(data)}, at}, Result: out,
	}, nil
}

// Verify compares the EIP-712 domain of the token with DOMAIN_SEPARATOR() of its contract.
// It asks the chain at the first call and after a failure. Nothing may be signed while it
// returns an error: a signature for another domain is invalid, or valid for another token.
func (c *Client) Verify(ctx context.Context) error {
	c.mu.Lock()
	verified := c.verified
	c.mu.Unlock()
	if verified {
		return nil
	}
	want, err := DomainSeparator(c.opts.Network)
	if err != nil {
		return err
	}
	var got hexutil.Bytes
	elem, err := c.read("DOMAIN_SEPARATOR", "latest", &got)
	if err != nil {
		return err
	}
	if err := c.call(ctx, elem); err != nil {
		return err
	}
	if common.BytesToHash(got) != want || len(got) != 32 {
		return c.failed(fmt.Sprintf("has another token at %s: its domain is not that of %q version %s", c.opts.Network.Asset, c.opts.Network.Token, c.opts.Network.Version),
			"check the network's entry and the RPC; nothing is signed")
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.verified = true
	return nil
}

// Block is a block of the chain.
type Block struct {
	Number uint64
	Hash   common.Hash
	Time   time.Time
}

type header struct {
	Number hexutil.Uint64 `json:"number"`
	Hash   common.Hash    `json:"hash"`
	Time   hexutil.Uint64 `json:"timestamp"`
}

func (h *header) block() Block {
	return Block{Number: uint64(h.Number), Hash: h.Hash, Time: time.Unix(int64(h.Time), 0)} //nolint:gosec // a time in seconds
}

// Heads are the ends of the chain. Safe and Final are the zero block while the node has
// none.
type Heads struct{ Latest, Safe, Final Block }

// Heads returns the ends of the chain.
func (c *Client) Heads(ctx context.Context) (h Heads, err error) {
	blocks, err := c.blocks(ctx, "latest", "safe", "finalized")
	if err != nil {
		return h, err
	}
	if blocks[0] == nil {
		return h, c.failed("has no block", "wait until the node has synced")
	}
	for i, at := range []*Block{&h.Latest, &h.Safe, &h.Final} {
		if blocks[i] != nil {
			*at = blocks[i].block()
		}
	}
	return h, nil
}

// Blocks returns the blocks with the given numbers, nil where the chain has none, and the
// last block of the same view. Behind a load balancer the node that answers may be behind
// the one of the request before: that it has no block after its last one proves nothing.
// It is asked for the last block first, because it may get a block between two answers. Of
// several requests the earliest last block is returned.
func (c *Client) Blocks(ctx context.Context, numbers ...uint64) (blocks []*Block, last Block, err error) {
	blocks = make([]*Block, len(numbers))
	err = c.inParts(len(numbers), func(from, to int) error {
		tags := []any{"latest"}
		for _, n := range numbers[from:to] {
			tags = append(tags, hexutil.Uint64(n))
		}
		all, err := c.blocks(ctx, tags...)
		if err != nil {
			return err
		}
		var end Block
		if all[0] != nil {
			end = all[0].block()
		}
		if from == 0 || end.Number < last.Number {
			last = end
		}
		for i, h := range all[1:] {
			if h != nil {
				b := h.block()
				blocks[from+i] = &b
			}
		}
		return nil
	})
	return blocks, last, err
}

func (c *Client) blocks(ctx context.Context, tags ...any) ([]*header, error) {
	headers := make([]*header, len(tags))
	raw := make([]json.RawMessage, len(tags))
	calls := make([]rpc.BatchElem, len(tags))
	for i, tag := range tags {
		calls[i] = rpc.BatchElem{Method: "eth_getBlockByNumber", Args: []any{tag, false}, Result: &raw[i]}
	}
	if err := c.call(ctx, calls...); err != nil {
		return nil, err
	}
	for i, text := range raw {
		if len(text) == 0 || string(text) == "null" {
			continue
		}
		headers[i] = new(header)
		if err := json.Unmarshal(text, headers[i]); err != nil || headers[i].Hash == (common.Hash{}) {
			return nil, c.failed("returned a block that cannot be read", "check the provider of the RPC")
		}
	}
	return headers, nil
}

package wallet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/ethereum/go-ethereum/accounts"
	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/ethereum/go-ethereum/core/types"
	ethcrypto "github.com/ethereum/go-ethereum/crypto"
	"github.com/ethereum/go-ethereum/rpc"
	"github.com/ethereum/go-ethereum/signer/core/apitypes"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/config"
	"github.com/anima-run/anima/pkg/safehttp"
	"github.com/anima-run/anima/pkg/telemetry"
)

// Protocol is the JSON-RPC protocol of a remote signer.
type Protocol string

// The protocols. Clef asks a person or its rules for each signature; web3signer signs with
// the keys that it was started with.
const (
	Clef       Protocol = "clef"       // account_list, account_signData, account_signTypedData, account_signTransaction
	Web3Signer Protocol = "web3signer" // eth_accounts, eth_sign, eth_signTypedData, eth_signTransaction
)

// Limits of calls to a remote signer. A person may have to answer clef, so a signature is
// given more time than a list.
const (
	listTimeout  = 5 * time.Second
	signTimeout  = 30 * time.Second
	maxSignReply = 1 << 20 // bytes
)

// Remote is a [Signer] whose keys are in another process. It checks rules before it asks,
// and each signature before it returns it, so that a wrong answer is an error here and not
// a failed payment later. Agents get addresses of the remote signer that no other agent
// has.
type Remote struct {
	store    Store
	client   *rpc.Client
	protocol Protocol
	host     string // of the address, for errors; the address itself may contain a password

	mu        sync.Mutex
	addresses map[string]string
}

// NewRemote returns a remote signer at an HTTP address. It connects at the first call.
func NewRemote(store Store, address config.Secret, protocol Protocol) (*Remote, error) {
	u, err := url.Parse(address.Reveal())
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, errors.New("the address of the remote signer is not a URL like http://127.0.0.1:8550")
	}
	if protocol != Clef && protocol != Web3Signer {
		return nil, fmt.Errorf("the protocol of the remote signer is %.20q: use %q or %q", protocol, Clef, Web3Signer)
	}
	client, err := rpc.DialOptions(context.Background(), u.String(), // dialing HTTP makes no connection
		rpc.WithHTTPClient(&http.Client{Transport: safehttp.Limit(telemetry.NewTransport(nil), maxSignReply), Timeout: signTimeout}))
	if err != nil {
		return nil, errors.New("the address of the remote signer cannot be used")
	}
	return &Remote{store: store, client: client, protocol: protocol, host: u.Host, addresses: map[string]string{}}, nil
}

// Close closes idle connections.
func (r *Remote) Close() { r.client.Close() }

// Check implements [Signer]: the remote signer answers and has at least one key.
func (r *Remote) Check(ctx context.Context) error {
	all, err := r.list(ctx)
	if err == nil && len(all) == 0 {
		return r.none()
	}
	return err
}

func (r *Remote) list(ctx context.Context) ([]common.Address, error) {
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	method := "account_list"
	if r.protocol == Web3Signer {
		method = "eth_accounts"
	}
	var all []common.Address
	if err := r.client.CallContext(ctx, &all, method); err != nil {
		return nil, r.failed(err)
	}
	return all, nil
}

// Create implements [Signer]. It assigns an address of the remote signer. If two processes
// assign the same address, the store lets one of them, and the other takes the next.
func (r *Remote) Create(ctx context.Context, agent string) (string, error) {
	address, err := r.Address(ctx, agent)
	if api.CodeOf(err) != api.NotFound {
		return address, err
	}
	all, err := r.list(ctx)
	if err != nil {
		return "", err
	}
	for _, a := range all {
		w, err := r.store.AddWallet(ctx, agent, Wallet{Address: a.Hex()})
		if api.CodeOf(err) != api.NotFound {
			return w.Address, err
		}
	}
	return "", r.none()
}

// Address implements [Signer].
func (r *Remote) Address(ctx context.Context, agent string) (string, error) {
	r.mu.Lock()
	address, ok := r.addresses[agent]
	r.mu.Unlock()
	if ok {
		return address, nil
	}
	w, err := r.store.Wallet(ctx, agent)
	if err != nil {
		return "", err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.addresses[agent] = w.Address
	return w.Address, nil
}

// SignMessage implements [Signer].
func (r *Remote) SignMessage(ctx context.Context, agent, to, content, signedAt string) (Signed, error) {
	from, err := r.from(ctx, agent)
	if err != nil {
		return Signed{}, err
	}
	text, err := Canonical(to, content, signedAt)
	if err != nil {
		return Signed{}, err
	}
	if r.protocol == Clef {
		return r.sign(ctx, from, accounts.TextHash([]byte(text)), "account_signData", accounts.MimetypeTextPlain, from.Hex(), hexutil.Encode([]byte(text)))
	}
	return r.sign(ctx, from, accounts.TextHash([]byte(text)), "eth_sign", from.Hex(), hexutil.Encode([]byte(text)))
}

// SignTypedData implements [Signer].
func (r *Remote) SignTypedData(ctx context.Context, agent string, data apitypes.TypedData, rule Rule) (Signed, error) {
	from, err := r.from(ctx, agent)
	if err != nil {
		return Signed{}, err
	}
	hash, err := rule.digest(from, &data)
	if err != nil {
		return Signed{}, err
	}
	document := map[string]any{"types": data.Types, "primaryType": data.PrimaryType, "domain": data.Domain.Map(), "message": data.Message}
	if r.protocol == Clef {
		return r.sign(ctx, from, hash, "account_signTypedData", from.Hex(), document)
	}
	text, err := json.Marshal(document) // web3signer reads the document from a string
	if err != nil {
		return Signed{}, refuse(CheckForm, "the typed data cannot be encoded: %.200v", err)
	}
	return r.sign(ctx, from, hash, "eth_signTypedData", from.Hex(), string(text))
}

// sign calls a method that signs and checks that the signature is that of from over hash.
func (r *Remote) sign(ctx context.Context, from common.Address, hash []byte, method string, args ...any) (Signed, error) {
	ctx, cancel := context.WithTimeout(ctx, signTimeout)
	defer cancel()
	var sig hexutil.Bytes
	if err := r.client.CallContext(ctx, &sig, method, args...); err != nil {
		return Signed{}, r.failed(err)
	}
	if len(sig) != 65 || sig[64] > 1 && sig[64] != 27 && sig[64] != 28 {
		return Signed{}, r.wrong()
	}
	if sig[64] >= 27 {
		sig[64] -= 27
	}
	key, err := ethcrypto.SigToPub(hash, sig)
	if err != nil || ethcrypto.PubkeyToAddress(*key) != from {
		return Signed{}, r.wrong()
	}
	sig[64] += 27
	return Signed{From: from.Hex(), Signature: hexutil.Encode(sig)}, nil
}

// SignTransaction implements [Signer].
func (r *Remote) SignTransaction(ctx context.Context, agent string, tx *types.Transaction, rule TxRule) (*types.Transaction, error) {
	from, err := r.from(ctx, agent)
	if err != nil {
		return nil, err
	}
	if err := rule.check(tx); err != nil {
		return nil, err
	}
	args := map[string]any{
		"from": from, "to": tx.To(), "gas": hexutil.Uint64(tx.Gas()), "nonce": hexutil.Uint64(tx.Nonce()), "value": (*hexutil.Big)(tx.Value()),
		"chainId": (*hexutil.Big)(tx.ChainId()), "maxFeePerGas": (*hexutil.Big)(tx.GasFeeCap()), "maxPriorityFeePerGas": (*hexutil.Big)(tx.GasTipCap()),
		"data": hexutil.Bytes(tx.Data()),
	}
	ctx, cancel := context.WithTimeout(ctx, signTimeout)
	defer cancel()
	raw, err := r.transaction(ctx, args)
	if err != nil {
		return nil, err
	}
	signed := new(types.Transaction)
	if err := signed.UnmarshalBinary(raw); err != nil {
		return nil, r.wrong()
	}
	signer := types.LatestSignerForChainID(tx.ChainId())
	if got, err := types.Sender(signer, signed); err != nil || got != from || signer.Hash(signed) != signer.Hash(tx) {
		return nil, r.wrong()
	}
	return signed, nil
}

func (r *Remote) transaction(ctx context.Context, args map[string]any) (raw hexutil.Bytes, err error) {
	if r.protocol == Clef {
		var answer struct {
			Raw hexutil.Bytes `json:"raw"`
		}
		if err := r.client.CallContext(ctx, &answer, "account_signTransaction", args); err != nil {
			return nil, r.failed(err)
		}
		return answer.Raw, nil
	}
	if err := r.client.CallContext(ctx, &raw, "eth_signTransaction", args); err != nil {
		return nil, r.failed(err)
	}
	return raw, nil
}

// Backup implements [Signer]. It is Denied.
func (r *Remote) Backup(context.Context, string) (Wallet, error) { return Wallet{}, noKeys() }

// Restore implements [Signer]. It is Denied.
func (r *Remote) Restore(context.Context, string, string) (string, error) { return "", noKeys() }

// from returns the address that signs for an agent. A wallet with a keystore is not the
// remote signer's.
func (r *Remote) from(ctx context.Context, agent string) (common.Address, error) {
	if agent == probe {
		return common.Address{}, api.Errorf(api.NotFound, "no agent is named")
	}
	a, err := r.Address(ctx, agent)
	return common.HexToAddress(a), err
}

func (r *Remote) none() error {
	return &api.Error{
		Code: api.Unavailable, Message: "the remote signer at " + r.host + " has no key that is free",
		Next: "add a key to the remote signer, one for each agent",
	}
}

func (r *Remote) wrong() error {
	return &api.Error{
		Code: api.Unavailable, Message: "the remote signer at " + r.host + " returned a signature of another key or of other data",
		Next: "check which program answers there; the signature was not used",
	}
}

// failed returns the error of a call without the address of the signer, which the errors
// of net/http contain.
func (r *Remote) failed(err error) error {
	e := &api.Error{
		Code: api.Unavailable, Message: "the remote signer at " + r.host + " does not answer",
		Next: "check that it runs and is unlocked; the request can be repeated", RetryAfter: 1000,
	}
	if answer, ok := errors.AsType[rpc.Error](err); ok { // it answered with an error
		e.Code, e.RetryAfter = api.Denied, 0
		e.Message = fmt.Sprintf("the remote signer at %s refused: %.200s", r.host, answer.Error())
		e.Next = "see its log and its rules"
	}
	return e
}

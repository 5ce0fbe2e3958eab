package wallet

import (
	"context"
	"crypto/ecdsa"
	"encoding/hex"
	"fmt"
	"strings"
	"time"

	"github.com/ethereum/go-ethereum/accounts"
	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/ethereum/go-ethereum/core/types"
	ethcrypto "github.com/ethereum/go-ethereum/crypto"
	"github.com/ethereum/go-ethereum/signer/core/apitypes"

	"github.com/anima-run/anima/pkg/api"
)

// maxContent is the longest content of a message, in bytes (docs/reference/treasury.md,
// Signing). A text of this size has at most 64,000 UTF-16 units, the limit of other
// clients.
const maxContent = 64_000

// signedAtLayout is ISO 8601 with milliseconds and Z, as JavaScript writes it.
const signedAtLayout = "2006-01-02T15:04:05.000Z"

// Canonical returns the string that a message's signature covers
// (docs/reference/social.md, Signature). Errors: Invalid.
func Canonical(to, content, signedAt string) (string, error) {
	if raw, err := hex.DecodeString(strings.TrimPrefix(to, "0x")); err != nil || len(raw) != 20 || len(to) != 42 {
		return "", &api.Error{Code: api.Invalid, Message: "the recipient is not an address", Next: "use 0x and 40 hex digits"}
	}
	if len(content) > maxContent {
		return "", &api.Error{
			Code: api.Invalid, Message: fmt.Sprintf("a message of %d bytes is too long", len(content)),
			Next: fmt.Sprintf("send at most %d bytes", maxContent),
		}
	}
	if t, err := time.Parse(signedAtLayout, signedAt); err != nil || t.Format(signedAtLayout) != signedAt {
		return "", &api.Error{
			Code: api.Invalid, Message: "the time of signing is not ISO 8601 with milliseconds and Z",
			Next: "write it like 2026-11-21T08:00:00.000Z",
		}
	}
	return "Conway:send:" + strings.ToLower(to) + ":" + ethcrypto.Keccak256Hash([]byte(content)).Hex() + ":" + signedAt, nil
}

// key signs with one private key.
type key struct {
	address common.Address
	sign    func(hash []byte) ([]byte, error) // a closure over the key, so that fmt cannot print the key
	reveal  func() *ecdsa.PrivateKey          // for transactions only; a closure for the same reason
}

func newKey(k *ecdsa.PrivateKey) *key {
	return &key{
		address: ethcrypto.PubkeyToAddress(k.PublicKey),
		sign:    func(hash []byte) ([]byte, error) { return ethcrypto.Sign(hash, k) },
		reveal:  func() *ecdsa.PrivateKey { return k },
	}
}

// signed signs a hash that a caller in this package has computed from checked data.
func (k *key) signed(hash []byte) (Signed, error) {
	sig, err := k.sign(hash)
	if err != nil {
		return Signed{}, fmt.Errorf("sign: %w", err)
	}
	sig[64] += 27 // wallets write v as 27 or 28
	return Signed{From: k.address.Hex(), Signature: hexutil.Encode(sig)}, nil
}

// SignMessage implements [Signer].
func (k *Keeper) SignMessage(ctx context.Context, agent, to, content, signedAt string) (Signed, error) {
	key, err := k.open(ctx, agent)
	if err != nil {
		return Signed{}, err
	}
	text, err := Canonical(to, content, signedAt)
	if err != nil {
		return Signed{}, err
	}
	return key.signed(accounts.TextHash([]byte(text)))
}

// SignTypedData implements [Signer].
func (k *Keeper) SignTypedData(ctx context.Context, agent string, data apitypes.TypedData, rule Rule) (Signed, error) {
	key, err := k.open(ctx, agent)
	if err != nil {
		return Signed{}, err
	}
	hash, err := rule.digest(key.address, &data)
	if err != nil {
		return Signed{}, err
	}
	return key.signed(hash)
}

// SignTransaction implements [Signer].
func (k *Keeper) SignTransaction(ctx context.Context, agent string, tx *types.Transaction, rule TxRule) (*types.Transaction, error) {
	key, err := k.open(ctx, agent)
	if err != nil {
		return nil, err
	}
	if err := rule.check(tx); err != nil {
		return nil, err
	}
	signed, err := types.SignTx(tx, types.LatestSignerForChainID(tx.ChainId()), key.reveal())
	if err != nil {
		return nil, fmt.Errorf("sign a transaction: %w", err)
	}
	return signed, nil
}

package wallet

import (
	"crypto/ecdsa"
	"encoding/hex"
	"fmt"
	"strings"
	"time"

	"github.com/ethereum/go-ethereum/accounts"
	"github.com/ethereum/go-ethereum/common/hexutil"
	ethcrypto "github.com/ethereum/go-ethereum/crypto"

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

// Signer signs for one agent. Its methods take the message, not a hash.
type Signer struct {
	address string
	sign    func(hash []byte) ([]byte, error) // a closure over the key, so that fmt cannot print the key
}

func newSigner(key *ecdsa.PrivateKey) *Signer {
	return &Signer{
		address: ethcrypto.PubkeyToAddress(key.PublicKey).Hex(),
		sign:    func(hash []byte) ([]byte, error) { return ethcrypto.Sign(hash, key) },
	}
}

// Address returns the address of the key, EIP-55.
func (s *Signer) Address() string { return s.address }

// SignMessage signs a social message: EIP-191 over its canonical string, as 0x and 65
// bytes in hex with v 27 or 28. Errors: Invalid.
func (s *Signer) SignMessage(to, content, signedAt string) (string, error) {
	text, err := Canonical(to, content, signedAt)
	if err != nil {
		return "", err
	}
	sig, err := s.sign(accounts.TextHash([]byte(text)))
	if err != nil {
		return "", fmt.Errorf("sign: %w", err)
	}
	sig[64] += 27 // wallets write v as 27 or 28
	return hexutil.Encode(sig), nil
}

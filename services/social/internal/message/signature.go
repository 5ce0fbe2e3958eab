package message

import (
	"encoding/hex"
	"math/big"
	"strconv"
	"strings"

	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/ethereum/go-ethereum/crypto"

	"github.com/anima-run/anima/pkg/api"
)

// signature holds r, s and a recovery id of 0 or 1.
type signature [crypto.SignatureLength]byte

// parseSignature parses 0x and 65 bytes in hex. v may be 27 and 28 or 0 and 1; s must be
// in the lower half of the order (EIP-2), as all wallets write it.
func parseSignature(s string) (signature, error) {
	var sig signature
	raw, ok := strings.CutPrefix(s, "0x")
	if !ok || len(raw) != 2*len(sig) {
		return sig, api.Errorf(api.Invalid, "the signature is not 0x and 65 bytes in hex")
	}
	if _, err := hex.Decode(sig[:], []byte(raw)); err != nil {
		return sig, api.Errorf(api.Invalid, "the signature is not hex")
	}
	v := &sig[crypto.RecoveryIDOffset]
	if *v == 27 || *v == 28 {
		*v -= 27
	}
	if *v > 1 {
		return sig, api.Errorf(api.Invalid, "the signature's v is %d, not 27, 28, 0 or 1", *v)
	}
	r, t := new(big.Int).SetBytes(sig[:32]), new(big.Int).SetBytes(sig[32:64])
	if !crypto.ValidateSignatureValues(*v, r, t, true) {
		return sig, api.Errorf(api.Invalid, "the signature's r or s is out of range; s must be in the lower half")
	}
	return sig, nil
}

// personal returns the digest of a text in the form of EIP-191 (version 0x45,
// personal_sign).
func personal(text string) []byte {
	return crypto.Keccak256([]byte("\x19Ethereum Signed Message:\n"+strconv.Itoa(len(text))), []byte(text))
}

// signer returns the address, in lower case, whose key signed a text; "" if the signature is
// invalid.
func (s signature) signer(text string) string { return s.signerOf(personal(text)) }

// signerOf returns the address, in lower case, whose key signed a digest; "" if the signature
// is invalid.
func (s signature) signerOf(digest []byte) string {
	key, err := crypto.SigToPub(digest, s[:])
	if err != nil {
		return ""
	}
	return strings.ToLower(crypto.PubkeyToAddress(*key).Hex())
}

// contentHashes returns the hashes that may represent a content in its canonical text:
// the hash of its bytes and, for a content in hex with 0x, the hash of the decoded bytes,
// because a common client library decodes such a text (docs/reference/social.md,
// Signature).
func contentHashes(content string) []string {
	hashes := []string{hexutil.Encode(crypto.Keccak256([]byte(content)))}
	spelt, ok := strings.CutPrefix(content, "0x")
	if !ok {
		return hashes
	}
	if len(spelt)%2 == 1 {
		spelt = "0" + spelt
	}
	if raw, err := hex.DecodeString(spelt); err == nil {
		hashes = append(hashes, hexutil.Encode(crypto.Keccak256(raw)))
	}
	return hashes
}

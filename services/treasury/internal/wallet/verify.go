package wallet

import (
	"bytes"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
	ethcrypto "github.com/ethereum/go-ethereum/crypto"
	"github.com/ethereum/go-ethereum/signer/core/apitypes"
)

// CheckSignature is the part of a rule that a signature of another key does not obey.
const CheckSignature Check = "signature"

// Verify checks that the key of from has signed data that obeys the rule. The signature is
// 0x and 65 bytes in hex. A second signature of the same data, with s above half of the
// order, is refused. Errors: a [Refusal].
func (r *Rule) Verify(from common.Address, data *apitypes.TypedData, signature string) error {
	hash, err := r.digest(from, data)
	if err != nil {
		return err
	}
	raw, err := hexutil.Decode(signature)
	if err != nil || len(raw) != 65 {
		return refuse(CheckSignature, "the signature is not 0x and 130 hex digits")
	}
	s := bytes.Clone(raw)
	if s[64] >= 27 {
		s[64] -= 27
	}
	if !ethcrypto.ValidateSignatureValues(s[64], common.Hash(s[:32]).Big(), common.Hash(s[32:64]).Big(), true) {
		return refuse(CheckSignature, "the signature is not valid")
	}
	key, err := ethcrypto.SigToPub(hash, s)
	if err != nil || ethcrypto.PubkeyToAddress(*key) != from {
		return refuse(CheckSignature, "the signature is not that of %s for this data", from)
	}
	return nil
}

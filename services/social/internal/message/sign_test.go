package message_test

import (
	"crypto/ecdsa"
	"strconv"
	"testing"

	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/ethereum/go-ethereum/crypto"
)

// sign returns a personal_sign signature as a wallet creates it.
func sign(t *testing.T, key *ecdsa.PrivateKey, text string) string {
	t.Helper()
	digest := crypto.Keccak256([]byte("\x19Ethereum Signed Message:\n" + strconv.Itoa(len(text)) + text))
	sig, err := crypto.Sign(digest, key)
	if err != nil {
		t.Fatal(err)
	}
	sig[64] += 27
	return hexutil.Encode(sig)
}

package devchain

import (
	"testing"

	ethcrypto "github.com/ethereum/go-ethereum/crypto"
)

func TestFaucetIsTheAddressOfItsKey(t *testing.T) {
	t.Parallel()
	if got := ethcrypto.PubkeyToAddress(faucetKey().PublicKey); got != Faucet {
		t.Errorf("faucet: got %s, want %s", Faucet, got)
	}
}

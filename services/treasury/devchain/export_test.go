package devchain

import _ "embed"

//go:embed contract/OwnedWallet.json
var walletJSON []byte

// OwnedWallet returns a wallet contract with one owner, for tests of EIP-1271.
func OwnedWallet() Artifact { return artifact(walletJSON) }

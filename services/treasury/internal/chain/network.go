// Package chain reads an EVM chain over JSON-RPC and sends the transactions of treasury
// itself. It knows one token, the USDC of the network. It must not decide about money and
// must not post to the ledger itself; it reports what the chain says, with the block that
// says it. An answer of another chain, an error or a timeout is never a balance of zero.
package chain

import (
	"fmt"
	"strings"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/math"
	"github.com/ethereum/go-ethereum/signer/core/apitypes"

	"github.com/anima-run/anima/services/treasury/internal/wallet"
	"github.com/anima-run/anima/services/treasury/internal/x402"
)

// Dev is the network of package devchain. No public network has its chain id.
var Dev = x402.Network{
	ChainID: 1337, Name: "dev", Asset: common.HexToAddress("0x0000000000000000000000000000000000c01d05"), Token: "USDC", Version: "2",
}

// Networks are the networks that can be configured, with the true EIP-712 names of their
// tokens: Circle's token has other names on Base and on Base Sepolia.
var Networks = x402.Networks{x402.Base, x402.BaseSepolia, Dev}

// Find returns the network with a name or a CAIP-2 id.
func Find(name string) (x402.Network, error) {
	if n, ok := Networks.Find(name); ok {
		return n, nil
	}
	names := make([]string, len(Networks))
	for i, n := range Networks {
		names[i] = n.Name
	}
	return x402.Network{}, fmt.Errorf("the network %.40q is not known: use one of %s", name, strings.Join(names, ", "))
}

// DomainSeparator returns the separator that the token of a network must have.
func DomainSeparator(n x402.Network) (common.Hash, error) {
	data := apitypes.TypedData{
		Types: wallet.TypesOf(wallet.TypeTransfer),
		Domain: apitypes.TypedDataDomain{
			Name: n.Token, Version: n.Version, ChainId: math.NewHexOrDecimal256(n.ChainID), VerifyingContract: n.Asset.Hex(),
		},
	}
	hash, err := data.HashStruct("EIP712Domain", data.Domain.Map())
	return common.BytesToHash(hash), err
}

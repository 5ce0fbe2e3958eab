package x402

import (
	"encoding/hex"
	"fmt"
	"math/big"
	"strings"

	"github.com/ethereum/go-ethereum/common"
)

// Network is a chain with the token that is accepted on it. The token and its EIP-712
// domain are pinned here: an offer cannot choose another contract to sign for.
type Network struct {
	ChainID int64
	Name    string // the name in version 1, such as "base"; "" if it has none
	Asset   common.Address
	Token   string // EIP-712 name of the token
	Version string // EIP-712 version of the token
}

// ID returns the CAIP-2 id, such as "eip155:8453".
func (n Network) ID() string { return fmt.Sprintf("eip155:%d", n.ChainID) }

// Written returns the network as messages of a version have it.
func (n Network) Written(version int) string {
	if version == V1 && n.Name != "" {
		return n.Name
	}
	return n.ID()
}

// Base and BaseSepolia are the networks with Circle's USDC. Their tokens have different
// names (docs/x402.md, Networks).
var (
	Base = Network{
		ChainID: 8453, Name: "base", Asset: common.HexToAddress("0x833589fCD6eDb6E08f4c7C32D4f71b54bdA02913"), Token: "USD Coin", Version: "2",
	}
	BaseSepolia = Network{
		ChainID: 84532, Name: "base-sepolia", Asset: common.HexToAddress("0x036CbD53842c5426634e7929541eC2318f3dCF7e"), Token: "USDC", Version: "2",
	}
)

// Networks are the networks that are known to one side of a payment.
type Networks []Network

// Find returns the network with a CAIP-2 id or a name of version 1, in any case.
func (ns Networks) Find(name string) (Network, bool) {
	for _, n := range ns {
		if strings.EqualFold(name, n.ID()) || n.Name != "" && strings.EqualFold(name, n.Name) {
			return n, true
		}
	}
	return Network{}, false
}

// ParseAddress parses 0x and 40 hex digits of any case.
func ParseAddress(s string) (common.Address, error) {
	raw, err := parseHex(s, common.AddressLength)
	if err != nil {
		return common.Address{}, err
	}
	return common.BytesToAddress(raw), nil
}

// parseHex parses 0x and exactly n bytes.
func parseHex(s string, n int) ([]byte, error) {
	digits, ok := strings.CutPrefix(s, "0x")
	if raw, err := hex.DecodeString(digits); ok && err == nil && len(raw) == n {
		return raw, nil
	}
	return nil, fault(BadPayload, "a value is not 0x and %d hex digits", 2*n)
}

func (n Network) chainID() *big.Int { return big.NewInt(n.ChainID) }

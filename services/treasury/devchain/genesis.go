package devchain

import (
	"crypto/ecdsa"
	_ "embed"
	"encoding/json"
	"fmt"
	"math/big"
	"sync"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/ethereum/go-ethereum/core"
	"github.com/ethereum/go-ethereum/core/types"
	ethcrypto "github.com/ethereum/go-ethereum/crypto"
	"github.com/ethereum/go-ethereum/params"

	"github.com/anima-run/anima/services/treasury/internal/chain"
)

// ChainID is the chain id of the dev chain unless the options have another one. No public
// network has it, so nothing that is signed for the dev chain is valid elsewhere.
var ChainID = uint64(chain.Dev.ChainID) //nolint:gosec // a positive constant

// Token is the address of MiniUSDC unless the options have another one.
var Token = chain.Dev.Asset

// supply is the whole supply of MiniUSDC, which the faucet has: a billion dollars.
const supply = 1_000_000_000_000_000 // micro-USD

// faucetKey returns the key of the faucet. It is derived from a text, so it is public. It
// is not computed at the start of the program: most programs never use the chain.
var faucetKey = sync.OnceValue(func() *ecdsa.PrivateKey {
	return must(ethcrypto.ToECDSA(ethcrypto.Keccak256([]byte("anima dev chain: the key of the faucet, which is public"))))
})

// Faucet is the address of the faucet's key.
var Faucet = common.HexToAddress("0x93AE297b1C0471113cd2A148D9716aC3572cd449")

//go:embed contract/MiniUSDC.json
var tokenJSON []byte

// Artifact is a compiled contract; contract/build.mjs writes it.
type Artifact struct {
	ABI      json.RawMessage `json:"abi"`
	Bytecode hexutil.Bytes   `json:"bytecode"` // creates the contract; its arguments follow
	Runtime  hexutil.Bytes   `json:"runtime"`  // of the created contract
}

// MiniUSDC returns the token contract.
func MiniUSDC() Artifact { return artifact(tokenJSON) }

func artifact(text []byte) (a Artifact) {
	if err := json.Unmarshal(text, &a); err != nil {
		panic(fmt.Sprintf("devchain: %v", err)) // the file is part of the program
	}
	return a
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(fmt.Sprintf("devchain: %v", err)) // the arguments are part of the program
	}
	return v
}

// genesis returns the genesis block: all forks, the token, and the faucet with ether and
// the whole supply. It depends on the options alone, so a stored chain starts again.
func genesis(o Options) *core.Genesis {
	conf := *params.AllDevChainProtocolChanges // a copy: the original belongs to every user of go-ethereum
	conf.ChainID = new(big.Int).SetUint64(o.ChainID)
	alloc := core.SystemContractAllocs()
	alloc[Faucet] = types.Account{Balance: new(big.Int).Mul(big.NewInt(1_000_000), big.NewInt(params.Ether))}
	amount := common.BigToHash(big.NewInt(supply))
	alloc[o.Token] = types.Account{
		Balance: new(big.Int), Code: MiniUSDC().Runtime,
		Storage: map[common.Hash]common.Hash{{}: amount, balanceSlot(Faucet): amount},
	}
	return &core.Genesis{Config: &conf, GasLimit: gasLimit, Alloc: alloc, BaseFee: big.NewInt(params.InitialBaseFee)}
}

const gasLimit = 30_000_000

// balanceSlot returns the storage slot of balanceOf[owner], the mapping in slot 1.
func balanceSlot(owner common.Address) common.Hash {
	return ethcrypto.Keccak256Hash(common.LeftPadBytes(owner.Bytes(), 32), common.LeftPadBytes([]byte{1}, 32))
}

package devchain

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"math/big"
	"sync"
	"time"

	"github.com/ethereum/go-ethereum"
	"github.com/ethereum/go-ethereum/accounts/abi"
	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/math"
	ethcrypto "github.com/ethereum/go-ethereum/crypto"
	"github.com/ethereum/go-ethereum/params"
	"github.com/ethereum/go-ethereum/signer/core/apitypes"
)

// maxFund is the most that one request to the faucet gives: 10,000 dollars.
const maxFund = 10_000_000_000

// faucet has the methods of the namespace anima of the chain's JSON-RPC.
type faucet struct{ chain *Chain }

// Fund is the method anima_fund: the faucet transfers value micro-USD of MiniUSDC. The id
// makes it idempotent over restarts, because the nonce of the authorization derives from
// it and the token uses a nonce once. Repeating an id transfers nothing and returns no
// transaction.
func (f *faucet) Fund(ctx context.Context, to common.Address, value uint64, id string) (*common.Hash, error) {
	return f.chain.Fund(ctx, to, value, id)
}

// Gas is the method anima_gas: the faucet gives one ether for gas if the address has less
// than a tenth of it.
func (f *faucet) Gas(ctx context.Context, to common.Address) (*common.Hash, error) {
	balance, err := f.chain.client.BalanceAt(ctx, to, nil)
	if err != nil || balance.Cmp(big.NewInt(params.Ether/10)) >= 0 {
		return nil, err
	}
	receipt, err := f.chain.send(ctx, to, big.NewInt(params.Ether), nil)
	if err != nil {
		return nil, err
	}
	return &receipt.TxHash, nil
}

var tokenABI = sync.OnceValue(func() abi.ABI { return must(abi.JSON(bytes.NewReader(MiniUSDC().ABI))) })

// Fund transfers MiniUSDC from the faucet, once for each id; see anima_fund.
func (c *Chain) Fund(ctx context.Context, to common.Address, value uint64, id string) (*common.Hash, error) {
	if value == 0 || value > maxFund || id == "" || to == (common.Address{}) {
		return nil, fmt.Errorf("the faucet gives 1 to %d micro-USD to an address, for an id", maxFund)
	}
	nonce := ethcrypto.Keccak256Hash([]byte(id))
	used, err := c.used(ctx, nonce)
	if err != nil || used {
		return nil, err
	}
	before := big.NewInt(time.Now().Add(time.Hour).Unix())
	sig, err := c.authorize(to, value, before, nonce)
	if err != nil {
		return nil, err
	}
	data, err := tokenABI().Pack("transferWithAuthorization", // the form with a bytes signature is first in the ABI
		Faucet, to, new(big.Int).SetUint64(value), new(big.Int), before, [32]byte(nonce), sig)
	if err != nil {
		return nil, err
	}
	receipt, err := c.send(ctx, c.opts.Token, new(big.Int), data)
	if err != nil {
		return nil, err
	}
	if receipt.Status != 1 {
		if used, err := c.used(ctx, nonce); err == nil && used {
			return nil, nil // the same request was faster
		}
		return nil, errors.New("the transfer of the faucet failed")
	}
	return &receipt.TxHash, nil
}

func (c *Chain) used(ctx context.Context, nonce common.Hash) (bool, error) {
	data, err := tokenABI().Pack("authorizationState", Faucet, [32]byte(nonce))
	if err != nil {
		return false, err
	}
	out, err := c.client.CallContract(ctx, ethereum.CallMsg{To: &c.opts.Token, Data: data}, nil)
	if err != nil {
		return false, err
	}
	return new(big.Int).SetBytes(out).Sign() != 0, nil
}

// authorize signs a transfer of the faucet.
func (c *Chain) authorize(to common.Address, value uint64, before *big.Int, nonce common.Hash) ([]byte, error) {
	field := func(name, kind string) apitypes.Type { return apitypes.Type{Name: name, Type: kind} }
	hash, _, err := apitypes.TypedDataAndHash(apitypes.TypedData{
		PrimaryType: "TransferWithAuthorization",
		Types: apitypes.Types{
			"EIP712Domain": {field("name", "string"), field("version", "string"), field("chainId", "uint256"), field("verifyingContract", "address")},
			"TransferWithAuthorization": {
				field("from", "address"), field("to", "address"), field("value", "uint256"),
				field("validAfter", "uint256"), field("validBefore", "uint256"), field("nonce", "bytes32"),
			},
		},
		Domain: apitypes.TypedDataDomain{Name: "USDC", Version: "2", ChainId: (*math.HexOrDecimal256)(c.ID()), VerifyingContract: c.opts.Token.Hex()},
		Message: apitypes.TypedDataMessage{
			"from": Faucet.Hex(), "to": to.Hex(), "value": fmt.Sprint(value), "validAfter": "0", "validBefore": before.String(),
			"nonce": "0x" + hex.EncodeToString(nonce[:]),
		},
	})
	if err != nil {
		return nil, err
	}
	sig, err := ethcrypto.Sign(hash, faucetKey())
	if err != nil {
		return nil, err
	}
	sig[64] += 27
	return sig, nil
}

package devchain_test

import (
	"crypto/ecdsa"
	"encoding/hex"
	"fmt"
	"math/big"
	"strings"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum"
	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/math"
	"github.com/ethereum/go-ethereum/core/types"
	ethcrypto "github.com/ethereum/go-ethereum/crypto"
	"github.com/ethereum/go-ethereum/signer/core/apitypes"

	"github.com/anima-run/anima/services/treasury/devchain"
)

// wallet is a funded key on a chain.
type wallet struct {
	t     *testing.T
	chain *devchain.Chain
	key   *ecdsa.PrivateKey
	addr  common.Address
}

func funded(t *testing.T, c *devchain.Chain, value uint64) *wallet {
	t.Helper()
	key, err := ethcrypto.GenerateKey()
	if err != nil {
		t.Fatal(err)
	}
	w := &wallet{t, c, key, ethcrypto.PubkeyToAddress(key.PublicKey)}
	if _, err := c.Fund(t.Context(), w.addr, value, t.Name()+w.addr.Hex()); err != nil {
		t.Fatal(err)
	}
	return w
}

var types3009 = map[string][]apitypes.Type{
	"Transfer": {{Name: "from", Type: "address"}, {Name: "to", Type: "address"}, {Name: "value", Type: "uint256"}, {Name: "validAfter", Type: "uint256"}, {Name: "validBefore", Type: "uint256"}, {Name: "nonce", Type: "bytes32"}},
	"Cancel":   {{Name: "authorizer", Type: "address"}, {Name: "nonce", Type: "bytes32"}},
}

// sign signs an authorization: kind is Transfer, Receive or Cancel.
func (w *wallet) sign(kind string, m apitypes.TypedDataMessage) []byte {
	w.t.Helper()
	fields := types3009[strings.Replace(kind, "Receive", "Transfer", 1)]
	primary := kind + "WithAuthorization"
	if kind == "Cancel" {
		primary = "CancelAuthorization"
	}
	hash, _, err := apitypes.TypedDataAndHash(apitypes.TypedData{
		PrimaryType: primary,
		Types: apitypes.Types{
			"EIP712Domain": {{Name: "name", Type: "string"}, {Name: "version", Type: "string"}, {Name: "chainId", Type: "uint256"}, {Name: "verifyingContract", Type: "address"}},
			primary:        fields,
		},
		Domain:  apitypes.TypedDataDomain{Name: "USDC", Version: "2", ChainId: math.NewHexOrDecimal256(w.chain.ID().Int64()), VerifyingContract: w.chain.Token().Hex()},
		Message: m,
	})
	if err != nil {
		w.t.Fatal(err)
	}
	sig, err := ethcrypto.Sign(hash, w.key)
	if err != nil {
		w.t.Fatal(err)
	}
	sig[64] += 27
	return sig
}

// call calls a method of the token from an address and returns the reason of a failure.
func (w *wallet) call(from common.Address, method string, args ...any) error {
	w.t.Helper()
	token := tokenABI(w.t)
	for name, m := range token.Methods { // package abi names the forms of a method in the order of the ABI
		if m.RawName == method && len(m.Inputs) == len(args) {
			method = name
			break
		}
	}
	data, err := token.Pack(method, args...)
	if err != nil {
		w.t.Fatal(err)
	}
	address := w.chain.Token()
	_, err = w.chain.Client().CallContract(w.t.Context(), ethereum.CallMsg{From: from, To: &address, Data: data}, nil)
	return err
}

// TestAuthorizations checks both forms of each method of EIP-3009 with calls that change
// nothing.
func TestAuthorizations(t *testing.T) {
	t.Parallel()
	c := start(t, devchain.Options{})
	w := funded(t, c, 100)
	now := time.Now().Unix()
	nonce := [32]byte{1}
	type change struct {
		value         int64
		after, before int64
		want          string // "" means success
	}
	for what, ch := range map[string]change{
		"all of it":     {100, 0, now + 60, ""},
		"too much":      {101, 0, now + 60, "exceeds balance"},
		"expired":       {1, 0, now - 10, "expired"},
		"not yet valid": {1, now + 600, now + 900, "not yet valid"},
	} {
		m := apitypes.TypedDataMessage{
			"from": w.addr.Hex(), "to": payee.Hex(), "value": fmt.Sprint(ch.value), "validAfter": fmt.Sprint(ch.after), "validBefore": fmt.Sprint(ch.before),
			"nonce": "0x" + hex.EncodeToString(nonce[:]),
		}
		for _, kind := range []string{"Transfer", "Receive"} {
			sig := w.sign(kind, m)
			args := []any{w.addr, payee, big.NewInt(ch.value), big.NewInt(ch.after), big.NewInt(ch.before), nonce}
			method := strings.ToLower(kind) + "WithAuthorization"
			for form, err := range map[string]error{
				"v, r, s": w.call(payee, method, append(args, sig[64], [32]byte(sig[:32]), [32]byte(sig[32:64]))...),
				"bytes":   w.call(payee, method, append(args, sig)...),
			} {
				if (err == nil) != (ch.want == "") || err != nil && !strings.Contains(err.Error(), ch.want) {
					t.Errorf("%s of %s by %s: got %v, want %q", kind, what, form, err, ch.want)
				}
			}
			if kind == "Receive" {
				if err := w.call(w.addr, method, append(args, sig)...); err == nil || !strings.Contains(err.Error(), "caller must be the payee") {
					t.Errorf("receive by another caller: got %v, want a refusal", err)
				}
			}
		}
		// A signature with the larger s is the same authorization and is refused.
		sig := w.sign("Transfer", m)
		s := new(big.Int).Sub(ethcrypto.S256().Params().N, new(big.Int).SetBytes(sig[32:64]))
		s.FillBytes(sig[32:64])
		sig[64] = 55 - sig[64]
		if err := w.call(payee, "transferWithAuthorization", w.addr, payee, big.NewInt(ch.value), big.NewInt(ch.after), big.NewInt(ch.before), nonce, sig); err == nil {
			t.Errorf("%s with the larger s: got no error", what)
		}
	}
	other := funded(t, c, 100)
	sig := other.sign("Cancel", apitypes.TypedDataMessage{"authorizer": w.addr.Hex(), "nonce": "0x" + hex.EncodeToString(nonce[:])})
	if err := w.call(payee, "cancelAuthorization", w.addr, nonce, sig); err == nil || !strings.Contains(err.Error(), "invalid signature") {
		t.Errorf("cancel by another key: got %v, want a refusal", err)
	}
	sig = w.sign("Cancel", apitypes.TypedDataMessage{"authorizer": w.addr.Hex(), "nonce": "0x" + hex.EncodeToString(nonce[:])})
	if err := w.call(payee, "cancelAuthorization", w.addr, nonce, sig[64], [32]byte(sig[:32]), [32]byte(sig[32:64])); err != nil {
		t.Errorf("cancel: %v", err)
	}
}

// TestContractWalletPays checks an authorization of a wallet that is a contract
// (EIP-1271).
func TestContractWalletPays(t *testing.T) {
	t.Parallel()
	c := start(t, devchain.Options{Interval: -1})
	w := funded(t, c, 1)
	client, ctx := c.Client(), t.Context()
	head, err := client.HeaderByNumber(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.ChainID(ctx); err != nil {
		t.Fatal(err)
	}
	code := append(devchain.OwnedWallet().Bytecode, common.LeftPadBytes(w.addr.Bytes(), 32)...)
	if err := fundGas(t, c, w.addr); err != nil {
		t.Fatal(err)
	}
	tx, err := types.SignNewTx(w.key, types.LatestSignerForChainID(c.ID()), &types.DynamicFeeTx{
		ChainID: c.ID(), Gas: 1_000_000, GasFeeCap: new(big.Int).Mul(head.BaseFee, big.NewInt(10)), GasTipCap: head.BaseFee, Data: code,
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := client.SendTransaction(ctx, tx); err != nil {
		t.Fatal(err)
	}
	c.Commit()
	receipt, err := client.TransactionReceipt(ctx, tx.Hash())
	if err != nil || receipt.Status != 1 {
		t.Fatalf("create the wallet: %+v, %v", receipt, err)
	}
	contract := receipt.ContractAddress
	if _, err := c.Fund(ctx, contract, 10, "contract"); err != nil {
		t.Fatal(err)
	}
	nonce, before := [32]byte{7}, time.Now().Unix()+60
	m := apitypes.TypedDataMessage{
		"from": contract.Hex(), "to": payee.Hex(), "value": "10", "validAfter": "0", "validBefore": fmt.Sprint(before), "nonce": "0x" + hex.EncodeToString(nonce[:]),
	}
	args := []any{contract, payee, big.NewInt(10), new(big.Int), big.NewInt(before), nonce}
	if err := w.call(payee, "transferWithAuthorization", append(args, w.sign("Transfer", m))...); err != nil {
		t.Errorf("signed by the owner: %v", err)
	}
	if err := w.call(payee, "transferWithAuthorization", append(args, funded(t, c, 1).sign("Transfer", m))...); err == nil {
		t.Error("signed by another key: got no error")
	}
}

// fundGas asks the faucet for ether.
func fundGas(t *testing.T, c *devchain.Chain, to common.Address) error {
	t.Helper()
	var tx *common.Hash
	return c.Client().Client().CallContext(t.Context(), &tx, "anima_gas", to)
}

package wallet

import (
	"math/big"

	"github.com/ethereum/go-ethereum/core/types"
)

// check compares a transaction with the rule.
func (r *TxRule) check(tx *types.Transaction) error {
	limit := r.MaxValue
	if limit == nil {
		limit = new(big.Int)
	}
	switch {
	case tx.Type() != types.DynamicFeeTxType:
		return refuse(CheckForm, "a transaction of type %d, want EIP-1559", tx.Type())
	case r.ChainID == 0 || tx.ChainId().Cmp(new(big.Int).SetUint64(r.ChainID)) != 0:
		return refuse(CheckChain, "a transaction for chain %s, want %d", tx.ChainId(), r.ChainID)
	case tx.To() == nil || *tx.To() != r.To:
		return refuse(CheckContract, "a transaction to %v, want %s", tx.To(), r.To)
	case tx.Value().Cmp(limit) > 0:
		return refuse(CheckValue, "a transaction of %s wei, want at most %s", tx.Value(), limit)
	case tx.Nonce() != r.Nonce:
		return refuse(CheckNonce, "a transaction with nonce %d, want %d", tx.Nonce(), r.Nonce)
	case tx.Gas() > r.MaxGas || r.MaxFee == nil || tx.GasFeeCap().Cmp(r.MaxFee) > 0:
		return refuse(CheckFee, "a transaction of %d gas at %s wei, want at most %d at %v", tx.Gas(), tx.GasFeeCap(), r.MaxGas, r.MaxFee)
	}
	return nil
}

package wallet

import (
	"context"
	"math/big"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/ethereum/go-ethereum/signer/core/apitypes"

	"github.com/anima-run/anima/pkg/api"
)

// Signer signs for agents. The implementations are [Keeper], which has the keys itself,
// and [Remote], which asks another process. No method takes a hash: a signer signs only
// what it has checked. It is safe for concurrent use.
type Signer interface {
	// Check verifies at start that the signer can sign for the stored wallets.
	Check(ctx context.Context) error
	// Create returns the address of an agent's wallet, EIP-55. It creates the wallet if
	// there is none.
	Create(ctx context.Context, agent string) (string, error)
	// Address returns the address of an agent's wallet, EIP-55. Errors: NotFound.
	Address(ctx context.Context, agent string) (string, error)
	// Backup returns the wallet of an agent as it is stored, encrypted. Errors: NotFound;
	// Denied if the key is at a remote signer.
	Backup(ctx context.Context, agent string) (Wallet, error)
	// Restore stores a wallet from a backup for an agent that has none. Errors: Invalid,
	// Conflict; Denied as by Backup.
	Restore(ctx context.Context, agent, keystore string) (address string, err error)
	// Renew returns a new wallet that no agent has and that is not stored. Errors: Denied as
	// by Backup.
	Renew() (Wallet, error)
	// Forget makes the signer read the wallet of an agent from the store again.
	Forget(agent string)
	// SignMessage signs a social message: EIP-191 over its canonical string, as 0x and 65
	// bytes in hex with v 27 or 28. Errors: NotFound, Invalid, Unavailable.
	SignMessage(ctx context.Context, agent, to, content, signedAt string) (Signed, error)
	// SignTypedData signs EIP-712 data that obeys the rule, in the form of SignMessage.
	// Errors: a [Refusal], NotFound, Unavailable.
	SignTypedData(ctx context.Context, agent string, data apitypes.TypedData, rule Rule) (Signed, error)
	// SignTransaction signs an EIP-1559 transaction that obeys the rule. Errors: a
	// [Refusal], NotFound, Unavailable.
	SignTransaction(ctx context.Context, agent string, tx *types.Transaction, rule TxRule) (*types.Transaction, error)
}

// Signed is a signature with the address of its key.
type Signed struct {
	From      string // EIP-55
	Signature string // 0x and 65 bytes in hex, v is 27 or 28
}

// Rule is what typed data must obey to be signed. The caller derives it from its own
// decision, not from the data. The zero value permits nothing.
type Rule struct {
	// Types are the primary types that may be signed. Only the types of this package can
	// be, in exactly their published form.
	Types []string
	// The domain. Contract is the zero address for a type that has no contract in its
	// domain.
	Name, Version string
	ChainID       uint64
	Contract      common.Address
	// Payee must be the address that is paid. It is ignored for types that pay nobody.
	Payee common.Address
	// MaxValue is the largest value, in atomic units of the token (micro-USD for USDC). It
	// is ignored for types without a value.
	MaxValue api.Micros
	// MaxWindow is how long after Now an authorization may end at the latest. It is
	// ignored for types without a window.
	MaxWindow time.Duration
	Now       time.Time
}

// TxRule is what a transaction must obey to be signed. The zero value permits nothing.
type TxRule struct {
	ChainID  uint64
	To       common.Address // the called contract; no contract is created
	Nonce    uint64
	MaxGas   uint64
	MaxFee   *big.Int // largest fee per gas, in wei
	MaxValue *big.Int // largest value, in wei; nil means 0
}

// Check is the part of a rule that data does not obey.
type Check string

// The checks, in the order in which they are made.
const (
	CheckForm     Check = "form"
	CheckType     Check = "primary_type"
	CheckName     Check = "domain_name"
	CheckVersion  Check = "domain_version"
	CheckChain    Check = "chain_id"
	CheckContract Check = "contract"
	CheckPayer    Check = "payer"
	CheckPayee    Check = "payee"
	CheckValue    Check = "value"
	CheckWindow   Check = "window"
	CheckNonce    Check = "nonce"
	CheckFee      Check = "fee"
)

// Refusal is the error for data that does not obey its rule. It wraps an [api.Error],
// Denied with ReasonNotSigned.
type Refusal struct {
	Check Check
	err   *api.Error
}

// Error returns the text of the wrapped error.
func (r *Refusal) Error() string { return r.err.Error() }

// Unwrap returns the wrapped error.
func (r *Refusal) Unwrap() error { return r.err }

func refuse(c Check, format string, args ...any) error {
	e := api.Errorf(api.Denied, format, args...)
	e.Reason, e.Message = api.ReasonNotSigned, "not signed: "+e.Message
	e.Next = "compare the request with the network's entry and the limits of the agent; do not retry it unchanged"
	return &Refusal{Check: c, err: e}
}

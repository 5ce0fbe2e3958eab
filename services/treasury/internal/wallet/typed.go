package wallet

import (
	"encoding/hex"
	"math/big"
	"slices"
	"strings"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/signer/core/apitypes"

	"github.com/anima-run/anima/pkg/api"
)

// The primary types that can be signed.
const (
	TypeTransfer = "TransferWithAuthorization" // EIP-3009
	TypeReceive  = "ReceiveWithAuthorization"  // EIP-3009
	TypeCancel   = "CancelAuthorization"       // EIP-3009
	TypeRegister = "Register"                  // registration of an agent (docs/reference/social.md)
	TypeReturn   = "ReturnCredits"             // credits of a child for its parent (docs/reference/treasury.md, Children)
)

var authorization = []apitypes.Type{
	{Name: "from", Type: "address"},
	{Name: "to", Type: "address"},
	{Name: "value", Type: "uint256"},
	{Name: "validAfter", Type: "uint256"},
	{Name: "validBefore", Type: "uint256"},
	{Name: "nonce", Type: "bytes32"},
}

// fields has the fields of every type that can be signed.
var fields = map[string][]apitypes.Type{
	TypeTransfer: authorization,
	TypeReceive:  authorization,
	TypeReturn:   authorization, // of credits, so its domain has no contract
	TypeCancel:   {{Name: "authorizer", Type: "address"}, {Name: "nonce", Type: "bytes32"}},
	TypeRegister: {{Name: "automatonId", Type: "string"}, {Name: "nonce", Type: "string"}, {Name: "payloadHash", Type: "bytes32"}},
}

// Offchain reports whether data of a type has no effect on a chain. Its domain names no
// contract.
func Offchain(primary string) bool { return primary == TypeRegister || primary == TypeReturn }

// domainOf returns the fields of the domain of a type.
func domainOf(primary string) []apitypes.Type {
	d := []apitypes.Type{{Name: "name", Type: "string"}, {Name: "version", Type: "string"}, {Name: "chainId", Type: "uint256"}}
	if !Offchain(primary) {
		d = append(d, apitypes.Type{Name: "verifyingContract", Type: "address"})
	}
	return d
}

// TypesOf returns the type definitions for a primary type of this package, and nil for
// any other.
func TypesOf(primary string) apitypes.Types {
	if fields[primary] == nil {
		return nil
	}
	return apitypes.Types{"EIP712Domain": domainOf(primary), primary: slices.Clone(fields[primary])}
}

// digest returns the hash to sign for data of from that obeys the rule. Errors: a
// [Refusal].
func (r *Rule) digest(from common.Address, data *apitypes.TypedData) ([]byte, error) {
	if err := r.check(from, data); err != nil {
		return nil, err
	}
	hash, _, err := apitypes.TypedDataAndHash(*data)
	if err != nil {
		return nil, refuse(CheckForm, "the typed data cannot be encoded: %.200v", err)
	}
	return hash, nil
}

// check compares data with the rule. All values are read from the data itself, in the
// forms that the encoder reads in one way only.
func (r *Rule) check(from common.Address, data *apitypes.TypedData) error {
	want := TypesOf(data.PrimaryType)
	if want == nil || !slices.Contains(r.Types, data.PrimaryType) {
		return refuse(CheckType, "the type %.60q is not permitted", data.PrimaryType)
	}
	if len(data.Types) != len(want) {
		return refuse(CheckForm, "the data defines %d types, want %d", len(data.Types), len(want))
	}
	for name, f := range want {
		if !slices.Equal(data.Types[name], f) {
			return refuse(CheckForm, "the type %s does not have its published fields", name)
		}
	}
	if err := r.domain(data); err != nil {
		return err
	}
	for _, f := range want[data.PrimaryType] {
		if text, ok := data.Message[f.Name].(string); !ok || len(text) > 1000 {
			return refuse(CheckForm, "the field %s is not a text", f.Name)
		}
	}
	if len(data.Message) != len(want[data.PrimaryType]) {
		return refuse(CheckForm, "the message has fields that its type does not have")
	}
	switch data.PrimaryType {
	case TypeTransfer, TypeReceive, TypeReturn:
		return r.transfer(from, data.Message)
	case TypeCancel:
		return payer(from, data.Message, "authorizer")
	default:
		return bytes32(data.Message, "payloadHash")
	}
}

func (r *Rule) domain(data *apitypes.TypedData) error {
	d := &data.Domain
	switch {
	case d.Salt != "":
		return refuse(CheckForm, "the domain has a salt")
	case d.Name != r.Name:
		return refuse(CheckName, "the domain is of %.60q, want %q", d.Name, r.Name)
	case d.Version != r.Version:
		return refuse(CheckVersion, "the domain has version %.60q, want %q", d.Version, r.Version)
	case d.ChainId == nil || r.ChainID == 0 || (*big.Int)(d.ChainId).Cmp(new(big.Int).SetUint64(r.ChainID)) != 0:
		return refuse(CheckChain, "the domain is not of chain %d", r.ChainID)
	case Offchain(data.PrimaryType):
		if d.VerifyingContract != "" {
			return refuse(CheckContract, "the domain names a contract")
		}
		return nil
	}
	if contract, ok := address(d.VerifyingContract); !ok || contract != r.Contract || contract == (common.Address{}) {
		return refuse(CheckContract, "the domain is of the contract %.60q, want %s", d.VerifyingContract, r.Contract)
	}
	return nil
}

// transfer checks an authorization of EIP-3009.
func (r *Rule) transfer(from common.Address, m apitypes.TypedDataMessage) error {
	if err := payer(from, m, "from"); err != nil {
		return err
	}
	if to, ok := address(text(m, "to")); !ok || to != r.Payee || to == (common.Address{}) {
		return refuse(CheckPayee, "the payee is %.60q, want %s", text(m, "to"), r.Payee)
	}
	value, ok := decimal(text(m, "value"))
	if limit := big.NewInt(int64(min(r.MaxValue, api.MaxMicros))); !ok || value.Sign() == 0 || value.Cmp(limit) > 0 {
		return refuse(CheckValue, "the value is %.80q, want 1 to %s", text(m, "value"), limit)
	}
	after, okAfter := decimal(text(m, "validAfter"))
	before, okBefore := decimal(text(m, "validBefore"))
	if !okAfter || !okBefore || !after.IsInt64() || !before.IsInt64() {
		return refuse(CheckWindow, "the window %.40q to %.40q is not two times in seconds", text(m, "validAfter"), text(m, "validBefore"))
	}
	now, last := r.Now.Unix(), r.Now.Add(r.MaxWindow).Unix()
	if after.Int64() > now || before.Int64() <= now || before.Int64() > last {
		return refuse(CheckWindow, "the window is %s to %s, want it to have begun by %d and to end by %d, %s from now",
			after, before, now, last, r.MaxWindow.Round(time.Second))
	}
	return nil
}

// payer checks that the authorizing field is the signing key, and the nonce next to it.
func payer(from common.Address, m apitypes.TypedDataMessage, field string) error {
	if a, ok := address(text(m, field)); !ok || a != from {
		return refuse(CheckPayer, "the payer is %.60q, want %s", text(m, field), from)
	}
	return bytes32(m, "nonce")
}

func text(m apitypes.TypedDataMessage, field string) string {
	s, _ := m[field].(string)
	return s
}

func address(s string) (a common.Address, ok bool) {
	if len(s) != 42 || !strings.HasPrefix(s, "0x") {
		return a, false
	}
	n, err := hex.Decode(a[:], []byte(s[2:]))
	return a, err == nil && n == len(a)
}

func bytes32(m apitypes.TypedDataMessage, field string) error {
	s := text(m, field)
	if raw, err := hex.DecodeString(strings.TrimPrefix(s, "0x")); err != nil || len(raw) != 32 || len(s) != 66 {
		return refuse(CheckForm, "%s is not 0x and 64 hex digits", field)
	}
	return nil
}

// decimal parses a uint256 in decimal digits without a sign or leading zeros: other forms
// could be read as another number elsewhere.
func decimal(s string) (*big.Int, bool) {
	if s == "" || len(s) > 78 || len(s) > 1 && s[0] == '0' || strings.Trim(s, "0123456789") != "" {
		return nil, false
	}
	n, ok := new(big.Int).SetString(s, 10)
	return n, ok && n.BitLen() <= 256
}

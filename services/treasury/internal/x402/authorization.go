package x402

import (
	"encoding/binary"
	"encoding/json"
	"strconv"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
	ethmath "github.com/ethereum/go-ethereum/common/math"
	"github.com/ethereum/go-ethereum/crypto"
	"github.com/ethereum/go-ethereum/signer/core/apitypes"

	"github.com/anima-run/anima/pkg/api"
)

// Authorization is a transfer that its payer has signed (EIP-3009). Anyone may submit it
// to the token while ValidAfter < time of the block < ValidBefore, in Unix seconds, once
// per payer and nonce.
type Authorization struct {
	From        common.Address
	To          common.Address
	Value       api.Micros
	ValidAfter  int64
	ValidBefore int64
	Nonce       [32]byte
}

// The EIP-712 type of an authorization. The order of its fields is part of its hash.
const (
	PrimaryType = "TransferWithAuthorization"
	typeText    = PrimaryType + "(address from,address to,uint256 value,uint256 validAfter,uint256 validBefore,bytes32 nonce)"
	domainText  = "EIP712Domain(string name,string version,uint256 chainId,address verifyingContract)"
)

var (
	typeHash   = crypto.Keccak256([]byte(typeText))
	domainHash = crypto.Keccak256([]byte(domainText))
)

// DomainSeparator returns the EIP-712 domain separator of the network's token. The token
// itself returns the same value from DOMAIN_SEPARATOR().
func (n Network) DomainSeparator() [32]byte {
	return crypto.Keccak256Hash(domainHash, crypto.Keccak256([]byte(n.Token)), crypto.Keccak256([]byte(n.Version)),
		common.LeftPadBytes(n.chainID().Bytes(), 32), common.LeftPadBytes(n.Asset[:], 32))
}

// StructHash returns the EIP-712 hash of the authorization without its domain.
func (a *Authorization) StructHash() [32]byte {
	return crypto.Keccak256Hash(typeHash, common.LeftPadBytes(a.From[:], 32), common.LeftPadBytes(a.To[:], 32),
		word(int64(a.Value)), word(a.ValidAfter), word(a.ValidBefore), a.Nonce[:])
}

// word returns n, which is not negative, as a uint256.
func word(n int64) []byte {
	return binary.BigEndian.AppendUint64(make([]byte, 24, 32), uint64(n)) //nolint:gosec // not negative
}

// Digest returns the hash that the payer signs.
func (a *Authorization) Digest(n Network) [32]byte {
	domain, content := n.DomainSeparator(), a.StructHash()
	return crypto.Keccak256Hash([]byte{0x19, 0x01}, domain[:], content[:])
}

// TypedData returns what a signer signs: the signer computes the digest itself.
func (a *Authorization) TypedData(n Network) apitypes.TypedData {
	return apitypes.TypedData{
		Types: apitypes.Types{
			"EIP712Domain": {
				{Name: "name", Type: "string"},
				{Name: "version", Type: "string"},
				{Name: "chainId", Type: "uint256"},
				{Name: "verifyingContract", Type: "address"},
			},
			PrimaryType: {
				{Name: "from", Type: "address"},
				{Name: "to", Type: "address"},
				{Name: "value", Type: "uint256"},
				{Name: "validAfter", Type: "uint256"},
				{Name: "validBefore", Type: "uint256"},
				{Name: "nonce", Type: "bytes32"},
			},
		},
		PrimaryType: PrimaryType,
		Domain: apitypes.TypedDataDomain{
			Name: n.Token, Version: n.Version, ChainId: (*ethmath.HexOrDecimal256)(n.chainID()), VerifyingContract: n.Asset.Hex(),
		},
		Message: apitypes.TypedDataMessage{
			"from": a.From.Hex(), "to": a.To.Hex(), "value": FormatAmount(a.Value), "validAfter": seconds(a.ValidAfter),
			"validBefore": seconds(a.ValidBefore), "nonce": hexutil.Encode(a.Nonce[:]),
		},
	}
}

func seconds(n int64) string { return strconv.FormatInt(n, 10) }

// Window returns how long the authorization is valid after now.
func (a *Authorization) Window(now time.Time) time.Duration {
	const most = int64(1<<63-1) / int64(time.Second)
	return time.Duration(min(a.ValidBefore-now.Unix(), most)) * time.Second
}

// Signature is r, s and v, with v 27 or 28.
type Signature [65]byte

// String returns 0x and 130 hex digits.
func (s Signature) String() string { return hexutil.Encode(s[:]) }

// ParseSignature parses 0x and 130 hex digits. It accepts a v of 0 and 1, which some
// wallets write, and refuses a second signature of the same message (s above half of the
// order), as tokens do.
func ParseSignature(text string) (s Signature, err error) {
	raw, err := parseHex(text, len(s))
	if err != nil {
		return s, fault(BadSignature, "the signature is not 65 bytes; those of contract wallets are not supported")
	}
	copy(s[:], raw)
	if s[64] < 27 {
		s[64] += 27
	}
	if !crypto.ValidateSignatureValues(s[64]-27, common.Hash(s[:32]).Big(), common.Hash(s[32:64]).Big(), true) {
		return s, fault(BadSignature, "the signature is not valid")
	}
	return s, nil
}

// Payer returns the address whose key has signed a digest.
func (s Signature) Payer(digest [32]byte) (common.Address, error) {
	s[64] -= 27
	key, err := crypto.SigToPub(digest[:], s[:])
	if err != nil {
		return common.Address{}, fault(BadSignature, "the signature is not valid")
	}
	return crypto.PubkeyToAddress(*key), nil
}

// wireAuthorization has the fields in the order in which clients write them.
type wireAuthorization struct {
	From        string `json:"from"`
	To          string `json:"to"`
	Value       string `json:"value"`
	ValidAfter  string `json:"validAfter"`
	ValidBefore string `json:"validBefore"`
	Nonce       string `json:"nonce"`
}

// MarshalJSON implements [json.Marshaler].
func (a *Authorization) MarshalJSON() ([]byte, error) {
	return encode(wireAuthorization{
		From: a.From.Hex(), To: a.To.Hex(), Value: FormatAmount(a.Value), ValidAfter: seconds(a.ValidAfter),
		ValidBefore: seconds(a.ValidBefore), Nonce: hexutil.Encode(a.Nonce[:]),
	}), nil
}

// decodeAuthorization parses the JSON of an authorization. All fields must be text.
func decodeAuthorization(raw json.RawMessage) (a Authorization, err error) {
	o, err := decode(raw)
	if err != nil {
		return a, fault(BadPayload, "the authorization: %v", err)
	}
	f, err := o.texts("from", "to", "value", "validAfter", "validBefore", "nonce")
	if err != nil {
		return a, fault(BadPayload, "the authorization: %v", err)
	}
	if a.From, err = ParseAddress(f[0]); err != nil {
		return a, err
	}
	if a.To, err = ParseAddress(f[1]); err != nil {
		return a, err
	}
	var numbers [3]api.Micros
	for i := range numbers {
		if numbers[i], err = ParseAmount(f[2+i]); err != nil {
			return a, err
		}
	}
	a.Value, a.ValidAfter, a.ValidBefore = numbers[0], int64(numbers[1]), int64(numbers[2])
	nonce, err := parseHex(f[5], len(a.Nonce))
	if err != nil {
		return a, err
	}
	copy(a.Nonce[:], nonce)
	return a, nil
}

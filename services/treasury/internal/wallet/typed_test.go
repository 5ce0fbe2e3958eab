package wallet

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/big"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/ethereum/go-ethereum/common/math"
	"github.com/ethereum/go-ethereum/core/types"
	ethcrypto "github.com/ethereum/go-ethereum/crypto"
	"github.com/ethereum/go-ethereum/signer/core/apitypes"

	"github.com/anima-run/anima/pkg/api"
)

// typedVectors is the format of testdata/vectors.json: EIP-712 hashes and signatures of
// another implementation, made with a key that is public on purpose.
type typedVectors struct {
	PrivateKey string `json:"private_key"`
	Address    string `json:"address"`
	TypeHash   string `json:"x402_type_hash"`
	X402       []struct {
		Network     string         `json:"network"`
		Domain      vectorDomain   `json:"domain"`
		Separator   string         `json:"domain_separator"`
		StructHash  string         `json:"struct_hash"`
		Digest      string         `json:"digest"`
		Signature   string         `json:"signature"`
		PaymentJSON string         `json:"payment_json"`
		message     map[string]any // of the payment
	} `json:"x402"`
	Register struct {
		PayloadHash string       `json:"payload_hash"`
		Domain      vectorDomain `json:"domain"`
		Separator   string       `json:"domain_separator"`
		Digest      string       `json:"digest"`
		Signature   string       `json:"signature"`
		Nonce       string       `json:"nonce"`
	} `json:"register"`
}

type vectorDomain struct {
	Name              string `json:"name"`
	Version           string `json:"version"`
	ChainID           int64  `json:"chainId"`
	VerifyingContract string `json:"verifyingContract"`
}

func (d vectorDomain) typed() apitypes.TypedDataDomain {
	return apitypes.TypedDataDomain{Name: d.Name, Version: d.Version, ChainId: math.NewHexOrDecimal256(d.ChainID), VerifyingContract: d.VerifyingContract}
}

func readTyped(t testing.TB) *typedVectors {
	t.Helper()
	text, err := os.ReadFile("testdata/vectors.json")
	if err != nil {
		t.Fatal(err)
	}
	v := new(typedVectors)
	if err := json.Unmarshal(text, v); err != nil || len(v.X402) != 3 {
		t.Fatalf("vectors: got %d, %v, want 3", len(v.X402), err)
	}
	for i := range v.X402 {
		var payment struct {
			Payload struct {
				Authorization map[string]any `json:"authorization"`
			} `json:"payload"`
		}
		if err := json.Unmarshal([]byte(v.X402[i].PaymentJSON), &payment); err != nil {
			t.Fatal(err)
		}
		v.X402[i].message = payment.Payload.Authorization
	}
	return v
}

// keeperOf returns a keeper with the key of the vectors for the agent lucky.
func keeperOf(t testing.TB, private string) *Keeper {
	t.Helper()
	key, err := ethcrypto.HexToECDSA(strings.TrimPrefix(private, "0x"))
	if err != nil {
		t.Fatal(err)
	}
	store := newShelf()
	k := NewKeeper(store, "passphrase", testN)
	if store.of["lucky"], err = k.seal(key); err != nil {
		t.Fatal(err)
	}
	return k
}

// payment returns the i-th payment of the vectors and a rule that it obeys exactly.
func (v *typedVectors) payment(i int) (apitypes.TypedData, Rule) {
	p := &v.X402[i]
	value, _ := decimal(p.message["value"].(string))
	before, _ := decimal(p.message["validBefore"].(string))
	now := time.Unix(before.Int64()-300, 0)
	return apitypes.TypedData{Types: TypesOf(TypeTransfer), PrimaryType: TypeTransfer, Domain: p.Domain.typed(), Message: maps.Clone(p.message)},
		Rule{
			Types: []string{TypeTransfer}, Name: p.Domain.Name, Version: p.Domain.Version, ChainID: uint64(p.Domain.ChainID),
			Contract: common.HexToAddress(p.Domain.VerifyingContract), Payee: common.HexToAddress(p.message["to"].(string)),
			MaxValue: api.Micros(value.Int64()), MaxWindow: 300 * time.Second, Now: now,
		}
}

func TestTypedDataAsTheReference(t *testing.T) {
	t.Parallel()
	v := readTyped(t)
	k := keeperOf(t, v.PrivateKey)
	for i := range v.X402 {
		want := &v.X402[i]
		data, rule := v.payment(i)
		if got := hexutil.Encode(data.TypeHash(TypeTransfer)); got != v.TypeHash {
			t.Errorf("type hash: got %s, want %s", got, v.TypeHash)
		}
		separator, err := data.HashStruct("EIP712Domain", data.Domain.Map())
		if err != nil || separator.String() != want.Separator {
			t.Errorf("%s: domain separator: got %s, %v, want %s", want.Network, separator, err, want.Separator)
		}
		hash, err := data.HashStruct(TypeTransfer, data.Message)
		if err != nil || hash.String() != want.StructHash {
			t.Errorf("%s: struct hash: got %s, %v, want %s", want.Network, hash, err, want.StructHash)
		}
		digest, err := rule.digest(common.HexToAddress(v.Address), &data)
		if err != nil || hexutil.Encode(digest) != want.Digest {
			t.Errorf("%s: digest: got %x, %v, want %s", want.Network, digest, err, want.Digest)
		}
		got, err := k.SignTypedData(t.Context(), "lucky", data, rule)
		if err != nil || got.Signature != want.Signature || got.From != v.Address {
			t.Errorf("%s: signature: got %+v, %v, want %s", want.Network, got, err, want.Signature)
		}
	}
	r := v.Register
	data := apitypes.TypedData{
		Types: TypesOf(TypeRegister), PrimaryType: TypeRegister, Domain: r.Domain.typed(),
		Message: map[string]any{"automatonId": "agent-1", "nonce": r.Nonce, "payloadHash": r.PayloadHash},
	}
	rule := Rule{Types: []string{TypeRegister}, Name: r.Domain.Name, Version: r.Domain.Version, ChainID: uint64(r.Domain.ChainID)}
	if got, err := k.SignTypedData(t.Context(), "lucky", data, rule); err != nil || got.Signature != r.Signature {
		t.Errorf("registration: got %+v, %v, want %s", got, err, r.Signature)
	}
}

// TestSignerRefuses changes one part of a payment or of its rule at a time.
func TestSignerRefuses(t *testing.T) {
	t.Parallel()
	v := readTyped(t)
	k := keeperOf(t, v.PrivateKey)
	other := common.HexToAddress("0x2222222222222222222222222222222222222222")
	type change func(d *apitypes.TypedData, r *Rule)
	set := func(field string, value any) change {
		return func(d *apitypes.TypedData, _ *Rule) { d.Message[field] = value }
	}
	for what, c := range map[string]struct {
		want   Check
		change change
	}{
		"an unknown type":        {CheckType, func(d *apitypes.TypedData, _ *Rule) { d.PrimaryType = "Permit" }},
		"the domain as the type": {CheckType, func(d *apitypes.TypedData, _ *Rule) { d.PrimaryType = "EIP712Domain" }},
		"a type not permitted":   {CheckType, func(_ *apitypes.TypedData, r *Rule) { r.Types = []string{TypeReceive} }},
		"an empty rule":          {CheckType, func(_ *apitypes.TypedData, r *Rule) { *r = Rule{} }},
		"one more type":          {CheckForm, func(d *apitypes.TypedData, _ *Rule) { d.Types["Extra"] = nil }},
		"another field order": {CheckForm, func(d *apitypes.TypedData, _ *Rule) {
			f := d.Types[TypeTransfer]
			f[0], f[1] = f[1], f[0]
		}},
		"another field type":        {CheckForm, func(d *apitypes.TypedData, _ *Rule) { d.Types[TypeTransfer][2].Type = "uint128" }},
		"a domain without contract": {CheckForm, func(d *apitypes.TypedData, _ *Rule) { d.Types["EIP712Domain"] = domainOf(TypeRegister) }},
		"a salt":                    {CheckForm, func(d *apitypes.TypedData, _ *Rule) { d.Domain.Salt = "0x01" }},
		"one more field":            {CheckForm, set("memo", "x")},
		"a number for a text":       {CheckForm, set("value", 5)},
		"a long text":               {CheckForm, set("value", strings.Repeat("1", 1001))},
		"a missing field":           {CheckForm, func(d *apitypes.TypedData, _ *Rule) { delete(d.Message, "nonce") }},
		"a short nonce":             {CheckForm, set("nonce", "0xab")},
		"another name":              {CheckName, func(d *apitypes.TypedData, _ *Rule) { d.Domain.Name = "USDC" }},
		"another version":           {CheckVersion, func(d *apitypes.TypedData, _ *Rule) { d.Domain.Version = "1" }},
		"another chain":             {CheckChain, func(d *apitypes.TypedData, _ *Rule) { d.Domain.ChainId = math.NewHexOrDecimal256(1) }},
		"no chain":                  {CheckChain, func(d *apitypes.TypedData, _ *Rule) { d.Domain.ChainId = nil }},
		"a rule without chain":      {CheckChain, func(d *apitypes.TypedData, r *Rule) { d.Domain.ChainId, r.ChainID = math.NewHexOrDecimal256(0), 0 }},
		"another contract":          {CheckContract, func(d *apitypes.TypedData, _ *Rule) { d.Domain.VerifyingContract = other.Hex() }},
		"no contract":               {CheckContract, func(d *apitypes.TypedData, r *Rule) { d.Domain.VerifyingContract, r.Contract = "", common.Address{} }},
		"the zero contract": {CheckContract, func(d *apitypes.TypedData, r *Rule) {
			d.Domain.VerifyingContract, r.Contract = common.Address{}.Hex(), common.Address{}
		}},
		"another payer":      {CheckPayer, set("from", other.Hex())},
		"another payee":      {CheckPayee, set("to", other.Hex())},
		"a payee without 0x": {CheckPayee, set("to", strings.Repeat("1", 40))},
		"the zero payee": {CheckPayee, func(d *apitypes.TypedData, r *Rule) {
			d.Message["to"], r.Payee = common.Address{}.Hex(), common.Address{}
		}},
		"one unit too much":          {CheckValue, func(_ *apitypes.TypedData, r *Rule) { r.MaxValue-- }},
		"nothing":                    {CheckValue, set("value", "0")},
		"a negative value":           {CheckValue, set("value", "-1")},
		"a plus sign":                {CheckValue, set("value", "+1")},
		"a hexadecimal value":        {CheckValue, set("value", "0x1")},
		"a leading zero":             {CheckValue, set("value", "01")},
		"more than 256 bits":         {CheckValue, set("value", "1"+strings.Repeat("0", 77)+"0")},
		"more than 64 bits":          {CheckValue, set("value", "18446744073709551617")}, // 2^64+1
		"a fraction":                 {CheckValue, set("value", "1.0")},
		"a window that has ended":    {CheckWindow, func(_ *apitypes.TypedData, r *Rule) { r.Now = r.Now.Add(300 * time.Second) }},
		"a window that is too long":  {CheckWindow, func(_ *apitypes.TypedData, r *Rule) { r.MaxWindow -= time.Second }},
		"a window that begins later": {CheckWindow, func(d *apitypes.TypedData, r *Rule) { d.Message["validAfter"] = fmt.Sprint(r.Now.Unix() + 1) }},
		"a window of 31 years":       {CheckWindow, set("validBefore", "2767323345")},
		"an end beyond int64":        {CheckWindow, set("validBefore", "9223372036854775808")},
	} {
		data, rule := v.payment(0)
		c.change(&data, &rule)
		got, err := k.SignTypedData(t.Context(), "lucky", data, rule)
		refusal, ok := errors.AsType[*Refusal](err)
		if !ok || refusal.Check != c.want || got != (Signed{}) {
			t.Errorf("%s: got %+v, %v, want a refusal by %s", what, got, err, c.want)
			continue
		}
		if api.CodeOf(err) != api.Denied || api.ReasonOf(err) != api.ReasonNotSigned {
			t.Errorf("%s: got code %s and reason %q, want denied and not_signed", what, api.CodeOf(err), api.ReasonOf(err))
		}
	}
	data, rule := v.payment(0)
	if _, err := k.SignTypedData(t.Context(), "nobody", data, rule); api.CodeOf(err) != api.NotFound {
		t.Errorf("an agent without a wallet: got %v, want not_found", err)
	}
}

func TestCancelIsOfTheOwnKey(t *testing.T) {
	t.Parallel()
	v := readTyped(t)
	k := keeperOf(t, v.PrivateKey)
	data, rule := v.payment(0)
	nonce := data.Message["nonce"]
	data.PrimaryType, data.Types = TypeCancel, TypesOf(TypeCancel)
	rule.Types = append(rule.Types, TypeCancel)
	data.Message = map[string]any{"authorizer": v.Address, "nonce": nonce}
	if _, err := k.SignTypedData(t.Context(), "lucky", data, rule); err != nil {
		t.Errorf("cancel: got %v, want a signature", err)
	}
	data.Message["authorizer"] = "0x2222222222222222222222222222222222222222"
	if _, err := k.SignTypedData(t.Context(), "lucky", data, rule); err == nil {
		t.Error("cancel for another key: got a signature")
	}
}

func TestTransactionsObeyTheirRule(t *testing.T) {
	t.Parallel()
	v := readTyped(t)
	k := keeperOf(t, v.PrivateKey)
	to := common.HexToAddress("0x036CbD53842c5426634e7929541eC2318f3dCF7e")
	tx := func(change func(*types.DynamicFeeTx)) *types.Transaction {
		d := &types.DynamicFeeTx{ChainID: big.NewInt(84532), Nonce: 7, To: &to, Gas: 100_000, GasFeeCap: big.NewInt(2_000_000_000), GasTipCap: big.NewInt(1), Value: new(big.Int)}
		change(d)
		return types.NewTx(d)
	}
	rule := TxRule{ChainID: 84532, To: to, Nonce: 7, MaxGas: 100_000, MaxFee: big.NewInt(2_000_000_000)}
	signed, err := k.SignTransaction(t.Context(), "lucky", tx(func(*types.DynamicFeeTx) {}), rule)
	if err != nil {
		t.Fatal(err)
	}
	if from, err := types.Sender(types.LatestSignerForChainID(big.NewInt(84532)), signed); err != nil || from.Hex() != v.Address {
		t.Errorf("sender: got %s, %v, want %s", from, err, v.Address)
	}
	for want, change := range map[Check]func(*types.DynamicFeeTx){
		CheckChain:    func(d *types.DynamicFeeTx) { d.ChainID = big.NewInt(1) },
		CheckContract: func(d *types.DynamicFeeTx) { d.To = nil },
		CheckValue:    func(d *types.DynamicFeeTx) { d.Value = big.NewInt(1) },
		CheckNonce:    func(d *types.DynamicFeeTx) { d.Nonce = 8 },
		CheckFee:      func(d *types.DynamicFeeTx) { d.GasFeeCap = big.NewInt(2_000_000_001) },
	} {
		_, err := k.SignTransaction(t.Context(), "lucky", tx(change), rule)
		if refusal, ok := errors.AsType[*Refusal](err); !ok || refusal.Check != want {
			t.Errorf("%s: got %v, want a refusal", want, err)
		}
	}
	legacy := types.NewTx(&types.LegacyTx{Nonce: 7, To: &to, Gas: 1, GasPrice: big.NewInt(1)})
	if _, err := k.SignTransaction(t.Context(), "lucky", legacy, rule); err == nil {
		t.Error("a legacy transaction, which is valid on every chain: got a signature")
	}
}

// FuzzTypedData checks that data which is signed has the values that the rule permits,
// read by another decoder than the signer's.
func FuzzTypedData(f *testing.F) {
	v := readTyped(f)
	for i := range v.X402 {
		data, _ := v.payment(i)
		text, err := json.Marshal(map[string]any{"types": data.Types, "primaryType": data.PrimaryType, "domain": data.Domain.Map(), "message": data.Message})
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	_, rule := v.payment(0)
	f.Fuzz(func(t *testing.T, text []byte) {
		var data apitypes.TypedData
		if json.Unmarshal(text, &data) != nil {
			return
		}
		if _, err := rule.digest(common.HexToAddress(v.Address), &data); err != nil {
			return
		}
		value, ok := new(big.Int).SetString(data.Message["value"].(string), 10)
		if !ok || value.Cmp(big.NewInt(int64(rule.MaxValue))) > 0 || !strings.EqualFold(data.Message["to"].(string), rule.Payee.Hex()) || !strings.EqualFold(data.Message["from"].(string), v.Address) {
			t.Errorf("permitted: %s", text)
		}
	})
}

func BenchmarkSignTypedData(b *testing.B) {
	v := readTyped(b)
	k := keeperOf(b, v.PrivateKey)
	data, rule := v.payment(0)
	for b.Loop() {
		if _, err := k.SignTypedData(b.Context(), "lucky", data, rule); err != nil {
			b.Fatal(err)
		}
	}
}

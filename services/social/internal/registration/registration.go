// Package registration verifies the registrations that agents sign
// (docs/reference/social.md, Registration). It must not depend on where they are stored.
package registration

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"math/big"
	"regexp"
	"slices"
	"strings"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/crypto"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/services/social/internal/message"
)

// Limits of the fields, in bytes.
const (
	maxID   = 128 // also of the nonce
	maxName = 256
	maxBio  = 2000
)

// Registration is what an agent says about itself. Addresses are in lower case.
type Registration struct {
	ID      string // chosen by the agent
	Address string // of its wallet, which has signed
	Creator string
	Name    string
	Bio     string // may be empty
	Genesis string // Keccak-256 of the genesis prompt, as 0x and 64 hex digits; may be empty
	At      int64  // time of the first registration, Unix microseconds; set by the store
}

// proof are the fields of a request that prove the others.
type proof struct {
	Nonce     string `json:"nonce"`
	Signature string `json:"signature"`
	Hash      string `json:"payload_hash"`
	Chain     string `json:"chain_type"`
}

// Verify reads the body of a request and checks its fields, the hash and the signature.
// Errors: Invalid; Denied, if the signature is not that of the address.
func Verify(body []byte) (Registration, error) {
	var p proof
	var of struct {
		ID      string `json:"automaton_id"`
		Address string `json:"automaton_address"`
		Creator string `json:"creator_address"`
		Name    string `json:"name"`
		Bio     string `json:"bio"`
		Genesis string `json:"genesis_prompt_hash"`
	}
	fields := map[string]json.RawMessage{}
	for _, v := range []any{&p, &of, &fields} {
		if err := json.Unmarshal(body, v); err != nil {
			return Registration{}, api.Errorf(api.Invalid, "the body is not valid JSON for this route: %s", api.JSONFault(err))
		}
	}
	if p.Chain != "" && p.Chain != "evm" {
		return Registration{}, &api.Error{Code: api.Invalid, Message: "only wallets of EVM chains can register", Next: "sign with an Ethereum wallet"}
	}
	for _, f := range []struct {
		name, value string
		most        int
		required    bool
	}{
		{"automaton_id", of.ID, maxID, true}, {"nonce", p.Nonce, maxID, true}, {"name", of.Name, maxName, true}, {"bio", of.Bio, maxBio, false},
	} {
		if f.required && f.value == "" || len(f.value) > f.most || strings.ContainsRune(f.value, 0) {
			return Registration{}, api.Errorf(api.Invalid, "%s is missing, longer than %d bytes or has a NUL in it", f.name, f.most)
		}
	}
	address, err := message.Address(of.Address)
	if err != nil {
		return Registration{}, fmt.Errorf("automaton_address: %w", err)
	}
	creator, err := message.Address(of.Creator)
	if err != nil {
		return Registration{}, fmt.Errorf("creator_address: %w", err)
	}
	if of.Genesis != "" && !hashForm.MatchString(of.Genesis) {
		return Registration{}, api.Errorf(api.Invalid, "genesis_prompt_hash is not 0x and 64 hex digits")
	}
	hash := payloadHash(fields)
	if !strings.EqualFold(p.Hash, "0x"+hex.EncodeToString(hash)) {
		return Registration{}, &api.Error{
			Code: api.Invalid, Message: "payload_hash is not the hash of the payload",
			Next: "hash the fields without nonce, signature and payload_hash as JSON with sorted keys and without spaces, with Keccak-256",
		}
	}
	ok, err := message.SignedDigest(address, digest(of.ID, p.Nonce, hash), p.Signature)
	if err != nil {
		return Registration{}, err
	}
	if !ok {
		return Registration{}, &api.Error{Code: api.Denied, Message: "the signature is not that of " + message.Display(address), Next: "sign the typed data Register with the wallet of automaton_address"}
	}
	return Registration{ID: of.ID, Address: address, Creator: creator, Name: of.Name, Bio: of.Bio, Genesis: strings.ToLower(of.Genesis)}, nil
}

var hashForm = regexp.MustCompile(`^0x[0-9a-fA-F]{64}$`)

// payloadHash returns the hash of the payload: of the fields of a request without those of
// the proof, as JSON with sorted keys and without spaces. The values are those of the
// request, byte for byte, because encoders differ in what they escape.
func payloadHash(fields map[string]json.RawMessage) []byte {
	var text bytes.Buffer
	for _, key := range slices.Sorted(maps.Keys(fields)) {
		switch key {
		case "nonce", "signature", "payload_hash", "chain_type":
			continue
		}
		if text.Len() > 0 {
			text.WriteByte(',')
		}
		name, _ := api.Encode(key)           // a text
		_, _ = text.Write(append(name, ':')) // never fails
		_ = json.Compact(&text, fields[key]) // it is valid
	}
	return crypto.Keccak256([]byte("{" + text.String() + "}"))
}

// chainID is the chain in the domain of the typed data, also for agents on other chains.
const chainID = 8453

// digest returns the hash that is signed: EIP-712 typed data of the type Register.
func digest(id, nonce string, payload []byte) []byte {
	hash := func(text string) []byte { return crypto.Keccak256([]byte(text)) }
	domain := crypto.Keccak256(
		hash("EIP712Domain(string name,string version,uint256 chainId)"), hash("AIWS Automaton"), hash("1"),
		common.BigToHash(big.NewInt(chainID)).Bytes(),
	)
	data := crypto.Keccak256(hash("Register(string automatonId,string nonce,bytes32 payloadHash)"), hash(id), hash(nonce), payload)
	return crypto.Keccak256([]byte("\x19\x01"), domain, data)
}

package api

import (
	"bytes"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"slices"
	"strings"
)

// Principal is the source of an input (docs/reference/platform.md, Principals).
type Principal struct {
	Kind    PrincipalKind `json:"kind"`
	Address string        `json:"address,omitempty"` // of a peer, verified by social
}

// PrincipalKind is the kind of a principal. See [PrincipalKind.Authority] for their
// order.
type PrincipalKind string

// The kinds of principals, from the most to the least trusted. The zero value is
// treated as external.
const (
	Creator       PrincipalKind = "creator"
	Self          PrincipalKind = "self"
	HeartbeatKind PrincipalKind = "heartbeat"
	Peer          PrincipalKind = "peer"
	External      PrincipalKind = "external"
)

// Authority returns the authority of a kind of principal: creator 100, self 80,
// heartbeat 50, peer 40, external 20 (docs/reference/policy.md, Principals). Any other
// kind counts as external.
func (k PrincipalKind) Authority() int {
	switch k {
	case Creator:
		return 100
	case Self:
		return 80
	case HeartbeatKind:
		return 50
	case Peer:
		return 40
	case External:
	}
	return 20
}

// Lowest returns the least trusted of ps, which is the principal of a turn with these
// inputs. Of several with the same authority it returns the first. Without any it
// returns Self.
func Lowest(ps ...Principal) Principal {
	low := Principal{Kind: Self}
	for i, p := range ps {
		if i == 0 || p.Kind.Authority() < low.Kind.Authority() {
			low = p
		}
	}
	return low
}

// Grant is the content of a decision token: policy allowed this call, with these
// arguments, in this turn, until Expires. The executor refuses a tool call without a
// valid token (docs/reference/platform.md, Decision tokens).
type Grant struct {
	Decision string    `json:"decision"` // id of the recorded decision
	Agent    string    `json:"agent"`
	Turn     string    `json:"turn"`
	Index    int       `json:"index"` // of the call within its turn
	Tool     string    `json:"tool"`
	ArgsHash string    `json:"argsHash"` // see [ArgsHash]
	By       Principal `json:"by"`
	Expires  int64     `json:"expires"` // Unix microseconds
}

// For reports whether the grant is for this call. It does not check Expires. Errors:
// Invalid, for arguments that are not one JSON value.
func (g Grant) For(agent, turn string, index int, tool string, args json.RawMessage) (bool, error) {
	hash, err := ArgsHash(args)
	return g.Agent == agent && g.Turn == turn && g.Index == index && g.Tool == tool && g.ArgsHash == hash && hash != "", err
}

// Sign returns the token of g: its JSON in base64url, a dot, and the Ed25519 signature
// of the part before the dot in base64url.
func (g Grant) Sign(key ed25519.PrivateKey) (string, error) {
	body, err := Encode(g)
	if err != nil {
		return "", err
	}
	head := base64.RawURLEncoding.EncodeToString(body)
	return head + "." + base64.RawURLEncoding.EncodeToString(ed25519.Sign(key, []byte(head))), nil
}

// VerifyGrant returns the grant of a token that is signed by one of keys. The caller
// has to check its expiry and that it is for the call, see [Grant.For]. A token without
// such a signature is Denied.
func VerifyGrant(token string, keys ...ed25519.PublicKey) (Grant, error) {
	fault := &Error{
		Code: Denied, Message: "the decision token is not signed by policy",
		Next: "ask policy again; if it repeats, check that loop and policy share one installation",
	}
	head, tail, _ := strings.Cut(token, ".")
	signature, err := base64.RawURLEncoding.DecodeString(tail)
	signed := func(k ed25519.PublicKey) bool {
		return len(k) == ed25519.PublicKeySize && ed25519.Verify(k, []byte(head), signature)
	}
	if err != nil || !slices.ContainsFunc(keys, signed) {
		return Grant{}, fault
	}
	body, err := base64.RawURLEncoding.DecodeString(head)
	if err != nil {
		return Grant{}, fault
	}
	var g Grant
	if err := Decode(body, &g); err != nil {
		return Grant{}, fault
	}
	return g, nil
}

// ArgsHash returns the SHA-256, in hex, of a tool call's arguments in canonical form:
// keys sorted, no insignificant space, numbers unchanged. Different spellings of the
// same arguments have the same hash. Arguments that are not one JSON value are Invalid.
func ArgsHash(args json.RawMessage) (string, error) {
	dec := json.NewDecoder(bytes.NewReader(args))
	dec.UseNumber()
	var v any
	if err := dec.Decode(&v); err != nil {
		return "", Errorf(Invalid, "tool arguments are not JSON: %v", err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return "", Errorf(Invalid, "tool arguments are more than one JSON value")
	}
	canonical, err := Encode(v)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(canonical)
	return hex.EncodeToString(sum[:]), nil
}

package api_test

import (
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/anima-run/anima/pkg/api"
)

// TestTierOf checks the bounds of docs/reference/platform.md, Survival tiers.
func TestTierOf(t *testing.T) {
	t.Parallel()
	for cents, want := range map[api.Micros]api.Tier{
		-100: api.TierDead, -1: api.TierDead, 0: api.TierCritical, 1: api.TierCritical, 10: api.TierCritical,
		11: api.TierLow, 50: api.TierLow, 51: api.TierNormal, 500: api.TierNormal, 501: api.TierHigh,
	} {
		if got := api.TierOf(cents * api.Cent); got != want {
			t.Errorf("%d cents: got %s, want %s", cents, got, want)
		}
	}
	if got := api.TierOf(10*api.Cent + 1); got != api.TierLow {
		t.Errorf("one micro-USD above a bound: got %s, want the tier above", got)
	}
}

func TestMicros(t *testing.T) {
	t.Parallel()
	for m, want := range map[api.Micros]string{
		0: "$0.00", 1: "$0.000001", 1_500_000: "$1.50", -123: "-$0.000123", 12_345_678: "$12.345678",
		math.MinInt64: "-$9223372036854.775808",
	} {
		if got := m.String(); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	for s, want := range map[string]api.Micros{"5": 5_000_000, "$0.25": 250_000, " 1.000001 ": 1_000_001} {
		if got, err := api.ParseMicros(s); err != nil || got != want {
			t.Errorf("%q: got %d, %v, want %d", s, got, err, want)
		}
	}
	for _, s := range []string{"", "$", "-1", "1e3", "1.", ".5", "1.0000001", "99999999999", "١"} {
		if got, err := api.ParseMicros(s); api.CodeOf(err) != api.Invalid {
			t.Errorf("%q: got %d, %v, want invalid", s, got, err)
		}
	}
	if _, ok := api.Add(api.MaxMicros, 1); ok {
		t.Error("a sum above MaxMicros was accepted")
	}
	if _, ok := api.Add(math.MaxInt64, math.MaxInt64); ok {
		t.Error("an overflow was accepted")
	}
}

func TestLowest(t *testing.T) {
	t.Parallel()
	peer := api.Principal{Kind: api.Peer, Address: "0x1"}
	if got := api.Lowest(api.Principal{Kind: api.Creator}, peer, api.Principal{Kind: api.Self}); got != peer {
		t.Errorf("got %+v, want the peer", got)
	}
	if got := api.Lowest(); got.Kind != api.Self {
		t.Errorf("no input: got %+v, want self", got)
	}
	if got := api.Lowest(peer, api.Principal{Kind: "stranger"}); got.Kind != "stranger" {
		t.Errorf("an unknown kind: got %+v, want it to count as external", got)
	}
}

func TestGrant(t *testing.T) {
	t.Parallel()
	pub, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	other, _, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	g := api.Grant{Decision: "d", Agent: "a", Turn: "r.1", Index: 2, Tool: "exec", ArgsHash: "h", Expires: 7}
	token, err := g.Sign(key)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := api.VerifyGrant(token, other, pub); err != nil || got != g {
		t.Errorf("got %+v, %v, want %+v", got, err, g)
	}
	head, sig, _ := strings.Cut(token, ".")
	for name, bad := range map[string]string{
		"empty": "", "no signature": head, "cut": token[:len(token)-2], "other body": head[:len(head)-2] + "AA." + sig,
	} {
		if _, err := api.VerifyGrant(bad, pub); api.CodeOf(err) != api.Denied {
			t.Errorf("%s: got %v, want denied", name, err)
		}
	}
	if _, err := api.VerifyGrant(token, other); api.CodeOf(err) != api.Denied {
		t.Errorf("signed by another key: got %v, want denied", err)
	}
	if _, err := api.VerifyGrant(token); api.CodeOf(err) != api.Denied {
		t.Errorf("no key at all: got %v, want denied", err)
	}
}

func TestArgsHash(t *testing.T) {
	t.Parallel()
	hash := func(s string) string {
		h, err := api.ArgsHash(json.RawMessage(s))
		if err != nil {
			return "error"
		}
		return h
	}
	if hash(`{"b":1,"a":{"d":1.0,"c":"<"}}`) != hash(" { \"a\" : {\"c\":\"<\",\"d\":1.0} , \"b\":1 } ") {
		t.Error("two spellings of the same arguments hash differently")
	}
	for _, other := range []string{`{"b":2}`, `{"b":1.0}`, `{"a":1}`} {
		if hash(other) == hash(`{"b":1}`) {
			t.Errorf("%s hashes like another value", other)
		}
	}
	for _, bad := range []string{"", "{", `{} {}`, `{}x`} {
		if got := hash(bad); got != "error" {
			t.Errorf("%q: got %s, want an error", bad, got)
		}
	}
}

func TestErrors(t *testing.T) {
	t.Parallel()
	cause := &api.Error{Code: api.Denied, Reason: api.ReasonInsufficient, Message: "no money", Next: "fund the agent"}
	wrapped := fmt.Errorf("hold: %w", cause)
	if api.CodeOf(wrapped) != api.Denied || api.ReasonOf(wrapped) != api.ReasonInsufficient || api.Wire(wrapped) != cause {
		t.Errorf("a wrapped error lost its code: %v", wrapped)
	}
	foreign := errors.New("password=hunter2")
	if api.CodeOf(foreign) != api.Internal || strings.Contains(api.Wire(foreign).Error(), "hunter2") {
		t.Errorf("a foreign error crosses the wire as %v", api.Wire(foreign))
	}
	if api.CodeOf(nil) != "" {
		t.Error("nil has a code")
	}
}

func TestValidKey(t *testing.T) {
	t.Parallel()
	for key, want := range map[string]bool{
		"lucky-main_2": true, "": false, "a.b": false, "*": false, ">": false, "a b": false, "é": false,
		strings.Repeat("x", 128): true, strings.Repeat("x", 129): false,
	} {
		if got := api.ValidKey(key); got != want {
			t.Errorf("%q: got %v, want %v", key, got, want)
		}
	}
}

func FuzzDecode(f *testing.F) {
	for _, c := range api.Contracts() {
		b, err := api.Encode(c.Message)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var turn api.Turn
		if err := api.Decode(data, &turn); err == nil {
			if _, err := api.Encode(turn); err != nil {
				t.Errorf("decoded but does not encode: %v", err)
			}
		} else if api.CodeOf(err) != api.Invalid {
			t.Errorf("got %v, want invalid", err)
		}
		_, _ = api.ArgsHash(data)
		_, _ = api.VerifyGrant(string(data), make(ed25519.PublicKey, ed25519.PublicKeySize))
		_, _ = api.ParseMicros(string(data))
	})
}

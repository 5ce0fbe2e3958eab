package x402_test

import (
	"encoding/json"
	"maps"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/crypto"
	"github.com/google/go-cmp/cmp"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/services/treasury/internal/x402"
)

func TestAmounts(t *testing.T) {
	t.Parallel()
	for s, want := range map[string]api.Micros{"0": 0, "1": 1, "10000": 10_000, "9007199254740991": api.MaxMicros} {
		if got, err := x402.ParseAmount(s); err != nil || got != want || x402.FormatAmount(got) != s {
			t.Errorf("%q: got %d, %v", s, got, err)
		}
	}
	for _, s := range []string{
		"", "-1", "+1", "0x10", "1.0", "0.01", "1e6", " 1", "1 ", "01", "00", "1_000", "１", "9007199254740992", "18446744073709551617",
		strings.Repeat("9", 100), "NaN", "null",
	} {
		if got, err := x402.ParseAmount(s); err == nil || got != 0 {
			t.Errorf("%q: got %d, want a refusal", s, got)
		}
	}
}

// seller returns a price of one cent on Base Sepolia.
func seller() x402.Price {
	return x402.Price{
		Terms: x402.Terms{
			Network: x402.BaseSepolia, PayTo: common.HexToAddress("0x90F79bf6EB2c4f870365E785982E1f101E93b906"), Amount: 10_000, Timeout: 60, Version: x402.V2,
		},
		Resource: x402.Resource{URL: "http://127.0.0.1:14021/paid", Description: "one cent", MimeType: "application/json"},
	}
}

var (
	known  = x402.Networks{x402.Base, x402.BaseSepolia}
	key, _ = crypto.HexToECDSA("5de4111afa1a4b94908f83103eb1f1706367c2e68ca870fc3fb9a804cdab365a")
	me     = crypto.PubkeyToAddress(key.PublicKey)
	now    = time.Unix(1_795_227_000, 0)
)

// sign returns a payment of the price, in the shape of the version, after change.
func sign(t *testing.T, version int, change func(*x402.Authorization)) x402.Payment {
	t.Helper()
	price := seller()
	p := x402.Payment{Version: version, Scheme: x402.Exact, Network: price.Network.Written(version), Authorization: x402.Authorization{
		From: me, To: price.PayTo, Value: price.Amount, ValidAfter: now.Unix() - 600, ValidBefore: now.Unix() + 60, Nonce: [32]byte{1},
	}}
	if version == x402.V2 {
		h := http.Header{}
		body := x402.Demand{Price: price}.Write(h)
		cs, err := x402.ReadChallenges(h, body)
		if err != nil {
			t.Fatal(err)
		}
		p.Accepted, p.Resource, p.Extensions = &cs[0].Offers[0], cs[0].Resource, cs[0].Extensions
	}
	if change != nil {
		change(&p.Authorization)
	}
	digest := p.Authorization.Digest(price.Network)
	sig, err := crypto.Sign(digest[:], key)
	if err != nil {
		t.Fatal(err)
	}
	copy(p.Signature[:], sig)
	p.Signature[64] += 27
	return p
}

func TestVerify(t *testing.T) {
	t.Parallel()
	terms := seller().Terms
	for _, tt := range []struct {
		name   string
		change func(*x402.Authorization)
		after  func(*x402.Payment)
		terms  func(*x402.Terms)
		want   x402.Reason
	}{
		{name: "valid"},
		{name: "another scheme", after: func(p *x402.Payment) { p.Scheme = "upto" }, want: x402.BadScheme},
		{name: "another network", after: func(p *x402.Payment) { p.Network = "base" }, want: x402.OtherNetwork},
		{name: "no network", after: func(p *x402.Payment) { p.Network = "" }, want: x402.OtherNetwork},
		{name: "name of version 1", after: func(p *x402.Payment) { p.Network = "Base-Sepolia" }},
		{name: "less", change: func(a *x402.Authorization) { a.Value-- }, want: x402.BadValue},
		{name: "more", change: func(a *x402.Authorization) { a.Value++ }, want: x402.BadValue},
		{name: "to another", change: func(a *x402.Authorization) { a.To = common.Address{9} }, want: x402.BadRecipient},
		{name: "to itself", change: func(a *x402.Authorization) { a.To = me }, terms: func(t *x402.Terms) { t.PayTo = me }, want: x402.BadRecipient},
		{name: "from another", change: func(a *x402.Authorization) { a.From = common.Address{9} }, want: x402.BadSignature},
		{name: "changed after it was signed", after: func(p *x402.Payment) { p.Authorization.Nonce[0]++ }, want: x402.BadSignature},
		{name: "expired", change: func(a *x402.Authorization) { a.ValidBefore = now.Unix() }, want: x402.BadValidBefore},
		{name: "expires before it can be settled", change: func(a *x402.Authorization) { a.ValidBefore = now.Unix() + 5 }, want: x402.BadValidBefore},
		{name: "barely in time", change: func(a *x402.Authorization) { a.ValidBefore = now.Unix() + 6 }},
		{name: "valid for an hour", change: func(a *x402.Authorization) { a.ValidBefore = now.Unix() + 3600 }},
		{name: "valid for two hours", change: func(a *x402.Authorization) { a.ValidBefore = now.Unix() + 7200 }, want: x402.BadValidBefore},
		{name: "valid for ever", change: func(a *x402.Authorization) { a.ValidBefore = int64(api.MaxMicros) }, want: x402.BadValidBefore},
		{name: "not yet valid", change: func(a *x402.Authorization) { a.ValidAfter = now.Unix() + 1 }, want: x402.BadValidAfter},
		{name: "another token", terms: func(t *x402.Terms) { t.Network.Token = "USD Coin" }, want: x402.BadSignature},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			for _, version := range []int{x402.V1, x402.V2} {
				p, terms := sign(t, version, tt.change), terms
				if tt.terms != nil {
					tt.terms(&terms)
				}
				if tt.after != nil {
					tt.after(&p)
				}
				want := tt.want
				if version == x402.V1 && want == x402.BadValue {
					want = x402.BadValueV1
				}
				if version == x402.V2 && tt.name == "to itself" {
					want = x402.BadTerms // the accepted offer has another payee
				}
				if got := x402.ReasonOf(p.Verify(terms, now), ""); got != want {
					t.Errorf("version %d: got %q, want %q", version, got, want)
				}
			}
		})
	}
	p := sign(t, x402.V2, nil)
	p.Accepted.Amount = 1
	if got := x402.ReasonOf(p.Verify(terms, now), ""); got != x402.BadTerms {
		t.Errorf("an offer that was not made: got %q, want %q", got, x402.BadTerms)
	}
}

// TestDemand checks the three forms of a challenge in one answer (docs/x402.md,
// Challenge).
func TestDemand(t *testing.T) {
	t.Parallel()
	h := http.Header{}
	price := seller()
	body := x402.Demand{Price: price, Reason: "x"}.Write(h)
	cs, err := x402.ReadChallenges(h, body)
	if err != nil || len(cs) != 2 {
		t.Fatalf("challenges: got %+v, %v", cs, err)
	}
	for i, version := range []int{x402.V2, x402.V1} {
		c := cs[i]
		if c.Version != version || c.Error != "x" || len(c.Offers) != 1 {
			t.Fatalf("challenge: got %+v, want version %d with one offer", c, version)
		}
		want := price.Terms
		want.Version = version
		if got, err := c.Offers[0].Terms(known); err != nil || got != want {
			t.Errorf("terms: got %+v, %v, want %+v", got, err, want)
		}
		if of := c.Offers[0]; of.Token != "USDC" || of.Domain != "2" {
			t.Errorf("domain: got %s %s", of.Token, of.Domain)
		}
	}
	if string(cs[0].Resource) != `{"url":"http://127.0.0.1:14021/paid","description":"one cent","mimeType":"application/json"}` {
		t.Errorf("resource: got %s", cs[0].Resource)
	}
	// The reference reads this header as JSON or base64, maxAmountRequired as atomic units
	// from version 2 on, and knows the two networks by their CAIP-2 ids.
	var reference struct {
		Version int `json:"x402Version"`
		Accepts []map[string]any
	}
	if err := json.Unmarshal(unbase64(t, h.Get(x402.HeaderReference)), &reference); err != nil {
		t.Fatal(err)
	}
	if a := reference.Accepts[0]; reference.Version != 2 || a["maxAmountRequired"] != "10000" || a["network"] != "eip155:84532" || a["payTo"] != price.PayTo.Hex() {
		t.Errorf("challenge of the reference: got %+v", reference)
	}
}

func TestOffers(t *testing.T) {
	t.Parallel()
	good := map[string]any{
		"scheme": "exact", "network": "base", "maxAmountRequired": "10000", "payTo": me.Hex(), "asset": x402.Base.Asset.Hex(), "maxTimeoutSeconds": 60,
	}
	offers := func(version int, change map[string]any) ([]x402.Offer, error) {
		o := maps.Clone(good)
		maps.Copy(o, change)
		data, err := json.Marshal(map[string]any{"x402Version": version, "accepts": []any{o}})
		if err != nil {
			t.Fatal(err)
		}
		c, err := x402.DecodeChallenge(data)
		return c.Offers, err
	}
	if got, err := offers(1, nil); err != nil || len(got) != 1 {
		t.Fatalf("a valid offer: got %+v, %v", got, err)
	}
	for _, bad := range []map[string]any{
		{"maxAmountRequired": 10000},
		{"maxAmountRequired": "0.01"},
		{"maxAmountRequired": "-1"},
		{"maxAmountRequired": nil},
		{"payTo": "me"},
		{"asset": ""},
		{"maxTimeoutSeconds": 0},
		{"maxTimeoutSeconds": -1},
		{"maxTimeoutSeconds": 1.5},
		{"maxTimeoutSeconds": "60"},
		{"extra": "x"},
		{"scheme": 1},
	} {
		if got, err := offers(1, bad); err != nil || len(got) != 0 {
			t.Errorf("%v: got %+v, %v, want no offer", bad, got, err)
		}
	}
	if got, err := offers(2, nil); err != nil || len(got) != 0 {
		t.Errorf("an offer of version 2 without amount: got %+v, %v", got, err)
	}
	for name, tt := range map[string]struct {
		change map[string]any
		want   x402.Reason
	}{
		"scheme":   {map[string]any{"scheme": "upto"}, x402.BadScheme},
		"network":  {map[string]any{"network": "polygon"}, x402.BadNetwork},
		"asset":    {map[string]any{"asset": me.Hex()}, x402.BadTerms},
		"transfer": {map[string]any{"extra": map[string]any{"assetTransferMethod": "permit2"}}, x402.BadTerms},
		"payee":    {map[string]any{"payTo": common.Address{}.Hex()}, x402.BadTerms},
	} {
		got, err := offers(1, tt.change)
		if err != nil || len(got) != 1 {
			t.Fatalf("%s: got %+v, %v", name, got, err)
		}
		if _, err := got[0].Terms(known); x402.ReasonOf(err, "") != tt.want {
			t.Errorf("%s: got %v, want %s", name, err, tt.want)
		}
	}
}

// TestFacilitatorOfOffer reads who settles from what sellers write in extra.
func TestFacilitatorOfOffer(t *testing.T) {
	t.Parallel()
	for extra, want := range map[string]string{
		`{"facilitatorUrl":"https://X402.Example.com:8443/v2"}`:       "x402.example.com",
		`{"facilitator":"x402.example.com"}`:                          "x402.example.com",
		`{"facilitator":"` + me.Hex() + `"}`:                          strings.ToLower(me.Hex()),
		`{"facilitatorUrl":7,"facilitator":"https://second.example"}`: "second.example",
		`{"facilitatorUrl":"two words"}`:                              "",
		`{"facilitatorUrl":"https://\u0000"}`:                         "",
		`{"facilitatorUrl":"` + strings.Repeat("x", 254) + `"}`:       "",
		`{"facilitator":{"url":"https://x402.example.com"}}`:          "",
		`{"name":"USDC","version":"2"}`:                               "",
	} {
		c, err := x402.DecodeChallenge([]byte(`{"x402Version":2,"accepts":[{"scheme":"exact","network":"eip155:8453","amount":"1","payTo":"` + me.Hex() +
			`","asset":"` + x402.Base.Asset.Hex() + `","extra":` + extra + `}]}`))
		if err != nil || len(c.Offers) != 1 {
			t.Errorf("%s: got %+v, %v", extra, c, err)
			continue
		}
		terms, err := c.Offers[0].Terms(known)
		if err != nil || terms.Facilitator != want {
			t.Errorf("%s: got %q, %v, want %q", extra, terms.Facilitator, err, want)
		}
	}
}

func TestOrder(t *testing.T) {
	t.Parallel()
	price := seller()
	for _, version := range []int{x402.V1, x402.V2} {
		p := sign(t, version, nil)
		raw, err := json.Marshal(&p)
		if err != nil {
			t.Fatal(err)
		}
		sent := x402.Order{Payment: p, Offer: price.Offer(&p), Raw: raw}
		data, err := json.Marshal(&sent)
		if err != nil {
			t.Fatal(err)
		}
		got, err := x402.DecodeOrder(data)
		if err != nil {
			t.Fatalf("version %d: %v in %s", version, err, data)
		}
		terms, err := got.Terms(known)
		if err != nil || got.Payment.Verify(terms, now) != nil {
			t.Errorf("version %d: terms %+v, %v", version, terms, err)
		}
		got.Offer.Token = "USD Coin"
		if _, err := got.Terms(known); x402.ReasonOf(err, "") != x402.BadTokenName {
			t.Errorf("version %d, another name of the token: got %v", version, err)
		}
		got.Offer.Token = ""
		if _, err := got.Terms(known); x402.ReasonOf(err, "") != x402.NoDomain {
			t.Errorf("version %d, no name of the token: got %v", version, err)
		}
	}
}

func TestReceipts(t *testing.T) {
	t.Parallel()
	want := x402.Receipt{Success: true, Transaction: "0x12", Network: "eip155:84532", Payer: me.Hex()}
	for version, header := range map[int]string{x402.V1: x402.HeaderReceiptV1, x402.V2: x402.HeaderReceipt} {
		p := sign(t, version, nil)
		name, value := want.Header(&p, x402.BaseSepolia)
		got, ok := x402.ReadReceipt(http.Header{http.CanonicalHeaderKey(name): {value}})
		want := want
		want.Network = x402.BaseSepolia.Written(version)
		if diff := cmp.Diff(want, got); name != header || !ok || diff != "" {
			t.Errorf("version %d: %s, %t (-want +got):\n%s", version, name, ok, diff)
		}
	}
	for _, bad := range []string{"", "!", b64(map[string]any{}), b64(map[string]any{"success": "true"}), b64([]int{1})} {
		if r, ok := x402.ReadReceipt(http.Header{"Payment-Response": {bad}}); ok {
			t.Errorf("%q: got %+v", bad, r)
		}
	}
	if got := x402.Reason("insufficient_funds").Known(); got != x402.NoFunds {
		t.Errorf("a name of the specification: got %q", got)
	}
}

func TestIdentifier(t *testing.T) {
	t.Parallel()
	p := sign(t, x402.V2, nil)
	if id, err := p.Identifier(); id != "" || err != nil {
		t.Errorf("no identifier: got %q, %v", id, err)
	}
	p.Extensions = x402.Identified(p.Extensions, "pay_0123456789abcdef")
	if id, err := p.Identifier(); id != "pay_0123456789abcdef" || err != nil {
		t.Errorf("identifier: got %q, %v", id, err)
	}
	p.Extensions = x402.Identified(p.Extensions, "short")
	if _, err := p.Identifier(); x402.ReasonOf(err, "") != x402.BadPayload {
		t.Errorf("an identifier of 5 letters: got %v", err)
	}
	if got := x402.Identified(nil, "pay_0123456789abcdef"); got != nil {
		t.Errorf("a seller that reads none: got %v", got)
	}
}

func TestReadsExactly(t *testing.T) {
	t.Parallel()
	p := sign(t, x402.V1, nil)
	text, err := json.Marshal(&p)
	if err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string][2]string{
		"a key in another case":     {`"value"`, `"Value"`},
		"a number that is no text":  {`"10000"`, `10000`},
		"a hex amount":              {`"10000"`, `"0x2710"`},
		"a negative amount":         {`"10000"`, `"-10000"`},
		"a short nonce":             {`"nonce":"0x01`, `"nonce":"0x`},
		"an unknown version":        {`"x402Version":1`, `"x402Version":3`},
		"a fraction as the version": {`"x402Version":1`, `"x402Version":1.5`},
		"a second value":            {`{"x402Version"`, `{}{"x402Version"`},
		"no authorization":          {`"authorization"`, `"authorisation"`},
		"a short signature":         {`"signature":"0x`, `"signature":"0x00`},
	} {
		changed := strings.Replace(string(text), change[0], change[1], 1)
		if changed == string(text) {
			t.Fatalf("%s: %s is not in %s", name, change[0], text)
		}
		if got, err := x402.DecodePayment([]byte(changed)); err == nil {
			t.Errorf("%s: got %+v", name, got)
		}
	}
}

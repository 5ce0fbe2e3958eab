package x402_test

import (
	"encoding/base64"
	"encoding/json"
	"net/http"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/anima-run/anima/services/treasury/internal/x402"
)

func unbase64(t *testing.T, s string) []byte {
	t.Helper()
	data, err := base64.StdEncoding.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// FuzzAmount checks that an accepted amount is written as it was read.
func FuzzAmount(f *testing.F) {
	for _, s := range []string{"0", "10000", "-1", "0x1", "1e9", "9007199254740993"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if n, err := x402.ParseAmount(s); err == nil && (n < 0 || x402.FormatAmount(n) != s) {
			t.Errorf("%q: got %d", s, n)
		}
	})
}

// FuzzChallenge checks that every offer that is accepted from a challenge has an amount, a
// payee and a time, and is one of the known tokens after its terms are taken.
func FuzzChallenge(f *testing.F) {
	h := http.Header{}
	body := x402.Demand{Price: seller()}.Write(h)
	f.Add(h.Get(x402.HeaderRequired), body)
	f.Add("", body)
	f.Add("e30=", []byte(`{"x402Version":2,"accepts":[{}]}`))
	f.Fuzz(func(t *testing.T, header string, body []byte) {
		h := http.Header{}
		if header != "" {
			h.Set(x402.HeaderRequired, header)
		}
		cs, err := x402.ReadChallenges(h, body)
		if err != nil {
			return
		}
		for _, c := range cs {
			for _, of := range c.Offers {
				if of.Amount < 0 || of.Timeout <= 0 || !json.Valid(of.Raw) {
					t.Errorf("offer: got %+v", of)
				}
				if terms, err := of.Terms(known); err == nil && terms.Network.Asset != of.Asset {
					t.Errorf("terms: got %+v of %+v", terms, of)
				}
			}
		}
	})
}

// FuzzPayment checks that a payment that is read is the same after it is written.
func FuzzPayment(f *testing.F) {
	for _, version := range []int{x402.V1, x402.V2} {
		p := sign(&testing.T{}, version, nil)
		_, value := p.Header()
		f.Add(value)
	}
	f.Fuzz(func(t *testing.T, value string) {
		p, ok, err := x402.ReadPayment(http.Header{"Payment-Signature": {value}})
		if err != nil || !ok {
			return
		}
		data, err := json.Marshal(&p)
		if err != nil {
			t.Fatal(err)
		}
		again, err := x402.DecodePayment(data)
		if err != nil {
			t.Fatalf("%s: %v", data, err)
		}
		again.Extensions, p.Extensions = nil, nil
		if p.Accepted != nil {
			again.Accepted.Raw, p.Accepted.Raw = nil, nil
		}
		again.Resource, p.Resource = nil, nil
		if diff := cmp.Diff(p, again); diff != "" {
			t.Errorf("(-read +again):\n%s", diff)
		}
		_ = p.Verify(seller().Terms, now)
		_, _ = p.Identifier()
	})
}

// FuzzOrder checks that the decoder of a facilitator's requests does not panic, and that
// terms have a positive time.
func FuzzOrder(f *testing.F) {
	for _, version := range []int{x402.V1, x402.V2} {
		p := sign(&testing.T{}, version, nil)
		raw, err := json.Marshal(&p)
		if err != nil {
			f.Fatal(err)
		}
		data, err := json.Marshal(&x402.Order{Payment: p, Offer: seller().Offer(&p), Raw: raw})
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		o, err := x402.DecodeOrder(data)
		if err != nil {
			return
		}
		if terms, err := o.Terms(known); err == nil && (terms.Timeout <= 0 || terms.Amount < 0) {
			t.Errorf("terms: got %+v", terms)
		}
	})
}

// FuzzReceipt checks the decoders of what sellers and facilitators answer.
func FuzzReceipt(f *testing.F) {
	f.Add([]byte(`{"success":true,"transaction":"0x1","network":"base","payer":"0x2"}`))
	f.Add([]byte(`{"isValid":false,"invalidReason":"insufficient_funds"}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		if r, err := x402.DecodeReceipt(data); err == nil {
			again, err := json.Marshal(r)
			if err != nil {
				t.Fatal(err)
			}
			if got, err := x402.DecodeReceipt(again); err != nil || got != r {
				t.Errorf("got %+v, %v, want %+v", got, err, r)
			}
		}
		_, _ = x402.DecodeVerdict(data)
	})
}

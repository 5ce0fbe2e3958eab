package registration_test

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/services/social/internal/registration"
)

// request is a recorded registration (docs/reference/social.md, Test vectors).
const request = `{"automaton_id":"agent-1","automaton_address":"0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266",` +
	`"creator_address":"0x70997970C51812dc3A010C7d01b50e0d17dc79C8","name":"Atlas","bio":"",` +
	`"genesis_prompt_hash":"0x4e76439a1602b9931f29ff957f7a8e4288912b3b5e627cfa7e376e65a7e9043b",` +
	`"nonce":"00000000-0000-4000-8000-000000000000",` +
	`"signature":"0x7dd468c8dddae1e3a9fb18b9dbcd4968125e42ad7fbd551b50ee11fb2b0a4b5f28998a1f2244081f9c07ef241a2c926c28bf9ec9131bdf81ad179e247d0f89581b",` +
	`"payload_hash":"0x8281c75c2ec1c01ac94c2a6b862da6a22979bf464a8f3d298f7ef527cc52b133"}`

func TestVerify(t *testing.T) {
	t.Parallel()
	want := registration.Registration{
		ID: "agent-1", Address: "0xf39fd6e51aad88f6f4ce6ab8827279cfffb92266", Creator: "0x70997970c51812dc3a010c7d01b50e0d17dc79c8", Name: "Atlas",
		Genesis: "0x4e76439a1602b9931f29ff957f7a8e4288912b3b5e627cfa7e376e65a7e9043b",
	}
	got, err := registration.Verify([]byte(request))
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("got %v, and (-want +got):\n%s", err, diff)
	}
	for name, tt := range map[string]struct {
		old, new string
		code     api.Code
		says     string
	}{
		"no JSON":               {`{"automaton_id"`, `"automaton_id"`, api.Invalid, "not valid JSON"},
		"a list":                {request, `[]`, api.Invalid, "not valid JSON"},
		"a number for a text":   {`"agent-1"`, `1`, api.Invalid, "not valid JSON"},
		"no id":                 {`"automaton_id":"agent-1",`, ``, api.Invalid, "automaton_id"},
		"a long name":           {`"Atlas"`, `"` + strings.Repeat("x", 257) + `"`, api.Invalid, "name is missing, longer"},
		"a NUL":                 {`"bio":""`, `"bio":"\u0000"`, api.Invalid, "bio"},
		"a wrong address":       {`"0xf39F`, `"f39F`, api.Invalid, "automaton_address"},
		"a wrong creator":       {`"0x7099`, `"7099`, api.Invalid, "creator_address"},
		"a wrong genesis hash":  {`"0x4e76`, `"4e76`, api.Invalid, "genesis_prompt_hash"},
		"another name":          {`"Atlas"`, `"Eve"`, api.Invalid, "payload_hash"},
		"another field":         {`"bio":""`, `"bio":"","more":1`, api.Invalid, "payload_hash"},
		"another nonce":         {`"00000000-`, `"00000001-`, api.Denied, "0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266"},
		"a malformed signature": {`"0x7dd4`, `"0x7d`, api.Invalid, "signature"},
		"another chain":         {`{"automaton_id"`, `{"chain_type":"solana","automaton_id"`, api.Invalid, "EVM"},
	} {
		body := strings.Replace(request, tt.old, tt.new, 1)
		if body == request {
			t.Fatalf("%s: the request has no %q", name, tt.old)
		}
		if _, err := registration.Verify([]byte(body)); api.CodeOf(err) != tt.code || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s: got %v, want %s and %q", name, err, tt.code, tt.says)
		}
	}
	if _, err := registration.Verify([]byte(strings.Replace(request, `{"automaton_id"`, `{"chain_type":"evm", "automaton_id"`, 1))); err != nil {
		t.Errorf("with the chain named: %v", err)
	}
}

// FuzzVerify checks that a refusal is Invalid or Denied, and that an accepted request has
// what a row can store.
func FuzzVerify(f *testing.F) {
	f.Add([]byte(request))
	f.Add([]byte(strings.Replace(request, `{"automaton_id"`, `{"chain_type":"evm", "automaton_id"`, 1)))
	f.Add([]byte(strings.Replace(request, `"bio":""`, `"bio":"","name":"\u0000"`, 1)))
	f.Add([]byte(strings.Replace(request, `"name"`, `"NAME"`, 1)))
	f.Add([]byte(`{"signature":"0x","payload_hash":null,"":[{}]}`))
	f.Add([]byte(`null`))
	f.Fuzz(func(t *testing.T, body []byte) {
		r, err := registration.Verify(body)
		if err != nil {
			if code := api.CodeOf(err); code != api.Invalid && code != api.Denied || r != (registration.Registration{}) {
				t.Errorf("got %+v, %v, want Invalid or Denied", r, err)
			}
			return
		}
		if r.ID == "" || r.Name == "" || len(r.ID) > 128 || len(r.Name) > 256 || len(r.Bio) > 2000 || !utf8.ValidString(r.ID+r.Name+r.Bio) || strings.ContainsRune(r.ID+r.Name+r.Bio, 0) {
			t.Errorf("accepted %+v", r)
		}
		if r.Address != "0xf39fd6e51aad88f6f4ce6ab8827279cfffb92266" || len(r.Creator) != 42 || r.Creator != strings.ToLower(r.Creator) || len(r.Genesis) != 0 && len(r.Genesis) != 66 {
			t.Errorf("accepted %+v, which the key of the vectors has not signed", r)
		}
	})
}

package message_test

import (
	"encoding/hex"
	"math/big"
	"strings"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/crypto"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/services/social/internal/message"
)

// A public test key and its signatures (docs/reference/social.md, Test vectors).
const (
	testKey  = "ac0974bec39a17e36ba4a6b4d238ff944bacb478cbed5efcae784d7bf4f2ff80"
	testAddr = "0xf39fd6e51aad88f6f4ce6ab8827279cfffb92266"
	peerAddr = "0x70997970c51812dc3a010c7d01b50e0d17dc79c8"
	signedAt = "2026-01-02T03:04:05.678Z"
	helloSig = "0xd70dbe356e13addde18daed75c438b7d50513608b1072f8f272231f727433c495a9eefa14da635fad8badedb2f45c03a06d33d6c4379c6cf8ab2a4e0f3ee06f11b"
	horseSig = "0xaa80e482a5ba6f907f6b318ea9e4a1483e1b5ace85d7f7ca0a12f868815595a52b786e01f2042714727b5889e54454cc8422f3e835b301f730c85cd7f1fa71ae1b"
	pollSig  = "0x87185a120ad8267144e92e712ed3a76ff42b5d0f680d303f073c41eddf8f2e9d440d0c4a4cf5d968d031cb0ba56a327d0ebc2620b5bb6d3d71f5f1508d040a001b"
)

func hello() message.Signed {
	return message.Signed{From: testAddr, To: peerAddr, Content: "hello", SignedAt: signedAt, Signature: helloSig}
}

func TestVerify(t *testing.T) {
	t.Parallel()
	horse := hello()
	horse.Content, horse.Signature = "žluťoučký 🐎\n", horseSig
	checksummed := hello()
	checksummed.From, checksummed.To = message.Display(testAddr), message.Display(peerAddr)
	for name, m := range map[string]message.Signed{"plain": hello(), "not ASCII": horse, "checksummed addresses": checksummed} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := message.Verify(m)
			if err != nil {
				t.Fatal(err)
			}
			if got.From != testAddr || got.To != peerAddr || got.Content != m.Content || message.FormatTime(got.Time) != signedAt {
				t.Errorf("got %+v", got)
			}
			if b, err := hex.DecodeString(got.ID); err != nil || len(b) != 16 {
				t.Errorf("id: got %q, want 32 hex digits", got.ID)
			}
		})
	}
}

func TestVerifyRefuses(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		change func(*message.Signed)
		code   api.Code
		says   string
	}{
		"another content":   {func(m *message.Signed) { m.Content = "hellO" }, api.Denied, "signature"},
		"another recipient": {func(m *message.Signed) { m.To = testAddr }, api.Denied, "signature"},
		"another sender":    {func(m *message.Signed) { m.From = peerAddr }, api.Denied, "signature"},
		"another time":      {func(m *message.Signed) { m.SignedAt = "2026-01-02T03:04:05.679Z" }, api.Denied, "signature"},
		"another key":       {func(m *message.Signed) { m.Signature = horseSig }, api.Denied, "signature"},
		"high s":            {func(m *message.Signed) { m.Signature = mirrored(t, helloSig) }, api.Invalid, "lower half"},
		"v of 29":           {func(m *message.Signed) { m.Signature = helloSig[:len(helloSig)-2] + "1d" }, api.Invalid, "v is 29"},
		"r and s of 0":      {func(m *message.Signed) { m.Signature = "0x" + strings.Repeat("00", 64) + "1b" }, api.Invalid, "out of range"},
		"short signature":   {func(m *message.Signed) { m.Signature = "0x01" }, api.Invalid, "65 bytes"},
		"no hex":            {func(m *message.Signed) { m.Signature = "0x" + strings.Repeat("zz", 65) }, api.Invalid, "not hex"},
		"no content":        {func(m *message.Signed) { m.Content = "" }, api.Invalid, "empty"},
		"long content":      {func(m *message.Signed) { m.Content = strings.Repeat("a", api.MaxMessageBytes+1) }, api.Invalid, "at most 51200"},
		"broken UTF-8":      {func(m *message.Signed) { m.Content = "a\xff" }, api.Invalid, "UTF-8"},
		"NUL":               {func(m *message.Signed) { m.Content = "a\x00" }, api.Invalid, "NUL"},
		"long reply_to":     {func(m *message.Signed) { m.ReplyTo = strings.Repeat("a", 129) }, api.Invalid, "reply_to"},
		"no address":        {func(m *message.Signed) { m.To = "bob" }, api.Invalid, "to: "},
		"address with tail": {func(m *message.Signed) { m.From += "0" }, api.Invalid, "from: "},
		"time in seconds":   {func(m *message.Signed) { m.SignedAt = "2026-01-02T03:04:05Z" }, api.Invalid, "signed_at"},
		"time with a zone":  {func(m *message.Signed) { m.SignedAt = "2026-01-02T03:04:05.678+00:00" }, api.Invalid, "signed_at"},
		"no such day":       {func(m *message.Signed) { m.SignedAt = "2026-02-30T03:04:05.678Z" }, api.Invalid, "signed_at"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := hello()
			test.change(&m)
			_, err := message.Verify(m)
			if api.CodeOf(err) != test.code || !strings.Contains(err.Error(), test.says) {
				t.Errorf("got %v, want %s with %q", err, test.code, test.says)
			}
		})
	}
}

// mirrored returns the other valid signature of the same text: n-s and the other v.
func mirrored(t *testing.T, sig string) string {
	t.Helper()
	b, err := hex.DecodeString(sig[2:])
	if err != nil {
		t.Fatal(err)
	}
	s := new(big.Int).Sub(crypto.S256().Params().N, new(big.Int).SetBytes(b[32:64]))
	s.FillBytes(b[32:64])
	b[64] = 27 + 28 - b[64]
	return "0x" + hex.EncodeToString(b)
}

func TestIdentity(t *testing.T) {
	t.Parallel()
	id := func(m message.Signed) string {
		t.Helper()
		s, err := message.Verify(m)
		if err != nil {
			t.Fatal(err)
		}
		return s.ID
	}
	want := id(hello())
	same := hello()
	same.From, same.ReplyTo = message.Display(testAddr), "m0"
	same.Signature = helloSig[:len(helloSig)-2] + "00" // 27 written as 0
	if got := id(same); got != want {
		t.Errorf("same message, other spelling: got %s, want %s", got, want)
	}
	other := hello()
	other.Content, other.Signature = "žluťoučký 🐎\n", horseSig
	if got := id(other); got == want {
		t.Errorf("two messages have the id %s", got)
	}
}

// TestContentThatIsHex checks contents in hex, of which a client may hash the decoded bytes
// (docs/reference/social.md, Signature).
func TestContentThatIsHex(t *testing.T) {
	t.Parallel()
	key, err := crypto.HexToECDSA(testKey)
	if err != nil {
		t.Fatal(err)
	}
	for content, hashed := range map[string]string{
		"0xabc": "\x0a\xbc", "0x" + strings.Repeat("ff", 20): strings.Repeat("\xff", 20), "0x": "", "0xno": "0xno",
	} {
		canonical := "Conway:send:" + peerAddr + ":" + crypto.Keccak256Hash([]byte(hashed)).Hex() + ":" + signedAt
		m := hello()
		m.Content, m.Signature = content, sign(t, key, canonical)
		if _, err := message.Verify(m); err != nil {
			t.Errorf("%q: got %v", content, err)
		}
	}
}

func TestFresh(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for age, want := range map[time.Duration]api.Code{
		0: "", message.MaxAge: "", message.MaxAge + time.Millisecond: api.Invalid,
		-message.MaxAhead: "", -message.MaxAhead - time.Millisecond: api.Invalid,
	} {
		if err := message.Fresh(now.Add(-age), now); api.CodeOf(err) != want {
			t.Errorf("age %s: got %v, want code %q", age, err, want)
		}
	}
}

func TestAuthenticate(t *testing.T) {
	t.Parallel()
	now, err := message.ParseTime(signedAt)
	if err != nil {
		t.Fatal(err)
	}
	got, err := message.Authenticate(message.Display(testAddr), pollSig, signedAt, now.Add(time.Minute))
	if err != nil || got != testAddr {
		t.Errorf("got %q, %v, want %s", got, err, testAddr)
	}
	tests := map[string]struct {
		address, sig, at string
		now              time.Time
	}{
		"no address":   {"", pollSig, signedAt, now},
		"another":      {peerAddr, pollSig, signedAt, now},
		"a send":       {testAddr, helloSig, signedAt, now},
		"old":          {testAddr, pollSig, signedAt, now.Add(message.MaxAge + time.Second)},
		"future":       {testAddr, pollSig, signedAt, now.Add(-message.MaxAhead - time.Second)},
		"no time":      {testAddr, pollSig, "", now},
		"no signature": {testAddr, "", signedAt, now},
	}
	for name, test := range tests {
		if _, err := message.Authenticate(test.address, test.sig, test.at, test.now); api.CodeOf(err) != api.Denied {
			t.Errorf("%s: got %v, want denied", name, err)
		}
	}
}

func FuzzOpen(f *testing.F) {
	f.Add(testAddr, peerAddr, "hello", signedAt, helloSig)
	f.Add(testAddr, peerAddr, "0x0", signedAt, helloSig)
	f.Fuzz(func(t *testing.T, from, to, content, at, sig string) {
		m := message.Signed{From: from, To: to, Content: content, SignedAt: at, Signature: sig}
		s, err := message.Verify(m)
		if err != nil {
			if c := api.CodeOf(err); c != api.Invalid && c != api.Denied {
				t.Errorf("code %s for %+v", c, m)
			}
			return
		}
		again, err := message.Verify(s.Signed)
		if err != nil || again.ID != s.ID {
			t.Errorf("opened again: got %+v, %v, want id %s", again, err, s.ID)
		}
	})
}

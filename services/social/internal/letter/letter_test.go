package letter_test

import (
	"encoding/hex"
	"math/big"
	"strings"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/crypto"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/services/social/internal/letter"
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

func hello() letter.Letter {
	return letter.Letter{From: testAddr, To: peerAddr, Content: "hello", SignedAt: signedAt, Signature: helloSig}
}

func TestOpen(t *testing.T) {
	t.Parallel()
	horse := hello()
	horse.Content, horse.Signature = "žluťoučký 🐎\n", horseSig
	checksummed := hello()
	checksummed.From, checksummed.To = letter.Display(testAddr), letter.Display(peerAddr)
	for name, l := range map[string]letter.Letter{"plain": hello(), "not ASCII": horse, "checksummed addresses": checksummed} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := letter.Open(l)
			if err != nil {
				t.Fatal(err)
			}
			if got.From != testAddr || got.To != peerAddr || got.Content != l.Content || letter.FormatTime(got.Time) != signedAt {
				t.Errorf("got %+v", got)
			}
			if b, err := hex.DecodeString(got.ID); err != nil || len(b) != 16 {
				t.Errorf("id: got %q, want 32 hex digits", got.ID)
			}
		})
	}
}

func TestOpenRefuses(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		change func(*letter.Letter)
		code   api.Code
		says   string
	}{
		"another content":   {func(l *letter.Letter) { l.Content = "hellO" }, api.Denied, "signature"},
		"another recipient": {func(l *letter.Letter) { l.To = testAddr }, api.Denied, "signature"},
		"another sender":    {func(l *letter.Letter) { l.From = peerAddr }, api.Denied, "signature"},
		"another time":      {func(l *letter.Letter) { l.SignedAt = "2026-01-02T03:04:05.679Z" }, api.Denied, "signature"},
		"another key":       {func(l *letter.Letter) { l.Signature = horseSig }, api.Denied, "signature"},
		"high s":            {func(l *letter.Letter) { l.Signature = mirrored(t, helloSig) }, api.Invalid, "lower half"},
		"v of 29":           {func(l *letter.Letter) { l.Signature = helloSig[:len(helloSig)-2] + "1d" }, api.Invalid, "v is 29"},
		"r and s of 0":      {func(l *letter.Letter) { l.Signature = "0x" + strings.Repeat("00", 64) + "1b" }, api.Invalid, "out of range"},
		"short signature":   {func(l *letter.Letter) { l.Signature = "0x01" }, api.Invalid, "65 bytes"},
		"no hex":            {func(l *letter.Letter) { l.Signature = "0x" + strings.Repeat("zz", 65) }, api.Invalid, "not hex"},
		"no content":        {func(l *letter.Letter) { l.Content = "" }, api.Invalid, "empty"},
		"long content":      {func(l *letter.Letter) { l.Content = strings.Repeat("a", api.MaxMessageBytes+1) }, api.Invalid, "at most 51200"},
		"broken UTF-8":      {func(l *letter.Letter) { l.Content = "a\xff" }, api.Invalid, "UTF-8"},
		"NUL":               {func(l *letter.Letter) { l.Content = "a\x00" }, api.Invalid, "NUL"},
		"long reply_to":     {func(l *letter.Letter) { l.ReplyTo = strings.Repeat("a", 129) }, api.Invalid, "reply_to"},
		"no address":        {func(l *letter.Letter) { l.To = "bob" }, api.Invalid, "to: "},
		"address with tail": {func(l *letter.Letter) { l.From += "0" }, api.Invalid, "from: "},
		"time in seconds":   {func(l *letter.Letter) { l.SignedAt = "2026-01-02T03:04:05Z" }, api.Invalid, "signed_at"},
		"time with a zone":  {func(l *letter.Letter) { l.SignedAt = "2026-01-02T03:04:05.678+00:00" }, api.Invalid, "signed_at"},
		"no such day":       {func(l *letter.Letter) { l.SignedAt = "2026-02-30T03:04:05.678Z" }, api.Invalid, "signed_at"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := hello()
			test.change(&l)
			_, err := letter.Open(l)
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
	id := func(l letter.Letter) string {
		t.Helper()
		s, err := letter.Open(l)
		if err != nil {
			t.Fatal(err)
		}
		return s.ID
	}
	want := id(hello())
	same := hello()
	same.From, same.ReplyTo = letter.Display(testAddr), "m0"
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
		l := hello()
		l.Content, l.Signature = content, sign(t, key, canonical)
		if _, err := letter.Open(l); err != nil {
			t.Errorf("%q: got %v", content, err)
		}
	}
}

func TestFresh(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for age, want := range map[time.Duration]api.Code{
		0: "", letter.MaxAge: "", letter.MaxAge + time.Millisecond: api.Invalid,
		-letter.MaxAhead: "", -letter.MaxAhead - time.Millisecond: api.Invalid,
	} {
		if err := letter.Fresh(now.Add(-age), now); api.CodeOf(err) != want {
			t.Errorf("age %s: got %v, want code %q", age, err, want)
		}
	}
}

func TestAuthenticate(t *testing.T) {
	t.Parallel()
	now, err := letter.ParseTime(signedAt)
	if err != nil {
		t.Fatal(err)
	}
	got, err := letter.Authenticate(letter.Display(testAddr), pollSig, signedAt, now.Add(time.Minute))
	if err != nil || got != testAddr {
		t.Errorf("got %q, %v, want %s", got, err, testAddr)
	}
	tests := map[string]struct {
		address, sig, at string
		now              time.Time
	}{
		"nobody":       {"", pollSig, signedAt, now},
		"another":      {peerAddr, pollSig, signedAt, now},
		"a send":       {testAddr, helloSig, signedAt, now},
		"old":          {testAddr, pollSig, signedAt, now.Add(letter.MaxAge + time.Second)},
		"future":       {testAddr, pollSig, signedAt, now.Add(-letter.MaxAhead - time.Second)},
		"no time":      {testAddr, pollSig, "", now},
		"no signature": {testAddr, "", signedAt, now},
	}
	for name, test := range tests {
		if _, err := letter.Authenticate(test.address, test.sig, test.at, test.now); api.CodeOf(err) != api.Denied {
			t.Errorf("%s: got %v, want denied", name, err)
		}
	}
}

func FuzzOpen(f *testing.F) {
	f.Add(testAddr, peerAddr, "hello", signedAt, helloSig)
	f.Add(testAddr, peerAddr, "0x0", signedAt, helloSig)
	f.Fuzz(func(t *testing.T, from, to, content, at, sig string) {
		l := letter.Letter{From: from, To: to, Content: content, SignedAt: at, Signature: sig}
		s, err := letter.Open(l)
		if err != nil {
			if c := api.CodeOf(err); c != api.Invalid && c != api.Denied {
				t.Errorf("code %s for %+v", c, l)
			}
			return
		}
		again, err := letter.Open(s.Letter)
		if err != nil || again.ID != s.ID {
			t.Errorf("opened again: got %+v, %v, want id %s", again, err, s.ID)
		}
	})
}

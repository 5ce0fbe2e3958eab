package auth

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/anima-run/anima/pkg/api"
)

// signIn is the message of existing clients; its address is that of a public test key.
const signIn = "conway.tech wants you to sign in with your Ethereum account:\n0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266\n\n" +
	"Sign in to Conway as an Automaton to provision an API key.\n\nURI: http://127.0.0.1:8080/v1/auth/verify\nVersion: 1\n" +
	"Chain ID: 8453\nNonce: abcdef0123456789\nIssued At: 2026-01-02T03:04:05.678Z"

var rules = Rules{Host: "127.0.0.1:8080", Domains: []string{"conway.tech"}, Chains: []string{"8453", "84532"}}

func TestParse(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 1, 2, 3, 4, 5, 678_000_000, time.UTC)
	want := Message{
		Domain: "conway.tech", Address: "0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266",
		Statement: "Sign in to Conway as an Automaton to provision an API key.",
		URI:       "http://127.0.0.1:8080/v1/auth/verify", Chain: "8453", Nonce: "abcdef0123456789", IssuedAt: at,
	}
	got, err := Parse(signIn)
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("message of a client: %v (-want +got):\n%s", err, diff)
	}
	long := strings.Replace(signIn, "Sign in to Conway as an Automaton to provision an API key.\n", "", 1) +
		"\nExpiration Time: 2026-01-02T03:14:05Z\nNot Before: 2026-01-02T04:04:05+01:00\nRequest ID: r1\nResources:\n- https://a.example/x\n- ipfs://b"
	got, err = Parse(long)
	if err != nil || got.Statement != "" || !got.Expires.Equal(at.Add(10*time.Minute-678*time.Millisecond)) || !got.NotBefore.Equal(at.Add(-678*time.Millisecond)) {
		t.Errorf("message with all fields and no statement: got %+v, %v", got, err)
	}
}

func TestParseRefuses(t *testing.T) {
	t.Parallel()
	change := func(from, to string) string {
		if !strings.Contains(signIn, from) {
			t.Fatalf("%q is not in the message", from)
		}
		return strings.Replace(signIn, from, to, 1)
	}
	for name, text := range map[string]string{
		"nothing":                  "",
		"text before":              "hello\n" + signIn,
		"text after":               signIn + "\nhello",
		"a newline at the end":     signIn + "\n",
		"CRLF":                     strings.ReplaceAll(signIn, "\n", "\r\n"),
		"a second URI":             change("\nVersion", "\nURI: http://evil.example\nVersion"),
		"a field in the statement": change("provision an API key.\n", "provision an API key.\nURI: http://evil.example\n"),
		"another version":          change("Version: 1", "Version: 2"),
		"a short nonce":            change("abcdef0123456789", "abc"),
		"a nonce with a dash":      change("abcdef0123456789", "abcdef-0123456789"),
		"lower-case address":       change("0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266", "0xf39fd6e51aad88f6f4ce6ab8827279cfffb92266"),
		"wrong checksum":           change("0xf39Fd", "0xF39Fd"),
		"no time":                  change("2026-01-02T03:04:05.678Z", "2026-13-02T03:04:05.678Z"),
		"hex chain":                change("Chain ID: 8453", "Chain ID: 0x2105"),
		"leading zero":             change("Chain ID: 8453", "Chain ID: 08453"),
		"not ASCII":                change("Sign in to", "Sign ín to"),
		"too long":                 signIn + "\nResources:" + strings.Repeat("\n- https://a.example/"+strings.Repeat("x", 100), 40),
		"Solana":                   change("Ethereum account", "Solana account"),
	} {
		if m, err := Parse(text); api.CodeOf(err) != api.Invalid {
			t.Errorf("%s: got %+v, %v; want it refused", name, m, err)
		}
	}
}

func TestCheck(t *testing.T) {
	t.Parallel()
	good, err := Parse(signIn)
	if err != nil {
		t.Fatal(err)
	}
	at := good.IssuedAt.Add(time.Second)
	for name, tt := range map[string]struct {
		change func(*Message)
		now    time.Time
		ok     bool
	}{
		"good":                {func(*Message) {}, at, true},
		"own domain":          {func(m *Message) { m.Domain = "127.0.0.1:8080" }, at, true},
		"other domain":        {func(m *Message) { m.Domain = "evil.example" }, at, false},
		"longer domain":       {func(m *Message) { m.Domain = "conway.tech.evil.example" }, at, false},
		"other host":          {func(m *Message) { m.URI = "http://evil.example/v1/auth/verify" }, at, false},
		"other port":          {func(m *Message) { m.URI = "http://127.0.0.1:9/v1/auth/verify" }, at, false},
		"user in the URI":     {func(m *Message) { m.URI = "http://127.0.0.1:8080@evil.example/" }, at, false},
		"user before host":    {func(m *Message) { m.URI = "http://me@127.0.0.1:8080/" }, at, false},
		"not http":            {func(m *Message) { m.URI = "ftp://127.0.0.1:8080/" }, at, false},
		"other chain":         {func(m *Message) { m.Chain = "1" }, at, false},
		"clock ahead":         {func(*Message) {}, good.IssuedAt.Add(-time.Minute), true},
		"clock too far ahead": {func(*Message) {}, good.IssuedAt.Add(-time.Minute - time.Second), false},
		"old":                 {func(*Message) {}, at.Add(NonceLife + time.Minute), false},
		"expired":             {func(m *Message) { m.Expires = at }, at, false},
		"not expired":         {func(m *Message) { m.Expires = at.Add(1) }, at, true},
		"not yet valid":       {func(m *Message) { m.NotBefore = at.Add(1) }, at, false},
		"just valid":          {func(m *Message) { m.NotBefore = at }, at, true},
	} {
		m := good
		tt.change(&m)
		if err := m.Check(rules, tt.now); (err == nil) != tt.ok || err != nil && api.CodeOf(err) != api.Invalid {
			t.Errorf("%s: got %v, want accepted %v", name, err, tt.ok)
		}
	}
}

func TestNonces(t *testing.T) {
	t.Parallel()
	n, now := NewNonces([]byte("secret")), time.Unix(1_790_000_000, 0)
	nonce := n.New(now)
	if got, ok := n.Expiry(nonce); !ok || !got.Equal(now.Add(NonceLife)) {
		t.Errorf("expiry: got %v, %v; want %v", got, ok, now.Add(NonceLife))
	}
	if n.New(now) == nonce {
		t.Error("two nonces are equal")
	}
	other := NewNonces([]byte("another"))
	changed := []byte(nonce)
	changed[15] ^= 1 // the expiry
	for name, bad := range map[string]string{
		"empty": "", "short": nonce[2:], "changed": string(changed), "in capitals": strings.ToUpper(nonce), "of another installation": other.New(now), "not hex": strings.Repeat("z", 64),
	} {
		if _, ok := n.Expiry(bad); ok {
			t.Errorf("%s: %q was accepted", name, bad)
		}
	}
}

// FuzzParse checks that an accepted message has the fields on lines of their own.
func FuzzParse(f *testing.F) {
	f.Add(signIn)
	f.Add(signIn + "\nExpiration Time: 2026-01-02T03:14:05Z\nResources:\n- https://a.example")
	f.Fuzz(func(t *testing.T, text string) {
		m, err := Parse(text)
		if err != nil {
			if api.CodeOf(err) != api.Invalid {
				t.Fatalf("got %v, want Invalid", err)
			}
			return
		}
		for _, line := range []string{"\nURI: " + m.URI + "\n", "\nChain ID: " + m.Chain + "\n", "\nNonce: " + m.Nonce + "\n", "\n" + m.Address + "\n\n"} {
			if !strings.Contains(text, line) {
				t.Errorf("%q is not a line of %q", line, text)
			}
		}
		if len(text) > MaxMessage || strings.HasSuffix(text, "\n") {
			t.Errorf("accepted %q", text)
		}
	})
}

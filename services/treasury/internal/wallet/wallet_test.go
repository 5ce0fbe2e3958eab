package wallet

import (
	"context"
	"encoding/json"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/ethereum/go-ethereum/accounts"
	"github.com/ethereum/go-ethereum/common/hexutil"
	ethcrypto "github.com/ethereum/go-ethereum/crypto"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/config"
)

// shelf is a wallet store in memory; the SQL store is tested in package sqlstore.
type shelf struct {
	mu sync.Mutex
	of map[string]Wallet
}

func newShelf() *shelf { return &shelf{of: map[string]Wallet{}} }

func (s *shelf) Wallet(_ context.Context, agent string) (Wallet, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w, ok := s.of[agent]
	if !ok {
		return w, api.Errorf(api.NotFound, "no wallet")
	}
	return w, nil
}

func (s *shelf) AddWallet(_ context.Context, agent string, w Wallet) (Wallet, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if was, ok := s.of[agent]; ok {
		return was, nil
	}
	for _, other := range s.of {
		if other.Address == w.Address {
			return Wallet{}, api.Errorf(api.NotFound, "no wallet")
		}
	}
	s.of[agent] = w
	return w, nil
}

// testN is the smallest scrypt cost: tests need the format, not the strength.
const testN = 2

// vectors is the format of testdata/vectors.json (docs/reference/treasury.md, Test vectors):
// signatures of another implementation, made with a key that is public on purpose.
type vectors struct {
	PrivateKey string `json:"private_key"`
	Address    string `json:"address"`
	Social     []struct {
		Canonical string `json:"canonical"`
		Signature string `json:"signature"`
		Body      struct {
			To       string `json:"to"`
			Content  string `json:"content"`
			SignedAt string `json:"signed_at"`
		} `json:"body"`
	} `json:"social"`
}

func TestSignsAsTheReference(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("testdata/vectors.json")
	if err != nil {
		t.Fatal(err)
	}
	var v vectors
	if err := json.Unmarshal(text, &v); err != nil || len(v.Social) == 0 {
		t.Fatalf("vectors: got %d, %v, want some", len(v.Social), err)
	}
	key, err := ethcrypto.HexToECDSA(strings.TrimPrefix(v.PrivateKey, "0x"))
	if err != nil {
		t.Fatal(err)
	}
	// The key is read from a store, as any other key.
	store := newShelf()
	k := NewKeeper(store, "passphrase", testN)
	w, err := k.seal(key)
	if err != nil {
		t.Fatal(err)
	}
	store.of["lucky"] = w
	if address, err := k.Address(t.Context(), "lucky"); err != nil || address != v.Address {
		t.Errorf("address: got %s, %v, want %s", address, err, v.Address)
	}
	for _, m := range v.Social {
		canonical, err := Canonical(m.Body.To, m.Body.Content, m.Body.SignedAt)
		if err != nil || canonical != m.Canonical {
			t.Errorf("canonical of %q: got %q, %v, want %q", m.Body.Content, canonical, err, m.Canonical)
		}
		shouted := "0x" + strings.ToUpper(m.Body.To[2:])
		for _, to := range []string{m.Body.To, shouted} {
			if sig, err := k.SignMessage(t.Context(), "lucky", to, m.Body.Content, m.Body.SignedAt); err != nil || sig.Signature != m.Signature || sig.From != v.Address {
				t.Errorf("signature of %q: got %+v, %v, want %s", m.Body.Content, sig, err, m.Signature)
			}
		}
	}
}

func TestSignatureRecovers(t *testing.T) {
	t.Parallel()
	k := NewKeeper(newShelf(), "passphrase", testN)
	address, err := k.Create(t.Context(), "lucky")
	if err != nil {
		t.Fatal(err)
	}
	for i := range 20 { // enough for both values of v to occur
		content := strings.Repeat("č", i)
		const to, at = "0x70997970C51812dc3A010C7d01b50e0d17dc79C8", "2026-01-02T03:04:05.678Z"
		signed, err := k.SignMessage(t.Context(), "lucky", to, content, at)
		if err != nil {
			t.Fatal(err)
		}
		sig := hexutil.MustDecode(signed.Signature)
		if len(sig) != 65 || sig[64] != 27 && sig[64] != 28 {
			t.Fatalf("signature: got %s, want 65 bytes with v 27 or 28", signed.Signature)
		}
		sig[64] -= 27
		text, err := Canonical(to, content, at)
		if err != nil {
			t.Fatal(err)
		}
		pub, err := ethcrypto.SigToPub(accounts.TextHash([]byte(text)), sig)
		if err != nil {
			t.Fatal(err)
		}
		if got := ethcrypto.PubkeyToAddress(*pub).Hex(); got != address {
			t.Errorf("recovered: got %s, want %s", got, address)
		}
	}
}

func TestCanonicalRefuses(t *testing.T) {
	t.Parallel()
	const to, at = "0x70997970c51812dc3a010c7d01b50e0d17dc79c8", "2026-01-02T03:04:05.678Z"
	if _, err := Canonical(to, strings.Repeat("x", 64_000), at); err != nil {
		t.Errorf("a message of 64,000 bytes: got error %v", err)
	}
	for what, m := range map[string][3]string{
		"a name for an address":   {"bob", "hi", at},
		"a short address":         {to[:41], "hi", at},
		"a long address":          {to + "0", "hi", at},
		"an address without 0x":   {"00" + to[2:], "hi", at},
		"an address that is none": {"0x" + strings.Repeat("g", 40), "hi", at},
		"a long message":          {to, strings.Repeat("x", 64_001), at},
		"a time without ms":       {to, "hi", "2026-01-02T03:04:05Z"},
		"a time with an offset":   {to, "hi", "2026-01-02T03:04:05.678+01:00"},
		"a time with a comma":     {to, "hi", "2026-01-02T03:04:05,678Z"},
		"a day that is none":      {to, "hi", "2026-02-30T03:04:05.678Z"},
		"a colon smuggled in":     {to, "hi", at + ":x"},
	} {
		if text, err := Canonical(m[0], m[1], m[2]); api.CodeOf(err) != api.Invalid {
			t.Errorf("%s: got %q, %v, want invalid", what, text, err)
		}
	}
}

func TestCreateTogether(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	store := newShelf()
	keepers := []*Keeper{NewKeeper(store, "passphrase", testN), NewKeeper(store, "passphrase", testN)}
	got := make([]string, 16)
	var wg sync.WaitGroup
	for i := range got {
		wg.Go(func() {
			var err error
			if got[i], err = keepers[i%2].Create(ctx, "lucky"); err != nil {
				t.Errorf("create: %v", err)
			}
		})
	}
	wg.Wait()
	for _, k := range keepers {
		s, err := k.open(ctx, "lucky")
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, s.address.Hex())
	}
	for _, address := range got {
		if address != got[0] {
			t.Fatalf("addresses: got %q, want one", got)
		}
	}
	other, err := keepers[0].Create(ctx, "bob")
	if err != nil || other == got[0] {
		t.Errorf("bob's address: got %s, %v, want his own", other, err)
	}
}

func TestWrongPassphrase(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	store := newShelf()
	right := NewKeeper(store, "right-passphrase", testN)
	if err := right.Check(ctx); err != nil {
		t.Fatal(err)
	}
	if err := NewKeeper(store, "right-passphrase", testN).Check(ctx); err != nil {
		t.Errorf("check with the same passphrase: %v", err)
	}
	if _, err := right.Create(ctx, "lucky"); err != nil {
		t.Fatal(err)
	}
	wrong := NewKeeper(store, "wrong-passphrase", testN)
	if err := wrong.Check(ctx); api.CodeOf(err) != api.Unavailable {
		t.Errorf("check with another passphrase: got %v, want unavailable", err)
	}
	_, err := wrong.open(ctx, "lucky")
	if api.CodeOf(err) != api.Unavailable {
		t.Errorf("signer with another passphrase: got %v, want unavailable", err)
	}
	if text := fmt.Sprintf("%v %+v %#v", err, wrong, wrong); strings.Contains(text, "wrong-passphrase") {
		t.Errorf("the passphrase shows: %s", text)
	}
	for _, agent := range []string{"nobody", ""} {
		if _, err := right.open(ctx, agent); api.CodeOf(err) != api.NotFound {
			t.Errorf("signer of %q: got %v, want not_found", agent, err)
		}
	}
}

func TestKeysStayHidden(t *testing.T) {
	t.Parallel()
	key, err := ethcrypto.GenerateKey()
	if err != nil {
		t.Fatal(err)
	}
	k := NewKeeper(newShelf(), "passphrase", testN)
	w, err := k.seal(key)
	if err != nil {
		t.Fatal(err)
	}
	for what, text := range map[string]string{
		"the stored wallet": w.Keystore,
		"a printed signer":  fmt.Sprintf("%+v %#v", newKey(key), *newKey(key)),
	} {
		if strings.Contains(text, fmt.Sprintf("%x", ethcrypto.FromECDSA(key))) || strings.Contains(text, new(big.Int).SetBytes(ethcrypto.FromECDSA(key)).String()) {
			t.Errorf("%s holds the key: %s", what, text)
		}
	}
	var file struct {
		Version int `json:"version"`
	}
	if err := json.Unmarshal([]byte(w.Keystore), &file); err != nil || file.Version != 3 {
		t.Errorf("keystore: got version %d, %v, want 3", file.Version, err)
	}
}

func TestPassphrase(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	got := make([]config.Secret, 8)
	var wg sync.WaitGroup
	for i := range got {
		wg.Go(func() {
			var err error
			if got[i], err = Passphrase(dir); err != nil {
				t.Errorf("passphrase: %v", err)
			}
		})
	}
	wg.Wait()
	for _, p := range got {
		if p.Reveal() != got[0].Reveal() || len(p.Reveal()) < 32 {
			t.Fatalf("got different or short passphrases")
		}
	}
	info, err := os.Stat(filepath.Join(dir, passphraseFile))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("file: got %v, %v, want mode 0600", info, err)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
		t.Errorf("folder: got %d files, %v, want the passphrase alone", len(entries), err)
	}
	if err := os.WriteFile(filepath.Join(dir, passphraseFile), []byte("\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Passphrase(dir); err == nil {
		t.Error("an empty file: got no error")
	}
	if _, err := Passphrase(filepath.Join(dir, "missing")); err == nil {
		t.Error("a missing folder: got no error")
	}
}

func FuzzCanonical(f *testing.F) {
	f.Add("0x70997970c51812dc3a010c7d01b50e0d17dc79c8", "hello", "2026-01-02T03:04:05.678Z")
	f.Add("0X70997970c51812dc3a010c7d01b50e0d17dc79c8", "", "2026-01-02T03:04:05,678Z")
	form := regexp.MustCompile(`^Conway:send:0x[0-9a-f]{40}:0x[0-9a-f]{64}:\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$`)
	f.Fuzz(func(t *testing.T, to, content, at string) {
		// Only texts of this form can be signed.
		if text, err := Canonical(to, content, at); err == nil && !form.MatchString(text) {
			t.Errorf("canonical of %q %q: got %q", to, at, text)
		}
	})
}

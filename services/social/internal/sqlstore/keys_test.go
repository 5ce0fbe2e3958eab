package sqlstore_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/sqldb"
	"github.com/anima-run/anima/pkg/sqldb/sqldbtest"
	"github.com/anima-run/anima/services/social/internal/auth"
	"github.com/anima-run/anima/services/social/internal/inbox"
	"github.com/anima-run/anima/services/social/internal/sqlstore"
)

// newKey returns a key with a hash that begins with n.
func newKey(t *testing.T, n int, address string, expires int64) auth.Key {
	t.Helper()
	hash := fmt.Sprintf("%016x", n) + strings.Repeat("0", 48)
	k, err := auth.NewKey(hash, "anima_k_abcd", address, "script", nil, expires, noon(n))
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// TestKeys tests the conformance to [auth.Store] on every engine.
func TestKeys(t *testing.T) {
	t.Parallel()
	for name, check := range map[string]func(*testing.T, *sqlstore.Store){
		"sign in once":  signInOnce,
		"add and find":  addKey,
		"limit":         limitKeys,
		"list":          listKeys,
		"revoke":        revokeKey,
		"prune":         pruneKeys,
		"shared secret": sharedSecret,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sqldbtest.Each(t, sqlstore.Migrations(), func(t *testing.T, db *sqldb.DB) { check(t, sqlstore.New(db, nil)) })
		})
	}
}

// signInOnce checks that of concurrent sign-ins with one nonce one succeeds.
func signInOnce(t *testing.T, s *sqlstore.Store) {
	done := make(chan bool, 8)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			_, token := auth.NewToken("0xa", noon(0))
			ok, err := s.SignIn(t.Context(), "nonce", noon(60), token)
			if err != nil {
				t.Error(err)
			}
			if !ok {
				if _, err := s.KeyByHash(t.Context(), token.Hash); api.CodeOf(err) != api.Denied {
					t.Errorf("token of a refused sign-in: got %v, want it unknown", err)
				}
				return
			}
			done <- true
			if got, err := s.KeyByHash(t.Context(), token.Hash); err != nil || !cmp.Equal(token, got) {
				t.Errorf("token: got %+v, %v; want %+v", got, err, token)
			}
		})
	}
	wg.Wait()
	if len(done) != 1 {
		t.Errorf("got %d sign-ins, want 1", len(done))
	}
}

func addKey(t *testing.T, s *sqlstore.Store) {
	if err := s.PutAgent(t.Context(), inbox.LocalAgent{Agent: "alice", Name: "Alice", Address: "0xa", Seq: 1}); err != nil {
		t.Fatal(err)
	}
	want := newKey(t, 1, "0xa", 0)
	want.Agent = "alice"
	for range 2 { // repeated by its hash
		got, err := s.AddKey(t.Context(), newKey(t, 1, "0xa", 0), noon(5))
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("added: %v (-want +got):\n%s", err, diff)
		}
	}
	if got, err := s.KeyByHash(t.Context(), want.Hash); err != nil || !cmp.Equal(want, got) {
		t.Errorf("found: got %+v, %v; want %+v", got, err, want)
	}
	if _, err := s.AddKey(t.Context(), newKey(t, 1, "0xb", 0), noon(5)); api.CodeOf(err) != api.Conflict {
		t.Errorf("another key with the hash: got %v, want Conflict", err)
	}
	if _, err := s.KeyByHash(t.Context(), "other"); api.CodeOf(err) != api.Denied {
		t.Errorf("unknown hash: got %v, want Denied", err)
	}
}

// limitKeys checks that concurrent requests do not pass the limit of keys, and that ended
// keys do not count.
func limitKeys(t *testing.T, s *sqlstore.Store) {
	_, token := auth.NewToken("0xa", noon(0))
	if _, err := s.SignIn(t.Context(), "n", noon(60), token); err != nil {
		t.Fatal(err)
	}
	refused := make(chan bool, auth.MaxKeys+3)
	var wg sync.WaitGroup
	for i := range auth.MaxKeys + 3 {
		wg.Go(func() {
			if _, err := s.AddKey(t.Context(), newKey(t, i+1, "0xa", 0), noon(1)); err != nil {
				if api.CodeOf(err) != api.Conflict {
					t.Error(err)
				}
				refused <- true
			}
		})
	}
	wg.Wait()
	if len(refused) != 3 {
		t.Errorf("got %d keys refused, want 3", len(refused))
	}
	all, err := s.Keys(t.Context(), "0xa", auth.Place{}, 100)
	if err != nil || len(all) != auth.MaxKeys {
		t.Fatalf("got %d keys, %v; want %d", len(all), err, auth.MaxKeys)
	}
	if _, err := s.Revoke(t.Context(), all[0].ID, "0xa", noon(2)); err != nil {
		t.Fatal(err)
	}
	if _, err := s.AddKey(t.Context(), newKey(t, 100, "0xa", 0), noon(3)); err != nil {
		t.Errorf("after one was revoked: %v", err)
	}
	if _, err := s.AddKey(t.Context(), newKey(t, 200, "0xb", 0), noon(3)); err != nil {
		t.Errorf("another address: %v", err)
	}
}

func listKeys(t *testing.T, s *sqlstore.Store) {
	for i := 1; i <= 3; i++ {
		if _, err := s.AddKey(t.Context(), newKey(t, i, fmt.Sprintf("0x%d", i%2), 0), noon(i)); err != nil {
			t.Fatal(err)
		}
	}
	ids := func(address string, after auth.Place, limit int) (got []string) {
		all, err := s.Keys(t.Context(), address, after, limit)
		if err != nil {
			t.Fatal(err)
		}
		for _, k := range all {
			got = append(got, strings.TrimLeft(k.ID, "0"))
		}
		return got
	}
	if diff := cmp.Diff([]string{"3", "2", "1"}, ids("", auth.Place{}, 10)); diff != "" {
		t.Errorf("all (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"3", "1"}, ids("0x1", auth.Place{}, 10)); diff != "" {
		t.Errorf("of an address (-want +got):\n%s", diff)
	}
	second := newKey(t, 2, "", 0)
	if diff := cmp.Diff([]string{"1"}, ids("", auth.Place{CreatedAt: second.CreatedAt, ID: second.ID}, 1)); diff != "" {
		t.Errorf("after the second (-want +got):\n%s", diff)
	}
}

func revokeKey(t *testing.T, s *sqlstore.Store) {
	k, err := s.AddKey(t.Context(), newKey(t, 1, "0xa", 0), noon(1))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Revoke(t.Context(), k.ID, "0xb", noon(2)); api.CodeOf(err) != api.NotFound {
		t.Errorf("by another address: got %v, want NotFound", err)
	}
	for range 2 {
		got, err := s.Revoke(t.Context(), k.ID, "", noon(2))
		if err != nil || got.RevokedAt != noon(2).UnixMicro() {
			t.Errorf("revoked: got %+v, %v", got, err)
		}
	}
	if got, err := s.KeyByHash(t.Context(), k.Hash); err != nil || got.Usable(noon(3)) {
		t.Errorf("revoked key: got %+v, %v; want it not usable", got, err)
	}
}

func pruneKeys(t *testing.T, s *sqlstore.Store) {
	_, token := auth.NewToken("0xa", noon(0))
	if _, err := s.SignIn(t.Context(), "n", noon(60), token); err != nil {
		t.Fatal(err)
	}
	for i, expires := range map[int]int64{1: 0, 2: noon(10).UnixMicro(), 3: noon(90).UnixMicro()} {
		if _, err := s.AddKey(t.Context(), newKey(t, i, "0xa", expires), noon(1)); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.PruneKeys(t.Context(), noon(0).Add(auth.TokenLife+time.Second), noon(30)); err != nil {
		t.Fatal(err)
	}
	if _, err := s.KeyByHash(t.Context(), token.Hash); api.CodeOf(err) != api.Denied {
		t.Errorf("expired token: got %v, want it deleted", err)
	}
	all, err := s.Keys(t.Context(), "", auth.Place{}, 10)
	if err != nil || len(all) != 2 {
		t.Errorf("got %d keys, %v; want the one without expiry and the one that ended lately", len(all), err)
	}
	if ok, err := s.SignIn(t.Context(), "n", noon(60), token); err != nil || ok {
		t.Errorf("a nonce that a replica with a clock behind accepts was deleted, %v", err)
	}
	if err := s.PruneKeys(t.Context(), noon(61).Add(auth.KeepNonce), noon(30)); err != nil {
		t.Fatal(err)
	}
	if ok, err := s.SignIn(t.Context(), "n", noon(60), token); err != nil || !ok {
		t.Errorf("a nonce that expired an hour ago is still stored: %v", err)
	}
}

func sharedSecret(t *testing.T, s *sqlstore.Store) {
	first, err := s.NonceSecret(t.Context(), []byte("one"))
	if err != nil || string(first) != "one" {
		t.Fatalf("got %q, %v", first, err)
	}
	if second, err := s.NonceSecret(t.Context(), []byte("two")); err != nil || string(second) != "one" {
		t.Errorf("another replica: got %q, %v; want the first secret", second, err)
	}
}

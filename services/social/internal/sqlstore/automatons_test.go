package sqlstore_test

import (
	"fmt"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/sqldb"
	"github.com/anima-run/anima/pkg/sqldb/sqldbtest"
	"github.com/anima-run/anima/services/social/internal/registration"
	"github.com/anima-run/anima/services/social/internal/sqlstore"
)

// TestRegister checks that an address has one registration, and an id one address, also
// with concurrent requests.
func TestRegister(t *testing.T) {
	t.Parallel()
	sqldbtest.Each(t, sqlstore.Migrations(), func(t *testing.T, db *sqldb.DB) {
		s := sqlstore.New(db, nil)
		of := func(id, address, name string) registration.Registration {
			return registration.Registration{ID: id, Address: address, Creator: "0xc", Name: name}
		}
		put := func(n int, r registration.Registration, want api.Code) {
			t.Helper()
			got, err := s.Register(t.Context(), r, noon(n))
			if api.CodeOf(err) != want {
				t.Fatalf("%+v: got %v, want %q", r, err, want)
			}
			if r.At = noon(0).UnixMicro(); err == nil && n < 5 && !cmp.Equal(r, got) {
				t.Errorf("got %+v, want %+v", got, r)
			}
		}
		put(0, of("one", "0xa", "Atlas"), "")
		put(1, of("one", "0xa", "Atlas"), "")
		put(2, of("one", "0xa", "Ada"), "")
		put(3, of("one", "0xb", "Eve"), api.Conflict)
		put(5, of("two", "0xa", "Ada"), "")
		put(6, of("one", "0xb", "Eve"), "") // its address has another id now
		put(7, of("two", "0xb", "Eve"), api.Conflict)

		var wg sync.WaitGroup
		for n := range 8 {
			wg.Go(func() {
				if _, err := s.Register(t.Context(), of(fmt.Sprint("many-", n%3), "0xd", "Max"), noon(8)); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		for address, want := range map[string]int{"0xa": 1, "0xb": 1, "0xd": 1} {
			var n int
			if err := db.QueryRowContext(t.Context(), "select count(*) from automatons where address = $1", address).Scan(&n); err != nil || n != want {
				t.Errorf("%s has %d registrations, %v, want %d", address, n, err, want)
			}
		}
	})
}

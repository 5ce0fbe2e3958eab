package sqlstore_test

import (
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/sqldb"

	"github.com/anima-run/anima/services/loop/internal/engine"
	"github.com/anima-run/anima/services/loop/internal/sqlstore"
)

// wantTaken fails the test unless err says that a key is bound to another request.
func wantTaken(t *testing.T, what string, err error) {
	t.Helper()
	if api.CodeOf(err) != api.Conflict || api.ReasonOf(err) != api.ReasonKeyTaken {
		t.Errorf("%s: got error %v, want conflict with reason %s", what, err, api.ReasonKeyTaken)
	}
}

func TestClaim(t *testing.T) {
	each(t, func(t *testing.T, _ *sqldb.DB, s *sqlstore.Store) {
		first := sqlstore.Key{Run: "r1", Content: "work", At: at}
		claim := func(what string, k sqlstore.Key, want sqlstore.Claimed) {
			t.Helper()
			got, err := s.Claim(t.Context(), k)
			if err != nil {
				t.Fatalf("%s: %v", what, err)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", what, diff)
			}
		}
		claim("a new key", first, sqlstore.Claimed{})
		claim("the same request", sqlstore.Key{Run: "r1", Content: "work", Mode: api.ModeQueue, At: at + 5}, sqlstore.Claimed{})
		_, err := s.Claim(t.Context(), sqlstore.Key{Run: "r1", Content: "rest", At: at})
		wantTaken(t, "another content", err)
		_, err = s.Claim(t.Context(), sqlstore.Key{Run: "r1", Content: "work", Mode: api.ModeInterrupt, At: at})
		wantTaken(t, "another mode", err)

		cmd := api.Run{Run: "r1", Agent: "ada", Session: "ada-main", Kind: api.RunMessage, Content: "work", By: api.Principal{Kind: api.Creator}, AcceptedAt: at + 9}
		_, err = s.Started(t.Context(), cmd, engine.Input{By: cmd.By}, api.TierHigh, at+10)
		must(t, err)
		claim("after the run has begun", first, sqlstore.Claimed{Begun: true, At: at + 9})

		// The key's row is deleted after some time, and the run's row remains.
		late := at + 30*24*time.Hour.Microseconds()
		claim("much later", sqlstore.Key{Run: "r1", Content: "work", At: late}, sqlstore.Claimed{Begun: true, At: at + 9})
		_, err = s.Claim(t.Context(), sqlstore.Key{Run: "r2", Content: "other", At: late})
		must(t, err)
		_, err = s.Claim(t.Context(), sqlstore.Key{Run: "r1", Content: "rest", At: 2*late - at})
		wantTaken(t, "another content after the key's row was deleted", err)
	})
}

// TestClaimAtOnce checks that one of several concurrent callers binds a key that they use
// for different requests.
func TestClaimAtOnce(t *testing.T) {
	each(t, func(t *testing.T, _ *sqldb.DB, s *sqlstore.Store) {
		const n = 8
		errs := make([]error, n)
		var wg sync.WaitGroup
		for i := range n {
			wg.Go(func() {
				_, errs[i] = s.Claim(t.Context(), sqlstore.Key{Run: "r1", Content: strconv.Itoa(i), At: at})
			})
		}
		wg.Wait()
		won := 0
		for i, err := range errs {
			if err == nil {
				won++
				continue
			}
			wantTaken(t, "caller "+strconv.Itoa(i), err)
		}
		if won != 1 {
			t.Errorf("%d callers won, want 1", won)
		}
	})
}

func TestImportKey(t *testing.T) {
	each(t, func(t *testing.T, _ *sqldb.DB, s *sqlstore.Store) {
		in := part("i1", "ada-i1", 1, conversation())
		in.Keyed = true
		first, err := s.Import(t.Context(), in)
		must(t, err)
		again, err := s.Import(t.Context(), in)
		must(t, err)
		if diff := cmp.Diff(first, again); diff != "" {
			t.Errorf("the same part again (-want +got):\n%s", diff)
		}
		in.Lines = in.Lines[:1]
		_, err = s.Import(t.Context(), in)
		wantTaken(t, "another part with the same key", err)
	})
}

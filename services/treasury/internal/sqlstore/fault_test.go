package sqlstore

import (
	"errors"
	"fmt"
	"testing"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/sqldb"
)

func TestFaultKeepsCodeAndCause(t *testing.T) {
	t.Parallel()
	for _, cause := range []error{sqldb.ErrUnavailable, sqldb.ErrBusy} {
		err := fault(fmt.Errorf("query: %w", cause))
		if api.CodeOf(err) != api.Unavailable || !errors.Is(err, cause) || api.Wire(err).RetryAfter == 0 {
			t.Errorf("fault of %v: got %v, want unavailable, its cause, and a time to wait", cause, err)
		}
	}
	if err := fault(errors.New("syntax error")); api.CodeOf(err) != api.Internal {
		t.Errorf("fault of another error: got code %s, want internal", api.CodeOf(err))
	}
	if err := fault(nil); err != nil {
		t.Errorf("fault of nil: got %v", err)
	}
}

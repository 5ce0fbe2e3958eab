package sqlstore_test

import (
	"context"
	"errors"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/services/treasury/internal/ledger"
)

// errNoLimits is the error of the previous release for requests about limits.
var errNoLimits = errors.New("the previous release has no limits")

func (s *older) Ask(context.Context, ledger.Approval) error { return errNoLimits }

func (s *older) Decide(context.Context, string, api.ApprovalStatus, int64) (ledger.Approval, error) {
	return ledger.Approval{}, errNoLimits
}

func (s *older) Approvals(context.Context, string, api.ApprovalStatus, int) ([]ledger.Approval, error) {
	return nil, errNoLimits
}

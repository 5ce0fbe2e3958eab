package router

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/anima-run/anima/pkg/api"

	"github.com/anima-run/anima/services/inference-router/internal/provider"
	"github.com/anima-run/anima/services/inference-router/internal/sqlstore"
)

const (
	// lostAfter is the age from which an active hold without an outcome is that of a lost
	// attempt. An attempt in progress is younger: the longest task takes 2 min, and the work
	// before and after the attempt [finishTimeout] each. The rest is for clocks that differ.
	lostAfter = 3 * time.Minute

	// sweepEvery is the time between two searches for lost attempts. A hold lasts
	// [holdTime], so a search that fails is repeated several times.
	sweepEvery = time.Minute

	// payeePrefix is the beginning of the accounts of providers.
	payeePrefix = "provider:"

	// unknownName is the model of a lost attempt whose call is not repeated, and its
	// provider if treasury does not know it.
	unknownName = "unknown"
)

// lostAttempt returns what is known of the attempt with a hold.
func lostAttempt(hold api.HoldState) sqlstore.FailedAttempt {
	name, ok := strings.CutPrefix(hold.Payee, payeePrefix)
	if !ok || name == "" {
		name = unknownName
	}
	call, _ := cutLast(hold.ID, "/")
	return sqlstore.FailedAttempt{
		Call: sqlstore.Call{
			ID: call, Agent: hold.Agent, Turn: hold.Turn, Model: unknownName, Provider: name, Tokens: sqlstore.Tokens{Estimated: true},
			Cost: hold.Amount, At: madeAt(hold).UnixMicro(),
		},
		Kind: string(provider.Lost), Message: "the attempt was lost: its outcome is unknown", Hold: hold.ID,
	}
}

// cutLast returns the part of s before the last separator. Without one, it returns the whole
// text.
func cutLast(s, separator string) (before string, found bool) {
	i := strings.LastIndex(s, separator)
	if i < 0 {
		return s, false
	}
	return s[:i], true
}

// madeAt returns when a hold of this service was requested.
func madeAt(hold api.HoldState) time.Time { return time.UnixMicro(hold.ExpiresAt).Add(-holdTime) }

// sweep ends the holds that have no attempt any more: those of stored answers, of failed
// attempts and of lost ones. Without it, the hold of a lost attempt whose call is not
// repeated would expire unpaid.
func (h *handlers) sweep(ctx context.Context, holds []api.HoldState) error {
	var faults []error // one per hold; a failure must not block the other holds
	for _, hold := range holds {
		if err := h.sweepHold(ctx, hold); err != nil {
			faults = append(faults, fmt.Errorf("settle %s: %w", hold.ID, err))
		}
	}
	return errors.Join(faults...)
}

// sweepHold ends one active hold, unless its attempt is or may be in progress. After a crash
// within it, the next sweep of any replica continues: each step is idempotent.
func (h *handlers) sweepHold(ctx context.Context, hold api.HoldState) error {
	found, err := h.settleHold(ctx, hold.ID)
	if err != nil {
		return err
	}
	if !found && h.isLost(hold) {
		found, err = true, h.payLost(ctx, hold)
	}
	if found && err == nil {
		h.log.InfoContext(ctx, "leftover hold settled", "hold", hold.ID)
	}
	return err
}

// isLost reports whether an active hold without an outcome belongs to a lost attempt.
func (h *handlers) isLost(hold api.HoldState) bool {
	return hold.Category == api.CategoryInference && hold.ExpiresAt != 0 && h.now().Sub(madeAt(hold)) >= lostAfter &&
		!h.working.has(hold.ID) && !h.unsure.has(hold.ID)
}

// payLost ends the hold of a lost attempt, as [candidate.lose] does when the call is
// repeated. A late hold of a stored answer is settled with the cost of the answer.
func (h *handlers) payLost(ctx context.Context, hold api.HoldState) error {
	if first, late := cutLast(hold.ID, lateMark); late {
		p, found, err := h.store.FindByHold(ctx, first)
		if err != nil {
			return err
		}
		if found {
			_, err := h.pay(ctx, p, hold.ID)
			return err
		}
	}
	f := lostAttempt(hold)
	if _, err := h.store.RecordFailure(ctx, f); err != nil {
		return err
	}
	_, err := h.settleFailed(ctx, hold.ID) // by the row, which another replica may have stored first
	return err
}

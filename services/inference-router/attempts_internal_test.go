package router

import (
	"testing"
	"time"

	"github.com/anima-run/anima/services/inference-router/internal/health"
	"github.com/anima-run/anima/services/inference-router/internal/model"
)

// TestRetryDoesNotWaitForAnother checks that a model which is to be retried first is left for
// another one while its provider asks all callers to wait, because of an attempt of another
// call.
func TestRetryDoesNotWaitForAnother(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_000_000, 0)
	h := &handlers{now: func() time.Time { return now }, health: &routeHealth{Tracker: health.New(health.OpenFor)}}
	of := func(id string) *candidate {
		return &candidate{h: h, provider: lists{}, model: model.Model{ID: id}, notBefore: now}
	}
	failed, other := of("failed"), of("other")
	failed.retryFirst, failed.notBefore = true, now.Add(firstWait)
	c := &callState{h: h, models: []*candidate{other, failed}}
	if got := c.next(); got != failed {
		t.Errorf("after a failure: got %s, want the same model", got.model.ID)
	}
	p, ok := h.health.Begin(failed.route(), now)
	if !ok {
		t.Fatal("the attempt of another call was refused")
	}
	h.health.End(&p, health.Answered, time.Minute, now)
	if got := c.next(); got != other {
		t.Errorf("while its provider asks to wait: got %s, want the other model", got.model.ID)
	}
	other.excluded = true
	if got := c.next(); got != failed {
		t.Errorf("without another model: got %v, want the model that has to wait", got)
	}
}

package heartbeat

import (
	"context"
	"errors"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/anima-run/anima/services/heartbeat/internal/schedule"
)

type instruments struct {
	wakes metric.Int64Counter
	late  metric.Float64Histogram
}

func newInstruments(p metric.MeterProvider) (t instruments, _ error) {
	m := p.Meter("github.com/anima-run/anima/services/heartbeat")
	var errs [2]error
	t.wakes, errs[0] = m.Int64Counter("anima.heartbeat.wakes", metric.WithUnit("{wake}"),
		metric.WithDescription("Wakes requested, by origin: cron, alarm, inbox, goal or creator; stale alarms wake no agent."))
	t.late, errs[1] = m.Float64Histogram("anima.heartbeat.lateness", metric.WithUnit("s"),
		metric.WithDescription("Delay from the due time of an entry to its wake."),
		metric.WithExplicitBucketBoundaries(.001, .002, .005, .01, .02, .05, .1, .25, 1, 5, 30, 300, 3600))
	return t, errors.Join(errs[:]...)
}

func (t instruments) wake(ctx context.Context, source string) {
	t.wakes.Add(ctx, 1, metric.WithAttributes(attribute.String("source", source)))
}

func (t instruments) fired(ctx context.Context, f schedule.Fired) {
	switch {
	case f.Stale:
		t.wake(ctx, "stale_alarm")
		return
	case f.Alarm != "":
		t.wake(ctx, "alarm")
	default:
		t.wake(ctx, "cron")
	}
	if !f.Postponed { // otherwise it is not late, because it has waited for its agent
		t.late.Record(ctx, f.When.Sub(f.At).Seconds())
	}
}

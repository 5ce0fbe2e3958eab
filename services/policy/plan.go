package policy

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/failpoint"
)

// Rules of decisions on plans (docs/reference/policy.md, unchecked plan cost). A decision
// lists these ids as it lists those of tool calls.
const (
	planLimit     = "plan.limit"     // a plan that may cost more than its limit needs the creator's approval
	planPrincipal = "plan.principal" // a plan with an input below the authority of the heartbeat needs it, too
)

// approvePlan judges a version of a plan. As in evaluate, the decision is recorded before
// it is returned, a repeated request gets the recorded decision, and another content
// under the same version is refused with Conflict.
func (h *handlers) approvePlan(ctx context.Context, m api.ApprovePlan) (api.Decision, error) {
	if m.Agent == "" || m.Goal == "" || m.Version < 1 || m.Hash == "" || m.Cost < 0 {
		return api.Decision{}, api.Errorf(api.Invalid, "a plan needs an agent, a goal, a version, a hash and what it may cost")
	}
	d, err := failpoint.Value(ctx, failpoint.PolicyPlan, func(ctx context.Context) (api.Decision, error) {
		return h.record(ctx, h.judgePlan(ctx, m), "")
	})
	if err != nil {
		return d, err
	}
	if d.Tool != api.PlanTool || d.ArgsHash != m.Hash || d.Agent != m.Agent {
		return api.Decision{}, api.Errorf(api.Conflict, "version %d of the plan of %s was decided with another content", m.Version, m.Goal)
	}
	trace.SpanFromContext(ctx).SetAttributes(
		attribute.String("automaton.policy.decision", string(d.Action)), attribute.String("automaton.policy.reason_code", d.Code))
	return d, nil
}

func (h *handlers) judgePlan(ctx context.Context, m api.ApprovePlan) api.Decision {
	began := h.now()
	d := api.Decision{
		ID: uuid.Must(uuid.NewV7()).String(), Agent: m.Agent, Turn: m.Goal, Index: m.Version, Tool: api.PlanTool, ArgsHash: m.Hash, By: m.By,
		Authority: m.By.Kind.Authority(), Risk: "caution", Action: api.Allow, Code: "ALLOWED", Evaluated: []string{planPrincipal, planLimit},
		Triggered: []string{}, Version: h.engine.Version(), Trace: trace.SpanContextFromContext(ctx).TraceID().String(), At: began.UnixMicro(),
	}
	switch {
	case d.Authority < api.HeartbeatKind.Authority():
		d.Action, d.Code, d.Triggered = api.Quarantine, "PLAN_BY_STRANGER", []string{planPrincipal}
		d.Message = "the goal has an input with less authority than the heartbeat: the creator must approve its plan"
	case m.Cost > m.Limit:
		d.Action, d.Code, d.Triggered = api.Quarantine, "PLAN_OVER_LIMIT", []string{planLimit}
		d.Message = fmt.Sprintf("the plan may cost %s, more than the limit of %s: the creator must approve it", m.Cost, m.Limit)
	}
	d.LatencyUS = h.now().Sub(began).Microseconds()
	return d
}

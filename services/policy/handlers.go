package policy

import (
	"context"
	"crypto/ed25519"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/google/uuid"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/failpoint"

	"github.com/anima-run/anima/services/policy/internal/rule"
	"github.com/anima-run/anima/services/policy/internal/sqlstore"
)

// maxArgs is the largest size of a call's arguments, in bytes.
const maxArgs = 256 << 10

// tokenLife is the validity of the grant of an allowed call. One minute covers the I/O of
// the executor before the call begins, and limits the use of a stolen token.
const tokenLife = time.Minute

type handlers struct {
	log    *slog.Logger
	now    func() time.Time
	store  *sqlstore.Store
	engine *rule.Engine
	key    ed25519.PrivateKey
	tel    *instruments
}

// evaluate judges a call, records the decision and returns it; an allowed call gets a
// signed grant. If the decision cannot be recorded, evaluate returns an error and the
// call does not run. A repeated request is judged again but answered with the decision
// that was recorded first; with other arguments it is refused with Conflict.
func (h *handlers) evaluate(ctx context.Context, m api.Evaluate) (api.Decision, error) {
	hash, err := check(m)
	if err != nil {
		return api.Decision{}, err
	}
	d, err := failpoint.Value(ctx, failpoint.PolicyRecord, func(ctx context.Context) (api.Decision, error) {
		return h.judged(ctx, m, hash)
	})
	if err != nil {
		return d, err
	}
	if d.Tool != m.Tool || d.ArgsHash != hash || d.Agent != m.Agent {
		return api.Decision{}, api.Errorf(api.Conflict, "call %d of turn %s was decided with other arguments", m.Index, m.Turn)
	}
	trace.SpanFromContext(ctx).SetAttributes(
		attribute.String("automaton.policy.decision", string(d.Action)), attribute.String("automaton.policy.reason_code", d.Code),
		attribute.Int("automaton.policy.rules_evaluated", len(d.Evaluated)), attribute.String("gen_ai.tool.name", d.Tool),
	)
	if d.Action != api.Allow {
		return d, nil
	}
	d.Token, err = api.Grant{
		Decision: d.ID, Agent: d.Agent, Turn: d.Turn, Index: d.Index, Tool: d.Tool, ArgsHash: d.ArgsHash, By: d.By,
		Expires: h.now().Add(tokenLife).UnixMicro(),
	}.Sign(h.key)
	return d, err
}

// judged judges and records a call. A call of a rate-limited tool is counted, judged and
// recorded in one transaction, because concurrent calls would otherwise exceed the limit
// together; the other tools do without it.
func (h *handlers) judged(ctx context.Context, m api.Evaluate, hash string) (api.Decision, error) {
	began, window := h.now(), h.engine.Window(m.Tool)
	if window == 0 {
		return h.record(ctx, h.judge(ctx, m, hash, began, nil), m.Run)
	}
	d, first, err := h.store.RecordCounted(ctx, m.Agent, m.Tool, began.Add(-window), m.Run, func(allowed int) api.Decision {
		return h.judge(ctx, m, hash, began, &rule.Facts{Recent: allowed})
	})
	h.recorded(ctx, d, first && err == nil)
	return d, err
}

// record stores a decision and returns the recorded one: judged, or an earlier decision
// on the same call.
func (h *handlers) record(ctx context.Context, judged api.Decision, run string) (api.Decision, error) {
	d, first, err := h.store.Record(ctx, judged, run)
	h.recorded(ctx, d, first)
	return d, err
}

// recorded measures a decision that was recorded first.
func (h *handlers) recorded(ctx context.Context, d api.Decision, first bool) {
	if first {
		h.tel.decided(ctx, d.Action, d.Code, time.Duration(d.LatencyUS)*time.Microsecond)
	}
}

// checkCall judges a call without recording the decision. The answer has no id and no
// grant.
func (h *handlers) checkCall(ctx context.Context, m api.CheckCall) (api.Decision, error) {
	hash, err := check(m.Evaluate)
	if err != nil {
		return api.Decision{}, err
	}
	d := h.decide(ctx, m.Evaluate, hash)
	d.ID = ""
	return d, nil
}

// check validates a request and returns the hash of its arguments. Errors: Invalid.
func check(m api.Evaluate) (string, error) {
	if m.Tool == "" || m.Turn == "" || m.Agent == "" || m.Index < 0 {
		return "", api.Errorf(api.Invalid, "a call needs an agent, a turn, an index and a tool")
	}
	if len(m.Args) > maxArgs {
		return "", &api.Error{Code: api.Invalid, Message: fmt.Sprintf("the arguments have %d bytes, at most %d are taken", len(m.Args), maxArgs), Next: "write large content in parts"}
	}
	return api.ArgsHash(m.Args)
}

// decide judges a call without recording the decision. It returns no error: if the
// history of a rate-limited tool cannot be read, Facts is nil and the rate rules deny the
// call.
func (h *handlers) decide(ctx context.Context, m api.Evaluate, hash string) api.Decision {
	began := h.now()
	var facts *rule.Facts
	if window := h.engine.Window(m.Tool); window > 0 {
		if n, err := h.store.AllowedSince(ctx, m.Agent, m.Tool, began.Add(-window)); err == nil {
			facts = &rule.Facts{Recent: n}
		} else {
			h.log.ErrorContext(ctx, "earlier decisions cannot be read", "err", err)
		}
	}
	return h.judge(ctx, m, hash, began, facts)
}

// judge evaluates a call with all rules.
func (h *handlers) judge(ctx context.Context, m api.Evaluate, hash string, began time.Time, facts *rule.Facts) api.Decision {
	in := rule.Input{Evaluate: m, Facts: facts}
	judging := h.now()
	r := h.engine.Evaluate(in)
	took := h.now().Sub(judging)
	if r.Err != nil {
		h.log.ErrorContext(ctx, "rule failed, call denied", "tool", m.Tool, "rules", strings.Join(r.RulesTriggered, " "), "err", r.Err)
	}
	return api.Decision{
		ID: uuid.Must(uuid.NewV7()).String(), Agent: m.Agent, Session: m.Session, Turn: m.Turn, Index: m.Index, Tool: m.Tool, ArgsHash: hash,
		By: m.By, Authority: r.Authority, Risk: string(r.Risk), Action: r.Action, Code: string(r.Code), Message: r.Message,
		Evaluated: notNil(r.RulesEvaluated), Triggered: notNil(r.RulesTriggered), Version: h.engine.Version(),
		Trace: trace.SpanContextFromContext(ctx).TraceID().String(), LatencyUS: took.Microseconds(), At: began.UnixMicro(),
	}
}

func notNil(s []string) []string {
	if s == nil {
		return []string{}
	}
	return s
}

func (h *handlers) listDecisions(ctx context.Context, m api.ListDecisions) (api.Decisions, error) {
	limit, err := api.PageLimit(m.Limit, 50)
	if err != nil {
		return api.Decisions{}, err
	}
	after, err := placeOf(m.After)
	if err != nil {
		return api.Decisions{}, err
	}
	m.Limit, m.Agent = limit+1, strings.ToLower(m.Agent)
	all, err := h.store.List(ctx, m, after)
	all, page := api.CutPage(all, limit, func(d api.Decision) string { return cursor(d) })
	return api.Decisions{Decisions: all, Page: page}, err
}

func (h *handlers) listRules(context.Context, api.ListRules) (api.Rules, error) {
	return api.Rules{Version: h.engine.Version(), Rules: h.engine.Describe()}, nil
}

func (h *handlers) listKeys(context.Context, api.ListKeys) (api.Keys, error) {
	pub, ok := h.key.Public().(ed25519.PublicKey)
	if !ok {
		return api.Keys{}, fmt.Errorf("the signing key is %T", h.key)
	}
	return api.Keys{Keys: [][]byte{pub}}, nil
}

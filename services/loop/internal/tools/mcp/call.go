package mcp

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/propagation"
	semconv "go.opentelemetry.io/otel/semconv/v1.41.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/anima-run/anima/pkg/telemetry"

	"github.com/anima-run/anima/services/loop/internal/engine"
)

// call makes one call of a tool. It repeats the call once if the server has lost the
// session, because the server then refused the call without executing it.
func (m *Manager) call(ctx context.Context, c engine.Call, server string, o offer) (engine.Output, error) {
	s, err := m.registry.get(c.Agent.ID, server)
	if err != nil {
		return engine.Output{}, fmt.Errorf("the MCP server %s: %w", server, err)
	}
	outer := ctx
	ctx, cancel := context.WithTimeout(ctx, m.cfg.Call)
	defer cancel()
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	for retry := false; ; retry = true {
		l, err := m.take(ctx, c.Agent, s)
		if err != nil {
			if outer.Err() != nil {
				return engine.Output{}, context.Cause(outer)
			}
			return engine.Output{}, fmt.Errorf("the MCP server %s cannot be used now: %w", server, err)
		}
		unhook := context.AfterFunc(l.life, func() { stop(errRetired) })
		res, err := m.send(ctx, l, c, o)
		unhook()
		m.give(l)
		switch {
		case err == nil:
			return output(s, o, res)
		case outer.Err() != nil:
			return engine.Output{}, context.Cause(outer)
		case errors.Is(context.Cause(ctx), errRetired):
			return engine.Output{}, fmt.Errorf("the connection to the MCP server %s was closed during the call; the call may or may not have happened", server)
		case ctx.Err() != nil:
			return engine.Output{}, fmt.Errorf("the MCP server %s did not answer within %s; the call may or may not have happened: %w", server, m.cfg.Call, context.DeadlineExceeded)
		case errors.Is(err, sdk.ErrSessionMissing) && !retry:
			// The server was restarted and refused the call before executing it.
			select {
			case <-l.gone:
			case <-ctx.Done():
			}
			m.resetBackoff(l.key)
			continue
		}
		return engine.Output{}, l.failure(ctx, err)
	}
}

// send makes the call in a span of its own and passes the span's context to the server.
func (m *Manager) send(ctx context.Context, l *link, c engine.Call, o offer) (_ *sdk.CallToolResult, err error) {
	ctx, span := m.cfg.Tracer.Start(ctx, "tools/call "+o.name, trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(
		attribute.String("mcp.method.name", "tools/call"), semconv.GenAIOperationNameExecuteTool,
		attribute.String("gen_ai.tool.name", o.name), attribute.String("network.transport", l.wire.network()),
	))
	defer func() {
		if err != nil {
			telemetry.Fail(span, "mcp_error", "the MCP server gave no result")
		}
		span.End()
	}()
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, carrier)
	meta := sdk.Meta{}
	for k, v := range carrier {
		meta[k] = v
	}
	if _, err := decode(c.Args); err != nil {
		return nil, err
	}
	args := c.Args // as policy judged them
	if len(bytes.TrimSpace(args)) == 0 {
		args = json.RawMessage("{}")
	}
	res, err := l.session.CallTool(ctx, &sdk.CallToolParams{Meta: meta, Name: o.remote, Arguments: args})
	if err == nil && res.IsError {
		telemetry.Fail(span, "tool_error", "the tool reported an error")
	}
	return res, err
}

// failure returns the error of a call without a result. If the server answered with an
// error, the call was refused. Otherwise it may or may not have been executed.
func (l *link) failure(ctx context.Context, err error) error {
	if _, answered := errors.AsType[*jsonrpc.Error](err); answered {
		return fmt.Errorf("the MCP server %s refused the call: %w", l.server.Name, l.server.explain(ctx, err, nil))
	}
	wait := grace
	if l.server.Command != "" {
		wait = 5 * time.Second // the process is being ended, so gone is closed soon
	}
	select {
	case <-l.gone:
		err = l.end
	case <-time.After(wait):
	}
	return fmt.Errorf("the MCP server %s gave no result, and the call may or may not have happened: %w", l.server.Name, l.server.explain(ctx, err, nil))
}

// explain returns an error for the model and the log: without secrets and hidden
// instructions, and at most 1,000 characters long.
func (s Server) explain(ctx context.Context, err error, w wire) error {
	if errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil {
		return errors.New("it did not answer in time")
	}
	text := err.Error()
	if w != nil {
		if last := w.last(); last != "" {
			text += "; its last output: " + last
		}
	}
	return errors.New(defused(s.redact(text), 1_000))
}

// first returns a list as text, with at most its first most items.
func first(list []string, most int, separator string) string {
	text := strings.Join(list[:min(len(list), most)], separator)
	if more := len(list) - most; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

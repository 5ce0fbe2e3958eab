package social

import (
	"context"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"
	"github.com/anima-run/anima/pkg/executor"
	"github.com/anima-run/anima/services/social/internal/message"
)

// tools returns the tools of social for agents.
func (h *handlers) tools() map[string]executor.Func {
	return map[string]executor.Func{"send_message": h.sendMessage}
}

// sendMessage requests treasury's signature for a message of the agent and receives the
// message like any other. The signature covers the time of the completion, so that a
// repeated call sends the same message, which is stored once.
func (h *handlers) sendMessage(ctx context.Context, c executor.Call) (string, error) {
	to, content, at := c.Args.String("to_address"), c.Args.String("content"), message.FormatTime(time.UnixMicro(c.At))
	sig, err := bus.Call[api.Signature](ctx, h.bus, api.SignMessage{Agent: c.Agent, To: to, Content: content, SignedAt: at})
	if err != nil {
		return "", err
	}
	id, err := h.receive(ctx, message.Signed{
		From: sig.From, To: to, Content: content, SignedAt: at, Signature: sig.Signature, ReplyTo: c.Args.String("reply_to"),
	})
	if err != nil {
		return "", err
	}
	return "sent as " + id, nil
}

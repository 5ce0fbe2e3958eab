package router

import (
	"context"
	"errors"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/host"

	"github.com/anima-run/anima/services/inference-router/internal/admission"
	"github.com/anima-run/anima/services/inference-router/internal/provider"
)

// priorities are those of tasks. Without an entry a task is Normal.
var priorities = map[api.Task]admission.Priority{
	api.TaskSafety:  admission.Urgent,
	api.TaskTriage:  admission.Urgent,
	api.TaskSummary: admission.Background,
}

// priorityOf returns the priority of a call. The holder of an API key chooses the task of its
// calls, which must not begin before those of other agents.
func priorityOf(req callRequest) admission.Priority {
	p := priorities[req.Task]
	if req.keyed && p == admission.Urgent {
		return admission.Normal
	}
	return p
}

// requestShare is the part of the process's memory limit that requests may have: one in
// this many. A request takes three to five times its size until its call ends
// (docs/bench.md, Memory of a router).
const requestShare = 8

// httpShare is the part of the memory for requests that those over HTTP may have: one in this
// many. They have it while their clients still send, so slow clients must not leave none for
// the calls of agents.
const httpShare = 2

// requestMemory returns the bound of the total size of requests in bytes: the setting, in
// MiB, or by the process's memory limit if that is 0.
func requestMemory(setting int) int64 {
	if setting > 0 {
		return int64(setting) << 20
	}
	return host.MemoryLimit() / requestShare
}

// admit waits until the call may begin. The returned function must be called when the
// call has ended.
func (h *handlers) admit(ctx context.Context, req callRequest) (leave func(), err error) {
	err = h.gate.Enter(ctx, priorityOf(req))
	switch {
	case err == nil:
		began := h.now()
		return func() { h.gate.Leave(h.now().Sub(began)) }, nil
	case errors.Is(err, context.DeadlineExceeded):
		return nil, &api.Error{
			Code: api.Unavailable, Reason: api.ReasonBusy, Message: "the router is busy: the call did not begin within its time limit",
			Next: "try again, or start more replicas of inference-router", RetryAfter: time.Second.Milliseconds(),
		}
	case ctx.Err() != nil:
		return nil, failureOf(provider.CanceledError("inference-router", err))
	}
	return nil, err
}

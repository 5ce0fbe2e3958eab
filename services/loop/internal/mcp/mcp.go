// Package mcp lets agents use tools of Model Context Protocol servers. It keeps
// which servers an agent has, connects to them when their tools are wanted, turns
// what they offer into tools of a turn, and ends the connections.
//
// A server is not trusted. One that is a program runs in the agent's sandbox, held
// as its commands are; one at an address is reached only where the sandbox has
// network. What a server says of its tools and answers is defused and marked as
// data from outside, its schemas are taken apart and put together anew, and its
// hints (readOnlyHint, idempotentHint) say only what may be repeated after a
// crash. This package never decides whether a call may be made: that is policy's.
package mcp

import (
	"context"
	"log/slog"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/anima-run/anima/services/loop/internal/egress"
	"github.com/anima-run/anima/services/loop/internal/outbound"
	"github.com/anima-run/anima/services/loop/internal/sandbox"
	"github.com/anima-run/anima/services/loop/internal/turn"
)

// Toolbox gives the tools that an agent has beyond the built-in ones.
type Toolbox interface {
	// Tools returns the tools that the agent's definition grants and its servers
	// offer now, by name. It waits a bounded time for servers that are not connected;
	// what a server that is away would offer is left out.
	Tools(ctx context.Context, a turn.Agent) []turn.Tool
}

// Limits.
const (
	MaxServers = 16       // of an agent
	MaxTools   = 64       // of an agent, over all its servers
	MaxResult  = 50_000   // characters of one result; spec-core-2 §5.1
	maxListed  = 1_000    // tools of one server that are looked at
	maxPages   = 64       // of one list
	maxFrame   = 16 << 20 // bytes of one message from a server
)

// Config of a [Manager]. Dir, Now, Log and Tracer are required.
type Config struct {
	// Dir holds a folder for each agent with a file for each of its servers. It must
	// be out of reach of the agents' commands: the files hold credentials, and
	// what is in them is started.
	Dir              string
	AllowUnsandboxed bool             // the operator accepts servers without Landlock
	Egress           *egress.Proxy    // through which servers that are programs reach the network; nil: they do not
	Outbound         outbound.Options // for servers at an address
	Quota            sandbox.Quota    // of each agent's folder, for servers that are programs
	Room             func() error     // an error while the disk has only its reserve; nil: there is room
	Now              func() time.Time
	Log              *slog.Logger
	Tracer           trace.Tracer

	Wait    time.Duration // how long Tools waits for servers; default 10 s
	Connect time.Duration // how long a server may take to start and list its tools; default 60 s
	Call    time.Duration // how long a call may take; default 30 s (seed 004)
	Idle    time.Duration // an unused connection is closed after it; default 10 min
}

func (c Config) withDefaults() Config {
	c.Wait = orDefault(c.Wait, 10*time.Second)
	c.Connect = orDefault(c.Connect, 60*time.Second)
	c.Call = orDefault(c.Call, 30*time.Second)
	c.Idle = orDefault(c.Idle, 10*time.Minute)
	return c
}

func orDefault(d, otherwise time.Duration) time.Duration {
	if d <= 0 {
		return otherwise
	}
	return d
}

// Package mcp lets agents use the tools of Model Context Protocol servers. It stores the
// servers of each agent, connects to them when their tools are needed, converts their
// tools into tools of a turn, and closes the connections.
//
// Servers are not trusted. A server that is a program runs in the agent's sandbox with
// the restrictions of commands; a server at a URL is used only if the sandbox has network
// access. Descriptions and results are defused and marked as data from outside. Schemas
// are parsed and rebuilt. The hints readOnlyHint and idempotentHint only determine
// whether a call may be repeated after a crash. This package must not decide whether a
// call is allowed: policy does that.
package mcp

import (
	"cmp"
	"log/slog"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/anima-run/anima/services/loop/internal/tools"
)

// Limits of agents and servers (docs/reference/loop.md, MCP servers).
const (
	MaxServers = 16       // servers per agent
	MaxTools   = 64       // tools per agent, of all its servers
	MaxResult  = 50_000   // characters per result
	maxListed  = 1_000    // tools of one server that are read
	maxPages   = 64       // pages of one list
	maxFrame   = 16 << 20 // bytes of one message of a server
	maxStream  = 64 << 20 // bytes of one stream of messages of a server at a URL
)

// Config is the configuration of a [Manager]. Dir, Now, Log and Tracer are required.
type Config struct {
	tools.Config
	// Dir contains a folder for each agent, with one file per server. The commands of
	// agents must not be able to access it: the files hold credentials and name programs
	// that are started.
	Dir    string
	Log    *slog.Logger
	Tracer trace.Tracer

	Wait    time.Duration // longest wait of Tools for servers; default 10 s
	Connect time.Duration // time limit for starting a server and listing its tools; default 60 s
	Call    time.Duration // time limit of a call; default 30 s (docs/reference/loop.md, MCP servers)
	Idle    time.Duration // time after which an unused connection is closed; default 10 min
}

func (c Config) withDefaults() Config {
	c.Wait = cmp.Or(c.Wait, 10*time.Second)
	c.Connect = cmp.Or(c.Connect, 60*time.Second)
	c.Call = cmp.Or(c.Call, 30*time.Second)
	c.Idle = cmp.Or(c.Idle, 10*time.Minute)
	return c
}

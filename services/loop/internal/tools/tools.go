// Package tools has what its subpackages share: the resources of the process that tools
// use. builtin has tools of the catalogue, git those for repositories, and mcp those of
// MCP servers. None of them may decide whether a call is allowed: policy decides that
// before.
package tools

import (
	"strings"
	"sync"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/safehttp"

	"github.com/anima-run/anima/services/loop/internal/egress"
	"github.com/anima-run/anima/services/loop/internal/engine"
	"github.com/anima-run/anima/services/loop/internal/sandbox"
)

// Config has the resources and limits that tools share.
type Config struct {
	AllowUnsandboxed bool             // the operator accepts commands and servers without Landlock
	NPM              bool             // npm is installed on the machine
	Egress           *egress.Proxy    // proxy for commands with a network; nil means that no command has one
	Outbound         safehttp.Options // options for the URLs of skills and MCP servers
	Quota            sandbox.Quota    // quota of each agent's folder
	Room             func() error     // returns an error while the disk has only its reserve; nil means no check
	Now              func() time.Time
}

// Confine returns the spec of a command with the agent's folder, network and limits. The
// caller calls revoke, which ends the network access, after the command has ended.
func (c Config) Confine(a engine.Agent, s sandbox.Spec) (_ sandbox.Spec, revoke func()) {
	s.Dir, s.AllowUnsandboxed, s.Quota, s.Room = a.Workspace, c.AllowUnsandboxed, c.Quota, c.Room
	s.Proxy, revoke = c.Egress.Grant(a.ID, a.Network)
	return s, revoke
}

// NeedNetwork returns an error if the agent's sandbox has no network. Policy checks this,
// too; tools that run in the process of loop would have a network. so is the consequence
// and next the advice for the model.
func NeedNetwork(a engine.Agent, so, next string) error {
	if a.Network {
		return nil
	}
	return &api.Error{Code: api.Denied, Message: "this agent's sandbox has no network" + so, Next: next}
}

// maxTail is the number of bytes of output that is reported while a call runs.
const maxTail = 400

// Tail returns a function that passes the last bytes of a program's output to report,
// which may be nil. The function is safe for concurrent use, because stdout and stderr
// are written concurrently.
func Tail(report func(string)) func([]byte) {
	if report == nil {
		return nil
	}
	var mu sync.Mutex
	var end []byte
	return func(p []byte) {
		mu.Lock()
		end = append(end, p[max(0, len(p)-maxTail):]...)
		end = end[max(0, len(end)-maxTail):]
		text := strings.ToValidUTF8(string(end), "\uFFFD")
		mu.Unlock()
		report(text)
	}
}

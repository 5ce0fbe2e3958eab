package loop

import (
	"strings"

	"github.com/anima-run/anima/pkg/api/catalog"

	"github.com/anima-run/anima/services/loop/internal/agentmd"
	"github.com/anima-run/anima/services/loop/internal/tool"
)

// AgentFile is what a creator says of a new agent; the rest of its AGENT.md has
// defaults. Texts may be empty, but for Name and Genesis.
type AgentFile struct {
	Name        string
	Description string
	Genesis     string // who it is and what it is for
	Creator     string // address
	Message     string // of the creator, said at birth
	Model       string
	Tools       []string // nil: [DefaultTools]
	Autonomy    bool     // it wakes by itself a while after it had nothing to do
}

// Source is the AGENT.md with every default spelled out, and what is wrong with
// it, one fault each and all of them; a file with faults is refused when it is
// applied.
func (f AgentFile) Source() ([]byte, []string) {
	d := agentmd.Definition{
		Name: f.Name, Description: f.Description, Model: f.Model, Creator: f.Creator, Message: f.Message, Autonomy: f.Autonomy,
		Tools: f.Tools, Limits: agentmd.DefaultLimits(), Context: agentmd.DefaultContext(), Sandbox: agentmd.DefaultSandbox(),
		Body: strings.TrimSpace(f.Genesis),
	}
	if f.Tools == nil {
		d.Tools = tool.Basic()
	}
	src := agentmd.Render(d)
	_, faults := agentmd.Parse(src, knownTools())
	var texts []string
	for _, f := range faults { // without the lines, of a file that the caller has not seen
		if d.Body == "" && strings.HasPrefix(f.Message, "the Markdown") {
			f.Message = "the genesis prompt is empty"
		}
		texts = append(texts, f.Message)
	}
	return src, texts
}

// CheckAgentFile judges an AGENT.md as applying it would, without asking any
// service. It returns the id that the agent will have, or every fault with its
// line.
func CheckAgentFile(src []byte) (id string, faults []string) {
	d, all := agentmd.Parse(src, knownTools())
	for _, f := range all {
		faults = append(faults, f.String())
	}
	return strings.ToLower(d.Name), faults
}

// DefaultTools are the tools of an AGENT.md that names none.
func DefaultTools() []string { return tool.Basic() }

// knownTools are what an AGENT.md may name.
func knownTools() agentmd.Known { return agentmd.Known{Tools: catalog.Names(), Basic: tool.Basic()} }

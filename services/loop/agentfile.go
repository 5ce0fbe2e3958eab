package loop

import (
	"strings"

	"github.com/anima-run/anima/pkg/api/catalog"

	"github.com/anima-run/anima/services/loop/internal/agent"
	"github.com/anima-run/anima/services/loop/internal/tools/builtin"
)

// AgentFile holds the settings of a new agent that its creator chooses; the rest of its
// AGENT.md has defaults. Name and Genesis must not be empty.
type AgentFile struct {
	Name        string
	Description string
	Genesis     string // the genesis prompt
	Creator     string // address
	Message     string // from the creator, shown in the first turn
	Model       string
	Tools       []string // nil: [DefaultTools]
	Autonomy    bool     // the agent sets an alarm after each run
}

// Source renders the AGENT.md with all defaults, and returns its faults. A file with
// faults is refused when it is applied.
func (f AgentFile) Source() ([]byte, []string) {
	d := agent.Definition{
		Name: f.Name, Description: f.Description, Model: f.Model, Creator: f.Creator, Message: f.Message, Autonomy: f.Autonomy,
		Tools: f.Tools, Limits: agent.DefaultLimits(), Context: agent.DefaultContext(), Sandbox: agent.DefaultSandbox(),
		Body: strings.TrimSpace(f.Genesis),
	}
	if f.Tools == nil {
		d.Tools = builtin.Basic()
	}
	src := agent.Render(d)
	_, faults := agent.Parse(src, knownTools())
	var texts []string
	for _, f := range faults { // without line numbers, because the caller has not seen the file
		if d.Body == "" && strings.HasPrefix(f.Message, "the Markdown") {
			f.Message = "the genesis prompt is empty"
		}
		texts = append(texts, f.Message)
	}
	return src, texts
}

// CheckAgentFile validates an AGENT.md as applying it would, without calling a service.
// It returns the id that the agent will have, and every fault with its line.
func CheckAgentFile(src []byte) (id string, faults []string) {
	d, all := agent.Parse(src, knownTools())
	for _, f := range all {
		faults = append(faults, f.String())
	}
	return strings.ToLower(d.Name), faults
}

// DefaultTools returns the tools of an AGENT.md that names none.
func DefaultTools() []string { return builtin.Basic() }

// knownTools returns the tools that an AGENT.md may name.
func knownTools() agent.Known { return agent.Known{Tools: catalog.Names(), Basic: builtin.Basic()} }

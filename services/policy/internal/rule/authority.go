package rule

import (
	"fmt"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/api/catalog"
)

// Least authority for a tool of risk dangerous, and for a dangerous tool that moves money
// (docs/reference/policy.md, Authority).
const (
	dangerousNeeds = 60
	moneyNeeds     = 80
)

// toolNeeds returns the least authority per tool; tools that are not listed need none.
// Messages leave the machine and need 40. The other tools start programs, reach the
// network or change how the agent runs, and need 50.
func toolNeeds() map[string]int {
	needs := map[string]int{"send_message": api.Peer.Authority(), "message_child": api.Peer.Authority()}
	for _, tool := range []string{
		"exec", "git_push", "git_clone", "expose_port", "remove_port", "revert_last_edit", "modify_heartbeat", "update_soul", "switch_model",
		"enter_low_compute", "create_goal", "cancel_goal", "start_child", "prune_dead_children",
	} {
		needs[tool] = api.HeartbeatKind.Authority()
	}
	return needs
}

// tooLow denies a call if the authority of the turn is below need.
func tooLow(c *Call, need int) string {
	if c.Authority >= need {
		return ""
	}
	return fmt.Sprintf("%s needs authority %d and this turn has %d because it read %s input; do it in a turn of your own, or ask the creator",
		c.Tool, need, c.Authority, kindOf(c.By))
}

// dangerous denies tools of risk dangerous below authority 60, and below 80 if they move
// money.
func dangerous(c *Call) string {
	need := dangerousNeeds
	if c.Spec.Spends {
		need = moneyNeeds
	}
	if c.Authority >= need {
		return ""
	}
	return fmt.Sprintf("%s is dangerous and needs authority %d, this turn has %d; do it in a turn of your own, or ask the creator",
		c.Tool, need, c.Authority)
}

// spending requires the creator's approval for a tool that moves money when the authority
// is below 60 (docs/reference/policy.md, Authority). Tools of risk dangerous are the
// subject of [dangerous].
func spending() Rule {
	return Rule{
		ID: "authority.spending", Priority: 400,
		Applies: Selector{Risks: []catalog.Risk{catalog.Safe, catalog.Caution}},
		Does:    "holds a tool that moves money for the creator's approval when the turn's authority is below 60",
		Codes:   []Code{SpendNeedsAssent},
		Data:    dangerousNeeds,
		Check: func(c *Call) (*Finding, error) {
			if c.Spec.Spends && c.Authority < dangerousNeeds {
				return &Finding{Action: api.Quarantine, Code: SpendNeedsAssent, Message: c.Tool + " moves money and this turn read " + string(kindOf(c.By)) + " input, so the creator must approve it"}, nil
			}
			return nil, nil
		},
	}
}

// selfModification denies writes to files that define the agent if the turn has too
// little authority. path.protected_files denies most of these names at any authority and
// is evaluated first. Heartbeat turns may write MEMORY.md and WORKLOG.md because they
// contain no text of other agents; peers may not, because every later prompt contains
// them.
func (g *protectedPaths) selfModification(c *Call) string {
	loc := c.location()
	for _, level := range []struct {
		names *list
		needs int
	}{{g.Self, api.Self.Authority()}, {g.Notes, api.HeartbeatKind.Authority()}} {
		if e := level.names.match(loc); e != "" && c.Authority < level.needs {
			return fmt.Sprintf("%s shapes the agent and needs authority %d, this turn has %d; note what you wanted to change and do it in a turn of your own",
				e, level.needs, c.Authority)
		}
	}
	return ""
}

// kindOf returns the kind of a principal as messages show it.
func kindOf(p api.Principal) api.PrincipalKind {
	switch p.Kind {
	case api.Creator, api.Self, api.HeartbeatKind, api.Peer:
		return p.Kind
	case api.External:
	}
	return api.External
}

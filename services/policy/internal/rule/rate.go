package rule

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/anima-run/anima/pkg/api"
)

// limit is the number of calls of a tool that are allowed to an agent in a rolling
// window.
type limit struct {
	ID     string        `json:"id"`
	Max    int           `json:"max"`
	Window time.Duration `json:"window"`
	Code   Code          `json:"code"`
	what   string        // subject of the message: the limited calls
	next   string        // advice at the end of the message
}

// limits returns the limits by tool (docs/reference/policy.md, Rates).
func limits() map[string]limit {
	return map[string]limit{
		"send_message":          {"rate.messages_hourly", 100, time.Hour, RateLimitMessages, "messages were sent", "collect what you have to say and send it later"},
		"edit_own_file":         {"rate.self_mod_hourly", 10, time.Hour, RateLimitSelfMod, "changes of your files were made", "think the next one over and make it later"},
		"update_genesis_prompt": {"rate.genesis_prompt_daily", 1, 24 * time.Hour, RateLimitGenesis, "changes of the genesis prompt were made", "live with it for a day"},
		"spawn_child":           {"rate.spawn_daily", 3, 24 * time.Hour, RateLimitSpawn, "children were made", "make the next one tomorrow"},
	}
}

// rates returns the rate rules. They count earlier allow decisions, which are stored
// before the tool runs, so a restart does not reset a rate.
func rates() []Rule {
	all := limits()
	var rules []Rule
	for _, tool := range slices.Sorted(maps.Keys(all)) {
		l := all[tool]
		window := "hour"
		if l.Window > time.Hour {
			window = fmt.Sprintf("%d hours", int(l.Window.Hours()))
		}
		rules = append(rules, Rule{
			ID: l.ID, Priority: 600,
			Applies: Selector{Tools: []string{tool}},
			Does:    fmt.Sprintf("refuses %s after %d calls in a rolling %s, and every call while the history cannot be read", tool, l.Max, window),
			Codes:   []Code{l.Code, DBUnavailable},
			Data:    l,
			Check: func(c *Call) (*Finding, error) {
				if c.Facts == nil {
					return deny(DBUnavailable, "earlier decisions cannot be read, so the limit of %s cannot be checked; try again in a minute", tool), nil
				}
				if c.Facts.Recent >= l.Max {
					return deny(l.Code, "%d %s in the last %s, the limit is %d; %s", c.Facts.Recent, l.what, window, l.Max, l.next), nil
				}
				return nil, nil
			},
		})
	}
	return rules
}

// granted denies tools that the agent's definition does not grant.
func granted(c *Call) string {
	if api.Grants(c.Tools, c.Tool) {
		return ""
	}
	return c.Tool + " is not among the tools of this agent's definition; go on without it, or ask the creator to add it to AGENT.md"
}

// networkGranted denies tools that need the network if the agent's sandbox has none.
func networkGranted(c *Call) string {
	if c.Network {
		return ""
	}
	return c.Tool + " needs the network and this agent's sandbox has none; ask the creator to grant it"
}

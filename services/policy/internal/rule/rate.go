package rule

import "strings"

// messagesPerHour is the outbound limit of spec-social §2.2, rolling.
const messagesPerHour = 100

// messageRate limits outbound messages. It counts earlier allow decisions,
// which are durable before the tool runs, so a restart forgets none.
func messageRate() Rule {
	return Rule{
		ID: "rate.messages_hourly", Priority: 600,
		Applies: Selector{Tools: []string{"send_message"}},
		Does:    "refuses a message after 100 in a rolling hour, and every message while the history cannot be read",
		Codes:   []Code{RateLimitMessages, DBUnavailable},
		Data:    messagesPerHour,
		Check: func(c *Call) (*Finding, error) {
			if c.Facts == nil {
				return deny(DBUnavailable, "earlier decisions cannot be read, so the message limit cannot be checked; try again in a minute"), nil
			}
			if c.Facts.LastHour >= messagesPerHour {
				return deny(RateLimitMessages, "%d messages were sent in the last hour, the limit is %d; collect what you have to say and send it later",
					c.Facts.LastHour, messagesPerHour), nil
			}
			return nil, nil
		},
	}
}

// addressFormat checks who a message is for before anything else looks at it.
func addressFormat() Rule {
	return Rule{
		ID: "validate.address_format", Priority: 100,
		Applies: Selector{Tools: []string{"send_message"}},
		Does:    "refuses an address that is not 0x and 40 hex digits",
		Codes:   []Code{ValidationFailed},
		Check: func(c *Call) (*Finding, error) {
			hex, ok := strings.CutPrefix(c.Values.String("to_address"), "0x")
			if !ok || len(hex) != 40 || strings.Trim(hex, "0123456789abcdefABCDEF") != "" {
				return deny(ValidationFailed, "to_address must be 0x and 40 hex digits; look the agent's address up"), nil
			}
			return nil, nil
		},
	}
}

// granted holds an agent to the tools of its definition.
func granted() Rule {
	return Rule{
		ID: "definition.granted_tools", Priority: 50,
		Does:  "refuses a tool that the agent's definition does not grant",
		Codes: []Code{ToolNotGranted},
		Check: func(c *Call) (*Finding, error) {
			for _, t := range c.Tools {
				if t == c.Tool {
					return nil, nil
				}
			}
			return deny(ToolNotGranted, "%s is not among the tools of this agent's definition; go on without it, or ask the creator to add it to AGENT.md", c.Tool), nil
		},
	}
}

package api

import "encoding/json"

// What an agent can do, for people: its tools, its skills and its MCP servers. Loop
// answers, since it offers them to models.
//
// History: v1 2026-11 first version.

// ListTools answers [Tools]. Errors: NotFound (agent).
type ListTools struct {
	Agent string `json:"agent,omitempty"` // "": the catalogue, without what belongs to one agent
}

// Subject of the message.
func (ListTools) Subject() Subject { return request(Loop, "list_tools") }

// Tools are the tools of the catalogue by name, then those of an agent's MCP servers.
type Tools struct {
	Tools []ToolInfo `json:"tools"`
}

// ToolInfo is one tool.
type ToolInfo struct {
	Name       string `json:"name"`
	Does       string `json:"does"`
	Category   string `json:"category"`
	Risk       string `json:"risk"`             // safe, caution, dangerous or forbidden
	Owner      Owner  `json:"owner"`            // the service that executes it, or would
	Server     string `json:"server,omitempty"` // the agent's MCP server that it belongs to
	Executable bool   `json:"executable"`       // a model that is granted it can call it now
	Why        string `json:"why,omitempty"`    // it is not executable
	Default    bool   `json:"default"`          // an AGENT.md that names no tools grants it
	Granted    bool   `json:"granted"`          // the agent's definition grants it; false without an agent
}

// CheckTool asks policy about a call that an agent could make, and records nothing.
// Answers [Decision] without a token. Errors: NotFound (agent), Invalid (By, or
// arguments over 256 KiB).
type CheckTool struct {
	Agent string          `json:"agent"`
	Tool  string          `json:"tool"`
	Args  json.RawMessage `json:"args"`
	By    PrincipalKind   `json:"by,omitempty"` // principal of the turn; "": the creator
}

// Subject of the message.
func (CheckTool) Subject() Subject { return request(Loop, "check_tool") }

// ListSkills answers [Skills] by name, without their instructions. Errors: NotFound
// (agent).
type ListSkills struct {
	Agent string `json:"agent"`
}

// Subject of the message.
func (ListSkills) Subject() Subject { return request(Loop, "list_skills") }

// Skills are the skills in an agent's folder. An agent has at most 100.
type Skills struct {
	Skills []Skill `json:"skills"`
}

// GetSkill answers [Skill]. Errors: NotFound (agent, skill).
type GetSkill struct {
	Agent string `json:"agent"`
	Skill string `json:"skill"`
}

// Subject of the message.
func (GetSkill) Subject() Subject { return request(Loop, "get_skill") }

// Skill is one skill of an agent. Its texts are as they were written.
type Skill struct {
	Name         string   `json:"name"`
	Description  string   `json:"description,omitempty"`
	Status       string   `json:"status"`             // whether it is shown to the agent, in words
	Usable       bool     `json:"usable"`             // it is shown always or when one of Triggers is in an input
	Origin       string   `json:"origin"`             // where it came from
	Triggers     []string `json:"triggers,omitempty"` // none: it is shown always
	Faults       []string `json:"faults,omitempty"`   // what is wrong with its file, with the line
	Instructions string   `json:"instructions,omitempty"`
}

// ListServers answers [Servers] by name. What it says of a connection is the
// state at the answering replica. Errors: NotFound (agent).
type ListServers struct {
	Agent   string `json:"agent"`
	Connect bool   `json:"connect,omitempty"` // connects to all of them first, and waits for at most 8 s
}

// Subject of the message.
func (ListServers) Subject() Subject { return request(Loop, "list_servers") }

// Servers are an agent's MCP servers. An agent has at most 16.
type Servers struct {
	Servers []MCPServer `json:"servers"`
}

// ServerState is how the connection to an MCP server stands.
type ServerState string

// The states.
const (
	ServerIdle       ServerState = "idle"       // it is connected when its tools are wanted
	ServerConnecting ServerState = "connecting" // it was asked for its tools and has not answered
	ServerConnected  ServerState = "connected"
	ServerFailed     ServerState = "failed" // see Error; it is tried again at RetryAt
)

// MCPServer is one MCP server of an agent. It carries no credentials.
type MCPServer struct {
	Name    string      `json:"name"`
	Program string      `json:"program,omitempty"` // and its arguments, or Address
	Address string      `json:"address,omitempty"` // without its query
	State   ServerState `json:"state"`
	Error   string      `json:"error,omitempty"`
	RetryAt int64       `json:"retryAt,omitempty"`
	Tools   []string    `json:"tools"`             // that it offers, while it is connected
	Refused []string    `json:"refused,omitempty"` // tools that are not used, "name: why"
}

package api

import "encoding/json"

// Requests about the abilities of an agent, for people: its tools, skills and MCP
// servers. Loop answers them because it offers the tools to models.
//
// History: v1 2026-11 first version.

// ListTools requests the [Tools] of an agent or of the catalogue. Errors: NotFound
// (agent).
type ListTools struct {
	Agent string `json:"agent,omitempty"` // "": the catalogue only
}

// Tools holds the tools of the catalogue by name, followed by those of the agent's MCP
// servers.
type Tools struct {
	Tools []ToolInfo `json:"tools"`
}

// ToolInfo describes one tool.
type ToolInfo struct {
	Name       string `json:"name"`
	Does       string `json:"does"`
	Category   string `json:"category"`
	Risk       string `json:"risk"`             // safe, caution, dangerous or forbidden
	Owner      Owner  `json:"owner"`            // the service that has to execute it
	Server     string `json:"server,omitempty"` // the agent's MCP server that offers it
	Executable bool   `json:"executable"`       // an agent with a grant can call it now
	Why        string `json:"why,omitempty"`    // why it is not executable
	Default    bool   `json:"default"`          // granted by an AGENT.md that names no tools
	Granted    bool   `json:"granted"`          // granted by the agent's definition; false without an agent
}

// CheckTool requests policy's [Decision] on a call that an agent could make. Policy
// stores nothing, and the decision has no token. Errors: NotFound (agent), Invalid (By,
// or arguments over 256 KiB).
type CheckTool struct {
	Agent string          `json:"agent"`
	Tool  string          `json:"tool"`
	Args  json.RawMessage `json:"args"`
	By    PrincipalKind   `json:"by,omitempty"` // principal of the turn; "": the creator
}

// ListSkills requests the [Skills] of an agent by name, without their instructions.
// Errors: NotFound (agent).
type ListSkills struct {
	Agent string `json:"agent"`
}

// Skills holds the skills in an agent's folder, at most 100.
type Skills struct {
	Skills []Skill `json:"skills"`
}

// GetSkill requests one [Skill]. Errors: NotFound (agent, skill).
type GetSkill struct {
	Agent string `json:"agent"`
	Skill string `json:"skill"`
}

// Skill is one skill of an agent. Its texts are unchanged.
type Skill struct {
	Name         string   `json:"name"`
	Description  string   `json:"description,omitempty"`
	Status       string   `json:"status"`             // whether it is shown to the agent, as text
	Usable       bool     `json:"usable"`             // shown always, or when an input contains one of Triggers
	Origin       string   `json:"origin"`             // its source
	Triggers     []string `json:"triggers,omitempty"` // empty: always shown
	Faults       []string `json:"faults,omitempty"`   // errors in its file, with line numbers
	Instructions string   `json:"instructions,omitempty"`
}

// ListServers requests the [Servers] of an agent by name. The states of the connections
// are those of the replica that answers. Errors: NotFound (agent).
type ListServers struct {
	Agent   string `json:"agent"`
	Connect bool   `json:"connect,omitempty"` // connect to all servers first, waiting at most 8 s
}

// Servers holds an agent's MCP servers, at most 16.
type Servers struct {
	Servers []MCPServer `json:"servers"`
}

// ServerState is the state of the connection to an MCP server.
type ServerState string

// The states of a connection.
const (
	ServerIdle       ServerState = "idle"       // not connected until its tools are needed
	ServerConnecting ServerState = "connecting" // waiting for the list of its tools
	ServerConnected  ServerState = "connected"
	ServerFailed     ServerState = "failed" // see Error; the next attempt is at RetryAt
)

// MCPServer describes one MCP server of an agent. It contains no credentials.
type MCPServer struct {
	Name    string      `json:"name"`
	Program string      `json:"program,omitempty"` // command and arguments; "" if Address is set
	Address string      `json:"address,omitempty"` // URL without its query
	State   ServerState `json:"state"`
	Error   string      `json:"error,omitempty"`
	RetryAt int64       `json:"retryAt,omitempty"`
	Tools   []string    `json:"tools"`             // offered tools, while connected
	Refused []string    `json:"refused,omitempty"` // rejected tools, as "name: reason"
}

// The implementations of [Message] by the types of this file.

func (ListTools) Subject() Subject   { return request(Loop, "list_tools") }
func (CheckTool) Subject() Subject   { return request(Loop, "check_tool") }
func (ListSkills) Subject() Subject  { return request(Loop, "list_skills") }
func (GetSkill) Subject() Subject    { return request(Loop, "get_skill") }
func (ListServers) Subject() Subject { return request(Loop, "list_servers") }

package turn

import (
	"bytes"
	"reflect"
	"slices"
	"sync"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/api/chat"
)

// How much a process remembers of what it has encoded.
const (
	maxDefinitions = 256 // one for each agent
	maxKits        = 16  // agents offer the same tools, as a rule
)

// memo remembers the encoded forms of what rarely changes from turn to turn. The zero
// value is ready. It is safe for concurrent use.
type memo struct {
	mu          sync.Mutex
	definitions map[string]definition // by agent
	kits        []*kit                // the latest at the end
}

// definition is an agent as a [Reference] names it.
type definition struct {
	agent      Agent
	text, hash string
}

// kit is a list of tools: as a [Reference] names it, and as a model is offered it.
type kit struct {
	tools      []kitTool
	text, hash string
	offered    []byte
}

// definition encodes an agent without what changes with its turns.
func (m *memo) definition(a Agent) (definition, error) {
	a.State, a.Turns = "", 0
	m.mu.Lock()
	known, ok := m.definitions[a.ID]
	m.mu.Unlock()
	if ok && reflect.DeepEqual(known.agent, a) {
		return known, nil
	}
	encoded, err := api.Encode(a)
	if err != nil {
		return definition{}, err
	}
	known = definition{a, string(encoded), Hash(string(encoded))}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.definitions == nil || len(m.definitions) >= maxDefinitions {
		m.definitions = map[string]definition{}
	}
	m.definitions[a.ID] = known
	return known, nil
}

// kit encodes tools. The caller must not change them afterwards.
func (m *memo) kit(tools []kitTool) (*kit, error) {
	if k := m.known(tools); k != nil {
		return k, nil
	}
	encoded, err := api.Encode(tools)
	if err != nil {
		return nil, err
	}
	offered := make([]api.Tool, len(tools))
	for i, t := range tools {
		offered[i] = t.Tool
	}
	wire, err := chat.EncodeTools(offered)
	if err != nil {
		return nil, err
	}
	k := &kit{tools, string(encoded), Hash(string(encoded)), wire}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.kits = append(m.kits[max(0, len(m.kits)+1-maxKits):len(m.kits):len(m.kits)], k)
	return k, nil
}

func (m *memo) known(tools []kitTool) *kit {
	m.mu.Lock()
	all := m.kits
	m.mu.Unlock()
	for _, k := range slices.Backward(all) {
		if slices.EqualFunc(k.tools, tools, same) {
			return k
		}
	}
	return nil
}

// same compares two tools; texts that are one in memory cost nothing.
func same(a, b kitTool) bool {
	return a.Name == b.Name && a.Effect == b.Effect && a.Mutating == b.Mutating && a.Status == b.Status && a.Description == b.Description && bytes.Equal(a.Schema, b.Schema)
}

// encode is a prompt as it is sent. Messages are normal as if tools were offered: with
// none, the router has to change what is left of calls.
func encode(messages []api.ChatMessage) []byte {
	// What is told of earlier turns and the first turn's input are both the user's; as a
	// rule nothing else has to be changed, and the copies of Normalize are for nothing.
	joined := chat.JoinUser(messages)
	if !chat.Normal(joined) {
		joined = chat.Normalize(messages, true)
	}
	return chat.Encode(joined)
}

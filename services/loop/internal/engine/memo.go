package engine

import (
	"bytes"
	"reflect"
	"slices"
	"sync"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/api/chat"
)

// Maximum number of cached encodings in a process.
const (
	maxDefinitions = 256 // one per agent
	maxKits        = 16  // most agents offer the same tools
)

// memo caches the encodings of values that rarely change from turn to turn. The zero
// value is ready for use. It is safe for concurrent use.
type memo struct {
	mu          sync.Mutex
	definitions map[string]definition // by agent id
	kits        []*toolSet            // the latest last
}

// definition holds an agent's encoding for a [Reference].
type definition struct {
	agent      Agent
	text, hash string
}

// toolSet holds the encodings of a list of tools: for a [Reference] and for the model.
type toolSet struct {
	tools      []OfferedTool
	text, hash string
	offered    []byte
}

// definition encodes an agent without the fields that change with its turns.
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

// toolSet encodes tools. The caller must not modify them afterwards.
func (m *memo) toolSet(tools []OfferedTool) (*toolSet, error) {
	m.mu.Lock()
	kits := m.kits
	m.mu.Unlock()
	for _, k := range slices.Backward(kits) {
		if slices.EqualFunc(k.tools, tools, same) {
			return k, nil
		}
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
	k := &toolSet{tools, string(encoded), Hash(string(encoded)), wire}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.kits = append(m.kits[max(0, len(m.kits)+1-maxKits):len(m.kits):len(m.kits)], k)
	return k, nil
}

// same compares two tools. Strings and schemas that share memory are compared without
// reading them.
func same(a, b OfferedTool) bool {
	return a.Name == b.Name && a.Effect == b.Effect && a.Mutating == b.Mutating && a.Status == b.Status && a.Description == b.Description && bytes.Equal(a.Schema, b.Schema)
}

// Encode encodes a prompt as it is sent. Messages are normalized as if tools were
// offered; if there are none, the router must change the remaining calls.
func Encode(messages []api.ChatMessage) []byte {
	// The summary of earlier turns and the first turn's input are both user messages.
	// Usually joining them is enough, and the copies made by Normalize are not needed.
	joined := chat.JoinUser(messages)
	if !chat.Normal(joined) {
		joined = chat.Normalize(messages, true)
	}
	return chat.Encode(joined)
}

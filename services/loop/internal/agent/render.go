package agent

import (
	"fmt"
	"time"

	"go.yaml.in/yaml/v4"
)

// Render returns a definition as an AGENT.md with all defaults written out. Parse returns
// the same definition for it, unless the defaults make the file longer than MaxFile.
func Render(d Definition) []byte {
	head, err := yaml.Dump(d)
	if err != nil {
		panic(fmt.Sprintf("agent: strings, numbers and lists do not encode: %v", err)) // unreachable for every definition
	}
	return fmt.Appendf(nil, "---\n%s---\n\n%s\n", head, d.Body)
}

// MarshalYAML implements yaml.Marshaler: a file has its times in seconds.
func (l Limits) MarshalYAML() (any, error) {
	return struct {
		MaxTurns     int   `yaml:"max_turns"`
		MaxToolCalls int   `yaml:"max_tool_calls"`
		Timeout      int64 `yaml:"timeout_seconds"`
		QueueTimeout int64 `yaml:"queue_timeout_seconds"`
	}{l.MaxTurns, l.MaxToolCalls, int64(l.Timeout / time.Second), int64(l.QueueTimeout / time.Second)}, nil
}

// MarshalYAML implements yaml.Marshaler: a file has its time in seconds.
func (s Sandbox) MarshalYAML() (any, error) {
	return struct {
		Network bool  `yaml:"network"`
		Timeout int64 `yaml:"timeout_seconds"`
	}{s.Network, int64(s.Timeout / time.Second)}, nil
}

package agent

import (
	"bytes"
	"fmt"
	"time"

	"go.yaml.in/yaml/v4"
)

type header struct {
	Name        string           `yaml:"name"`
	Description string           `yaml:"description,omitempty"`
	Version     string           `yaml:"version,omitempty"`
	Model       string           `yaml:"model,omitempty"`
	Creator     string           `yaml:"creator,omitempty"`
	Message     string           `yaml:"message,omitempty"`
	Autonomy    bool             `yaml:"autonomy"`
	Tools       []string         `yaml:"tools"`
	Schedule    []scheduleMatter `yaml:"schedule,omitempty"`
	Limits      limitsMatter     `yaml:"limits"`
	Context     contextMatter    `yaml:"context"`
	Sandbox     sandboxMatter    `yaml:"sandbox"`
}

type scheduleMatter struct {
	Name   string `yaml:"name"`
	Cron   string `yaml:"cron"`
	Reason string `yaml:"reason,omitempty"`
}

type limitsMatter struct {
	MaxTurns            int   `yaml:"max_turns"`
	MaxToolCalls        int   `yaml:"max_tool_calls"`
	TimeoutSeconds      int64 `yaml:"timeout_seconds"`
	QueueTimeoutSeconds int64 `yaml:"queue_timeout_seconds"`
}

type contextMatter struct {
	Window  int `yaml:"window"`
	Reserve int `yaml:"reserve"`
	Flush   int `yaml:"flush"`
}

type sandboxMatter struct {
	Network        bool  `yaml:"network"`
	TimeoutSeconds int64 `yaml:"timeout_seconds"`
}

// Render returns a definition as an AGENT.md with all defaults written out. Parse returns
// the same definition for it, unless the defaults make the file longer than MaxFile.
func Render(d Definition) []byte {
	m := header{
		Name: d.Name, Description: d.Description, Version: d.Version, Model: d.Model, Creator: d.Creator,
		Message: d.Message, Autonomy: d.Autonomy,
		Tools:   append([]string{}, d.Tools...),
		Limits:  limitsMatter{d.Limits.MaxTurns, d.Limits.MaxToolCalls, int64(d.Limits.Timeout / time.Second), int64(d.Limits.QueueTimeout / time.Second)},
		Context: contextMatter(d.Context),
		Sandbox: sandboxMatter{d.Sandbox.Network, int64(d.Sandbox.Timeout / time.Second)},
	}
	for _, s := range d.Schedule {
		m.Schedule = append(m.Schedule, scheduleMatter(s))
	}
	head, err := yaml.Dump(m)
	if err != nil {
		panic(fmt.Sprintf("agent: strings, numbers and lists do not encode: %v", err)) // unreachable for every definition
	}
	var out bytes.Buffer
	fmt.Fprintf(&out, "---\n%s---\n\n%s\n", head, d.Body)
	return out.Bytes()
}

// Package notes reads the files with an agent's notes for its prompts. It must not write
// them: the agent does, with its tools.
package notes

import (
	"context"
	"errors"
	"io/fs"

	"github.com/anima-run/anima/services/loop/internal/engine"
	"github.com/anima-run/anima/services/loop/internal/sandbox"
)

// maxFile is the largest size of a file that is read, in bytes. A prompt has much less of
// it.
const maxFile = 256 << 10

// Source makes a layer of a file in the agent's folder. It implements engine.Source.
type Source struct {
	Name string // of the layer
	File string

	kept *sandbox.Cache[string]
}

// Sources returns the sources of WORKLOG.md and MEMORY.md. A file that has not changed is
// not read again.
func Sources() []engine.Source {
	kept := &sandbox.Cache[string]{}
	return []engine.Source{Source{"worklog", "WORKLOG.md", kept}, Source{"memory", "MEMORY.md", kept}}
}

// Layer implements engine.Source. A missing file is an empty layer. For a file that is too
// long the layer says so, so that the agent can shorten it.
func (s Source) Layer(_ context.Context, a engine.Agent) (engine.Layer, error) {
	text, err := s.kept.Get(a.Workspace, s.File, func() (sandbox.Made[string], error) {
		made := sandbox.Made[string]{Paths: []string{s.File}}
		data, err := sandbox.ReadFile(a.Workspace, s.File, maxFile)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return sandbox.Made[string]{Absent: made.Paths}, nil
		case errors.Is(err, sandbox.ErrTooLarge):
			made.Value = s.File + " is too long to be shown; write it anew, and shorter."
			return made, nil
		}
		made.Value, made.Size = string(data), len(data)
		return made, err
	})
	return engine.Layer{Name: s.Name, Text: text}, err
}

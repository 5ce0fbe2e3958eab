// Package notes reads the files in which an agent keeps its notes, for its prompts.
// It writes nothing: the agent does, with its own tools.
package notes

import (
	"context"
	"errors"
	"io/fs"

	"github.com/anima-run/anima/services/loop/internal/sandbox"
	"github.com/anima-run/anima/services/loop/internal/turn"
)

// maxFile is the longest file that is read; what a prompt takes of it is far less.
const maxFile = 256 << 10

// Source gives a file of the agent's folder as a layer. It implements turn.Source.
type Source struct {
	Name string // of the layer
	File string
}

// Sources are WORKLOG.md and MEMORY.md.
func Sources() []turn.Source {
	return []turn.Source{Source{"worklog", "WORKLOG.md"}, Source{"memory", "MEMORY.md"}}
}

// Layer implements turn.Source. A file that is not there is an empty layer; one that
// is too long says so, that the agent can mend it.
func (s Source) Layer(_ context.Context, a turn.Agent) (turn.Layer, error) {
	l := turn.Layer{Name: s.Name}
	data, err := sandbox.ReadFile(a.Workspace, s.File, maxFile)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return l, nil
	case errors.Is(err, sandbox.ErrTooLarge):
		l.Text = s.File + " is too long to be shown; write it anew, and shorter."
		return l, nil
	}
	l.Text = string(data)
	return l, err
}

package loop

import (
	"github.com/anima-run/anima/pkg/failpoint"

	"github.com/anima-run/anima/services/loop/internal/engine"
)

// pointOf returns the failpoint of the append of a journal entry.
func pointOf(s engine.Step) failpoint.Point {
	switch {
	case s.Begin != nil:
		return failpoint.LoopBegin
	case s.Joined != nil:
		return failpoint.LoopJoined
	case s.Completion != nil:
		return failpoint.LoopThought
	case s.Intent != nil:
		return failpoint.LoopIntent
	case s.End != nil:
		return failpoint.LoopEnd
	case s.Release:
		return failpoint.LoopRelease
	}
	return failpoint.LoopResult
}

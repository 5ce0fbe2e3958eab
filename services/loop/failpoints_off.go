//go:build !failpoint

package loop

import (
	"github.com/anima-run/anima/services/loop/internal/engine"
	"github.com/anima-run/anima/services/loop/internal/goal"
)

func addFailpoints(*engine.Engine) {}

func addGoalFailpoints(*goal.Orchestrator) {}

func keepsStaleRun() bool { return false }

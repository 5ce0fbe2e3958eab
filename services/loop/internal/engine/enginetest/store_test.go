package enginetest

import (
	"testing"

	"github.com/anima-run/anima/pkg/api"

	"github.com/anima-run/anima/services/loop/internal/engine"
)

func TestStore(t *testing.T) {
	t.Parallel()
	RunStore(t, func(*testing.T) Stores {
		return NewStore(engine.Agent{ID: "ada", State: api.StateSleeping}, engine.Agent{ID: "bob", State: api.StateSleeping})
	})
}

func TestContextStore(t *testing.T) {
	t.Parallel()
	RunContext(t, func(*testing.T) Stores {
		return NewStore(engine.Agent{ID: "ada", State: api.StateSleeping}, engine.Agent{ID: "bob", State: api.StateSleeping})
	})
}

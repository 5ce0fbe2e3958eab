package skill

import (
	"os"
	"testing"

	"github.com/anima-run/anima/services/loop/internal/sandbox"
)

func TestMain(m *testing.M) {
	sandbox.Init()
	os.Exit(m.Run())
}

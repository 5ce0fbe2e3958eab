package loop_test

import (
	"os"
	"testing"

	"github.com/anima-run/anima/services/loop"
)

func TestMain(m *testing.M) {
	loop.Init()
	os.Exit(m.Run())
}

package e2e

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/anima-run/anima/pkg/failpoint"
)

// TestCrashAged runs cases of the crash matrix with streams that are older than the last
// saved state of their server: between the crash of a service and its next start NATS is
// stopped and rebuilds its stores. Deleted keys come back, and no key has a TTL. The form
// of CI has three points. The short form crashes after each point of loop and heartbeat,
// the only users of the coordination bucket; the long form also crashes before each
// point.
func TestCrashAged(t *testing.T) {
	t.Parallel()
	w := newCrashWorld(t, "")
	w.aged = true
	var cases []crashCase
	if form := os.Getenv(crashForm); form == "" {
		for _, p := range failpoint.Scenes() {
			if slices.Contains([]string{failpoint.LoopTool.String(), failpoint.LoopWakeDelete.String(), failpoint.HeartbeatWake.String()}, p.Name) {
				cases = append(cases, crashCase{p, p.Services[0], failpoint.After, 1, tour})
			}
		}
	} else {
		points := map[string]bool{} // points of each mode that have a case
		cases = slices.DeleteFunc(crashCases("short", w.rehearse(t)), func(c crashCase) bool {
			key := c.point.Name + " " + string(c.mode)
			again := points[key]
			points[key] = true
			return again || c.mode == failpoint.Timeout || form == "short" && c.mode == failpoint.Before || c.service != "loop" && c.service != "heartbeat"
		})
	}
	if only := os.Getenv(crashOnly); only != "" {
		cases = slices.DeleteFunc(cases, func(c crashCase) bool { return !strings.Contains(c.String(), only) })
	}
	for n, c := range cases {
		v := w.crash(t, c, fmt.Sprintf("A%d", n))
		for range plays - 1 {
			if !v.fired && len(v.faults) == 0 {
				v = w.crash(t, c, fmt.Sprintf("A%dx", n))
			}
		}
		if !v.fired && len(v.faults) == 0 {
			v.faults = []string{"the point was not passed"}
		}
		if len(v.faults) > 0 {
			t.Errorf("%s, stores rebuilt:\n  %s", c, strings.Join(v.faults, "\n  "))
		}
	}
	t.Logf("%d cases with stores that were rebuilt", len(cases))
}

package provider

import (
	"strconv"
	"testing"
)

// TestRefusedEffortsAreBounded checks that the words of callers do not fill the memory.
func TestRefusedEffortsAreBounded(t *testing.T) {
	t.Parallel()
	var r RefusedEfforts
	for i := range 3 * maxRefusedEfforts {
		effort := strconv.Itoa(i)
		if r.Add("m", effort); !r.Has("m", effort) || r.Has("other", effort) {
			t.Fatalf("the effort %s is not refused by the model alone", effort)
		}
	}
	if len(r.all) > maxRefusedEfforts {
		t.Errorf("got %d entries, want at most %d", len(r.all), maxRefusedEfforts)
	}
}

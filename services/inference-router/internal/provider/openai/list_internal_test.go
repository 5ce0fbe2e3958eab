package openai

import (
	"encoding/json"
	"runtime"
	"strings"
	"testing"
)

// TestHugePrices checks that a list of a few kilobytes does not make the router compute
// numbers of megabytes. It is not parallel: it measures the memory of the process.
func TestHugePrices(t *testing.T) { //nolint:paralleltest // see above
	texts := []string{`"1e999999"`, `1e999999`, `"1p9999999"`, `"1P30"`, `"0x1p9"`, `"` + strings.Repeat("9", 1<<20) + `"`, `"1/3"`, `"-1"`, `"1_0"`, `"x"`}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for _, text := range texts {
		if got, ok := perMillion(json.RawMessage(text)); ok {
			t.Errorf("%.20s: got %d, want no price", text, got)
		}
	}
	runtime.ReadMemStats(&after)
	if got := after.TotalAlloc - before.TotalAlloc; got > 4<<20 { // the long text itself is copied
		t.Errorf("%d bytes were allocated", got)
	}
	if got, ok := perMillion(json.RawMessage(`"0.0000015"`)); got != 1_500_000 || !ok {
		t.Errorf("got %d, %v, want 1500000", got, ok)
	}
}

package api

import "testing"

// TestParseCron tests the forms that policy, loop and heartbeat accept. The tests of
// parseCron in loop test the text of the errors.
func TestParseCron(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"* * * * *":               "* * * * *",
		" 0  8 * *\tMON-FRI ":     "0 8 * * MON-FRI",
		"*/5 0-23/2 1,15 jan ?":   "*/5 0-23/2 1,15 jan ?",
		"59 23 31 12 6":           "59 23 31 12 6",
		"0 0 * Feb-dec sun,1-3/2": "0 0 * Feb-dec sun,1-3/2",
	} {
		if got, err := ParseCron(text); err != nil || got != want {
			t.Errorf("%q: got %q, %v, want %q", text, got, err, want)
		}
	}
	for _, text := range []string{
		"", "* * * *", "* * * * * *", "@daily", "TZ=UTC 0 * * *", "60 * * * *", "* 24 * * *", "* * 0 * *", "* * * 13 *", "* * * * 7", "MON * * * *",
		"* * * * mon-", "1,,2 * * * *", ", * * * *", "+1 * * * *", "-1 * * * *", "*-5 * * * *", "5-1 * * * *", "*/0 * * * *", "*/60 * * * *", "*/+1 * * * *",
	} {
		if got, err := ParseCron(text); err == nil {
			t.Errorf("%q: got %q, want an error", text, got)
		}
	}
}

package main

import "time"

// when is a time of the contracts, in Unix microseconds, as every table and text of
// the command line has it: RFC 3339 in UTC. Zero is no time.
func when(micros int64) string {
	if micros == 0 {
		return "-"
	}
	return time.UnixMicro(micros).UTC().Format(time.RFC3339)
}

// clockTime is the time of day of what happens while the reader looks on.
func clockTime(t time.Time) string { return t.UTC().Format("15:04:05 UTC") }

package main

import "time"

// when formats a Unix time in microseconds for tables and texts of the command line: RFC
// 3339 in UTC. Zero is "-".
func when(micros int64) string {
	if micros == 0 {
		return "-"
	}
	return time.UnixMicro(micros).UTC().Format(time.RFC3339)
}

// clockTime formats the time of day of an event that is printed while it happens.
func clockTime(t time.Time) string { return t.UTC().Format("15:04:05 UTC") }

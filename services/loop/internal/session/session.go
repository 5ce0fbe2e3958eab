// Package session is a session as one process sees it: its queue of messages ([Queue]),
// the lease that gives it to one run at a time ([Locks]), its journal ([Journal]), the
// events of its runs that are not in the journal ([Events]), the record of runs that have
// begun ([Begins]), and the end of messages that have waited too long ([Expiry]).
//
//	stream LOOP_CMD  the oldest message is the run in progress, or the next one
//	stream LOOP_EVT  the last entry of the journal names the owner and the end of its lease
//	bucket           the renewals of that lease, while the run appends no entry
//
// The package reaches the streams and the bucket through pkg/bus and has no SQL. It must
// not decide what a run does: package engine does.
package session

//go:build !failpoint

package bus

import "github.com/nats-io/nats.go/jetstream"

// dedupID returns the id by which a stream drops repetitions of a message.
func dedupID(id string) string { return id }

// expectLast makes the stream refuse an append unless last is the last sequence of its
// subject.
func expectLast(last uint64) jetstream.PublishOpt {
	return jetstream.WithExpectLastSequencePerSubject(last)
}

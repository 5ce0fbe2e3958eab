//go:build failpoint

package bus

import (
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/anima-run/anima/pkg/failpoint"
)

// dedupID returns the id by which a stream drops repetitions of a message. With
// [failpoint.NoMessageID] each repetition has another one.
func dedupID(id string) string {
	if failpoint.Broken(failpoint.NoMessageID) {
		return id + "#" + nats.NewInbox()
	}
	return id
}

// expectLast makes the stream refuse an append unless last is the last sequence of its
// subject. With [failpoint.NoExpectedSequence] it changes nothing.
func expectLast(last uint64) jetstream.PublishOpt {
	if failpoint.Broken(failpoint.NoExpectedSequence) {
		return jetstream.WithRetryAttempts(0) // as publish has set it
	}
	return jetstream.WithExpectLastSequencePerSubject(last)
}

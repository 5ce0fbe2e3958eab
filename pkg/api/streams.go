package api

import (
	"slices"
	"strings"
	"time"
)

// Stream describes a JetStream stream that the contracts need. The deployment chooses
// its replicas and storage.
type Stream struct {
	Name     string
	Subjects []string
	Work     bool          // work queue: a message is deleted when it is acknowledged
	MaxAge   time.Duration // 0: no limit
	Dedup    time.Duration // time within which a message with a repeated id is dropped
	PerKey   int64         // most messages per subject, beyond which the stream refuses new ones; 0: no limit
}

// Streams returns the streams of all messages, by name.
func Streams() []Stream {
	var all []Stream
	for _, m := range Messages() {
		s := m.Subject()
		name := s.Stream()
		if name == "" || slices.ContainsFunc(all, func(o Stream) bool { return o.Name == name }) {
			continue
		}
		st := Stream{
			Name:     name,
			Subjects: []string{Root + "." + string(s.Owner) + "." + string(s.Class) + ".>"},
			MaxAge:   7 * 24 * time.Hour,
			Dedup:    10 * time.Minute,
		}
		if s.Class == Command {
			// One message is executed while QueueDepth wait; the server refuses the next
			// one.
			st.Work, st.MaxAge, st.PerKey = true, 0, QueueDepth+1
		}
		all = append(all, st)
	}
	slices.SortFunc(all, func(a, b Stream) int { return strings.Compare(a.Name, b.Name) })
	return all
}

package api

import (
	"slices"
	"time"
)

// Stream is a JetStream stream that the contracts imply. Replicas and storage are
// the deployment's choice, not the contract's.
type Stream struct {
	Name     string
	Subjects []string
	Work     bool          // work queue: a message is gone when it is done
	MaxAge   time.Duration // 0: kept until done
	Dedup    time.Duration // how long a message id is remembered
	PerKey   int64         // messages that may wait per subject; 0 has no bound. The next one is refused
}

// Streams lists the streams of all contracts, by name.
func Streams() []Stream {
	var all []Stream
	for _, c := range Contracts() {
		s := c.Message.Subject()
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
			// One runs while QueueDepth wait; the server itself refuses the next.
			st.Work, st.MaxAge, st.PerKey = true, 0, QueueDepth+1
		}
		all = append(all, st)
	}
	slices.SortFunc(all, func(a, b Stream) int {
		if a.Name < b.Name {
			return -1
		}
		return 1
	})
	return all
}

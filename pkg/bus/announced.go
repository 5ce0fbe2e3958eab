package bus

import (
	"github.com/anima-run/anima/pkg/api"
)

// Announced returns the events of kind M that a message of a stream announces: those of a
// journal entry, or the message itself if it is of kind M. It is [Expand] for a reader of
// one kind. It does not decode a journal entry whose bytes show that it announces none.
func Announced[M api.Message](m Stored) ([]M, error) {
	s, err := parseSubject(m.Subject)
	if err != nil {
		return nil, err
	}
	var zero M
	switch {
	case s.Same(zero.Subject()):
		var event M
		if err := api.Decode(m.Data, &event); err != nil {
			return nil, err
		}
		return []M{event}, nil
	case s.Same(api.Journal{}.Subject()):
	default:
		return nil, nil
	}
	if !mayAnnounce(m.Data, []api.Subject{zero.Subject()}) {
		return nil, nil
	}
	var entry api.Journal
	if err := api.Decode(m.Data, &entry); err != nil {
		return nil, err
	}
	events, err := entry.Events()
	if err != nil {
		return nil, err
	}
	var all []M
	for _, e := range events {
		if event, ok := e.(M); ok {
			all = append(all, event)
		}
	}
	return all, nil
}

package bus

import (
	"bytes"
	"context"
	"errors"
	"slices"

	"github.com/anima-run/anima/pkg/api"
)

// SessionEvents are the subjects of a session's events; of all sessions' for "*".
func SessionEvents(session string) (all []api.Subject) {
	for _, m := range api.Views() {
		s := m.Subject()
		if _, changed := m.(api.AgentChanged); changed { // of agents, not sessions
			continue
		}
		s.Key = session
		all = append(all, s)
	}
	return all
}

// Events is [Bus.Follow] for the events of runs: it calls handle with the events that
// the entries of the sessions' journals announce, and with those that were published by
// themselves, if they are of one of the subjects. Key "" or "*" of a subject matches
// every key. The events of one entry have one sequence, and [Stored.More] but for the
// last one; whoever goes on from a sequence has seen all of them.
func (b *Bus) Events(ctx context.Context, after uint64, handle func(Stored) error, subjects ...api.Subject) error {
	return b.Follow(ctx, after, func(m Stored) error { return expandTo(m, handle, subjects) }, EventSources(subjects...)...)
}

// PastEvents is [Bus.Events] up to the last event that is in the stream now, as far as
// [Bus.Last] knows it.
func (b *Bus) PastEvents(ctx context.Context, after uint64, handle func(Stored) error, subjects ...api.Subject) error {
	last, err := b.LastEvents(ctx, subjects...)
	if err != nil || last <= after {
		return err
	}
	end := errors.New("the last one")
	err = b.Follow(ctx, after, func(m Stored) error {
		if err := expandTo(m, handle, subjects); err != nil {
			return err
		}
		if m.Sequence >= last { // it may have announced nothing
			return end
		}
		return nil
	}, EventSources(subjects...)...)
	if errors.Is(err, end) {
		return nil
	}
	return err
}

func expandTo(m Stored, handle func(Stored) error, subjects []api.Subject) error {
	all, err := Expand(m, subjects...)
	if err != nil {
		return err
	}
	for _, e := range all {
		if err := handle(e); err != nil {
			return err
		}
	}
	return nil
}

// LastEvents is the sequence up to which the events of subjects are in the stream, 0 if
// there are none. See [Bus.Last] for what it may miss.
func (b *Bus) LastEvents(ctx context.Context, subjects ...api.Subject) (uint64, error) {
	var last uint64
	for _, s := range sources(subjects) {
		if s.Key == "" {
			s.Key = "*"
		}
		m, err := b.Last(ctx, s)
		if err != nil && api.CodeOf(err) != api.NotFound {
			return 0, err
		}
		last = max(last, m.Sequence)
	}
	return last, nil
}

// EventSources are the subjects, as [Bus.Follow] takes them, of the messages that
// [Expand] makes the events of subjects from. It is for readers that have to see the
// entries, too, that announce nothing.
func EventSources(subjects ...api.Subject) (all []string) {
	for _, s := range sources(subjects) {
		wire := s.All()
		if s.Key != "" && s.Key != "*" {
			wire = s.String()
		}
		if !slices.Contains(all, wire) {
			all = append(all, wire)
		}
	}
	return all
}

// Expand returns the events of subjects that a message of a stream announces: those of a
// journal's entry, or the message itself. Key "" or "*" of a subject matches every key.
func Expand(m Stored, subjects ...api.Subject) ([]Stored, error) {
	s, err := parseSubject(m.Subject)
	if err != nil {
		return nil, err
	}
	if !s.Same(api.Journal{}.Subject()) {
		if matches(s, subjects) {
			return []Stored{m}, nil
		}
		return nil, nil
	}
	if !mayAnnounce(m.Data, subjects) {
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
	var all []Stored
	for _, e := range events {
		if !matches(e.Subject(), subjects) {
			continue
		}
		data, err := api.Encode(e)
		if err != nil {
			return nil, err
		}
		all = append(all, Stored{Subject: e.Subject().String(), Sequence: m.Sequence, Data: data, Sender: m.Sender, At: m.At, More: true})
	}
	if n := len(all); n > 0 {
		all[n-1].More = false
	}
	return all, nil
}

// mayAnnounce says, without decoding it, whether an entry may announce an event of
// subjects. Text in strings of the entry has escaped quotes; arguments of a call may look
// like a match, which costs a decoding.
func mayAnnounce(entry []byte, subjects []api.Subject) bool {
	has := func(text string) bool { return bytes.Contains(entry, []byte(text)) }
	for _, s := range subjects {
		kind := api.EntryEnd
		switch {
		case s.Same(api.AgentChanged{}.Subject()):
			if api.MayChange(entry) {
				return true
			}
			continue
		case s.Same(api.LoopPersist{}.Subject()):
			if has(`"persisted":`) {
				return true
			}
		case s.Same(api.LoopStart{}.Subject()):
			kind = api.EntryBegin
		case s.Same(api.ToolStart{}.Subject()):
			kind = api.EntryIntent
		case s.Same(api.ToolEnd{}.Subject()):
			kind = api.EntryResult
		case s.Same(api.LoopEnd{}.Subject()), s.Same(api.LoopError{}.Subject()):
		case s.Same(api.LoopContext{}.Subject()), s.Same(api.LoopExecute{}.Subject()):
			kind = api.EntryThought
		default:
			return true
		}
		if has(`"kind":"` + kind + `"`) {
			return true
		}
	}
	return false
}

// matches says whether one of subjects is that of a message.
func matches(s api.Subject, subjects []api.Subject) bool {
	return slices.ContainsFunc(subjects, func(want api.Subject) bool {
		return want.Same(s) && (want.Key == "" || want.Key == "*" || want.Key == s.Key)
	})
}

// journals are the journals whose entries announce events of subjects.
func journals(subjects []api.Subject) (all []api.Subject) {
	for _, s := range subjects {
		if !slices.ContainsFunc(api.Views(), func(v api.Message) bool { return v.Subject().Same(s) }) {
			continue
		}
		j := api.Journal{Session: s.Key}.Subject()
		if s.Same(api.AgentChanged{}.Subject()) { // whose key is an agent's
			j.Key = ""
		}
		if j.Key == "*" {
			j.Key = ""
		}
		if !slices.Contains(all, j) {
			all = append(all, j)
		}
	}
	if slices.ContainsFunc(all, func(j api.Subject) bool { return j.Key == "" }) {
		return []api.Subject{api.Journal{}.Subject()}
	}
	return all
}

// sources are subjects and the journals whose entries announce events of them.
func sources(subjects []api.Subject) []api.Subject {
	return append(slices.Clone(subjects), journals(subjects)...)
}

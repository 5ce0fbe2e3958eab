package bus

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/wait"
)

// SessionEvents returns the subjects of a session's events; "*" means all sessions.
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

// Events is [Bus.Follow] for the events of runs. It calls handle with the events of
// subjects that journal entries announce, and with those that were published as messages.
// Key "" or "*" of a subject matches every key. The events of one entry have the same
// sequence; [Stored.More] is set for all but the last of them, so a reader may resume
// after the sequence of an event without More.
func (b *Bus) Events(ctx context.Context, after uint64, handle func(Stored) error, subjects ...api.Subject) error {
	return b.Follow(ctx, after, func(m Stored) error { return expandTo(m, handle, subjects) }, EventSources(subjects...)...)
}

// endLooks and endPause are the number of requests for the end of a stream that seems to
// end before a sequence, and the pause between them: the server that answers may be behind
// (docs/adr/0011).
const endLooks, endPause = 5, 300 * time.Millisecond

// CheckAfter checks that the stream of the events of subjects has reached a sequence after
// which a reader wants to continue. It has not if it is an older copy of the stream that
// the reader has read, or if the sequence is made up; the reader would then receive no
// event until the stream has passed it. Errors: Invalid, after about 1 s; those of NATS. A
// stream that does not exist is no error.
func (b *Bus) CheckAfter(ctx context.Context, after uint64, subjects ...api.Subject) error {
	for look := 1; ; look++ {
		info, err := b.streamInfo(ctx, subjects[0].Stream())
		if err != nil || info == nil || info.State.LastSeq >= after {
			return err
		}
		if look == endLooks {
			return &api.Error{
				Code: api.Invalid, Message: fmt.Sprintf("there is no event %d yet: the last one of all sessions is %d", after, info.State.LastSeq),
				Next: "read the events from the beginning: those after a restored backup have other numbers",
			}
		}
		if err := wait.For(ctx, endPause); err != nil {
			return err
		}
	}
}

// PastEvents is [Bus.Events] up to the last event in the stream at the time of the call,
// as far as [Bus.Last] finds it.
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
		if m.Sequence >= last { // the last message may announce no event
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

// LastEvents returns the sequence of the last message that may announce events of
// subjects, 0 if there is none. Like [Bus.Last] it may miss the newest messages.
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

// EventSources returns the subjects, in the form that [Bus.Follow] takes, of the messages
// from which [Expand] makes the events of subjects. It is for readers that also need the
// entries that announce no event.
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
// journal entry, or the message itself. Key "" or "*" of a subject matches every key.
func Expand(m Stored, subjects ...api.Subject) ([]Stored, error) {
	events, own, err := announced(m, subjects)
	if err != nil {
		return nil, err
	}
	if own {
		return []Stored{m}, nil
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

// Announced is [Expand] for a reader of the events M, which it returns as such.
func Announced[M api.Message](m Stored) (all []M, err error) {
	var zero M
	events, own, err := announced(m, []api.Subject{zero.Subject()})
	if own {
		all = make([]M, 1)
		err = api.Decode(m.Data, &all[0])
	}
	if err != nil {
		return nil, err
	}
	for _, e := range events {
		if event, ok := e.(M); ok {
			all = append(all, event)
		}
	}
	return all, nil
}

// announced returns the events of a journal entry, unless its bytes show that it announces
// none of subjects. For another message it reports whether it is one of subjects itself.
func announced(m Stored, subjects []api.Subject) (events []api.Message, own bool, err error) {
	s, err := parseSubject(m.Subject)
	if err != nil {
		return nil, false, err
	}
	if !s.Same(api.Journal{}.Subject()) {
		return nil, matches(s, subjects), nil
	}
	if !mayAnnounce(m.Data, subjects) {
		return nil, false, nil
	}
	var entry api.Journal
	if err := api.Decode(m.Data, &entry); err != nil {
		return nil, false, err
	}
	events, err = entry.Events()
	return events, false, err
}

// mayAnnounce reports, without decoding it, whether a journal entry may announce an event
// of subjects. It searches for the JSON text of fields. Quotes within strings are escaped
// and do not match; arguments of a tool call may match, which costs an unnecessary
// decoding.
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

// matches reports whether s is one of subjects.
func matches(s api.Subject, subjects []api.Subject) bool {
	return slices.ContainsFunc(subjects, func(want api.Subject) bool {
		return want.Same(s) && (want.Key == "" || want.Key == "*" || want.Key == s.Key)
	})
}

// sources returns subjects and the journals whose entries announce events of them.
func sources(subjects []api.Subject) []api.Subject {
	var journals []api.Subject
	for _, s := range subjects {
		if !slices.ContainsFunc(api.Views(), func(v api.Message) bool { return v.Subject().Same(s) }) {
			continue
		}
		j := api.Journal{Session: s.Key}.Subject()
		if s.Key == "" || s.Key == "*" || s.Same(api.AgentChanged{}.Subject()) { // the key of the last is an agent
			return append(slices.Clone(subjects), api.Journal{}.Subject())
		}
		if !slices.Contains(journals, j) {
			journals = append(journals, j)
		}
	}
	return append(slices.Clone(subjects), journals...)
}

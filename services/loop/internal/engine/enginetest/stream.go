package enginetest

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/anima-run/anima/pkg/api"
)

// Stream stores events. It keeps the first message of each id.
type Stream struct {
	mu     sync.Mutex
	order  []string
	kept   map[string]map[string]any
	faults []string
	live   []api.Message
}

// add stores a message. It records a fault if its id was used for a different message;
// only the times may differ.
func (s *Stream) add(id string, m api.Message) {
	s.mu.Lock()
	defer s.mu.Unlock()
	data, err := api.Encode(m)
	var fields map[string]any
	if err == nil {
		err = json.Unmarshal(data, &fields)
	}
	if err != nil {
		s.faults = append(s.faults, fmt.Sprintf("%s: %v", id, err))
		return
	}
	delete(fields, "at")
	fields["subject"] = m.Subject().String()
	if s.kept == nil {
		s.kept = map[string]map[string]any{}
	}
	old, ok := s.kept[id]
	switch {
	case !ok:
		s.kept[id], s.order = fields, append(s.order, id)
	case fmt.Sprint(old) != fmt.Sprint(fields):
		s.faults = append(s.faults, fmt.Sprintf("%s was %v and is %v", id, old, fields))
	}
}

// IDs returns the ids in the order of their first messages.
func (s *Stream) IDs() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.order)
}

// Kept returns the messages by id, as JSON objects without "at".
func (s *Stream) Kept() map[string]map[string]any {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.kept)
}

// Faults returns a description of each id that was used for different messages.
func (s *Stream) Faults() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.faults)
}

// Live returns the messages of a type that were published without being stored.
func Live[M api.Message](s *Stream) []M {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []M
	for _, m := range s.live {
		if m, ok := m.(M); ok {
			out = append(out, m)
		}
	}
	return out
}

// Deltas returns the contents that were streamed to watchers.
func (s *Stream) Deltas() (out []string) {
	for _, d := range Live[api.StreamDelta](s) {
		if d.Content != "" {
			out = append(out, d.Content)
		}
	}
	return out
}

// events implements engine.Events for one owner.
type events struct {
	stream  *Stream
	lossy   bool
	pending []func()
}

func (e *events) Post(ctx context.Context, id string, m api.Message) error {
	return through(ctx, "post "+m.Subject().Name, func() error {
		add := func() { e.stream.add(id, m) }
		if e.lossy {
			e.pending = append(e.pending, add)
		} else {
			add()
		}
		return nil
	})
}

func (e *events) Wait(ctx context.Context) error {
	return through(ctx, "wait", func() error {
		for _, add := range e.pending {
			add()
		}
		e.pending = nil
		return nil
	})
}

func (e *events) Live(_ context.Context, m api.Message) {
	e.stream.mu.Lock()
	defer e.stream.mu.Unlock()
	e.stream.live = append(e.stream.live, m)
}

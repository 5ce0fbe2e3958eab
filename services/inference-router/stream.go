package router

import (
	"strings"
	"sync"
	"time"

	"github.com/anima-run/anima/pkg/api"
)

// Batching of streamed text: pieces that arrive within flushEvery of each other are sent
// together, or earlier when they reach flushBytes. Otherwise an answer of 20,000 small
// pieces would be 20,000 messages.
const (
	flushEvery = 25 * time.Millisecond
	flushBytes = 4 << 10
)

// stream sends the pieces of an answer to the callers. It is safe for concurrent use. It
// never calls send concurrently, nor after close.
type stream struct {
	send func(api.Delta)

	mu      sync.Mutex
	pending strings.Builder // received and not sent yet
	sent    bool            // a part of the current answer was sent
	timer   *time.Timer     // nil: no flush is scheduled
	last    time.Time       // time of the last send of text
	closed  bool
}

// text adds a piece of text, which is sent at once or within [flushEvery].
func (s *stream) text(piece string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pending.WriteString(piece); s.pending.Len() == 0 {
		return
	}
	if s.pending.Len() >= flushBytes || time.Since(s.last) >= flushEvery {
		s.flush()
		return
	}
	if s.timer == nil {
		s.timer = time.AfterFunc(flushEvery, func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.flush()
		})
	}
}

// retry discards the text of the failed attempt, at the callers too, and sends note,
// which says that the call is repeated.
func (s *stream) retry(note string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pending.Reset()
	s.flush()
	if !s.closed {
		s.send(api.Delta{Discard: s.sent, Note: note})
	}
	s.sent = false
}

// replace replaces the text that was sent of the answer. It sends nothing if no text was
// sent.
func (s *stream) replace(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pending.Reset()
	s.flush()
	if s.sent && !s.closed {
		s.send(api.Delta{Discard: true, Content: text})
	}
}

// answer sends the whole answer with the text that is not sent yet.
func (s *stream) answer(c api.Completion) {
	s.mu.Lock()
	defer s.mu.Unlock()
	rest := s.pending.String()
	s.pending.Reset()
	s.flush()
	if !s.closed {
		s.send(api.Delta{Content: rest, Answer: &c})
	}
}

// close sends the remaining text and ends the stream.
func (s *stream) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.flush()
	s.closed = true
}

// flush sends the text that is held. The caller must hold the lock.
func (s *stream) flush() {
	if s.timer != nil {
		s.timer.Stop()
		s.timer = nil
	}
	if s.pending.Len() == 0 || s.closed {
		return
	}
	s.send(api.Delta{Content: s.pending.String()})
	s.pending.Reset()
	s.sent, s.last = true, time.Now()
}

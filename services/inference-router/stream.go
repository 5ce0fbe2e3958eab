package router

import (
	"strings"
	"sync"
	"time"

	"github.com/anima-run/anima/pkg/api"
)

// How text is sent: pieces that come within flushEvery of each other go out together,
// earlier when they are flushBytes. A model that writes 20,000 small pieces makes a
// message of each otherwise.
const (
	flushEvery = 25 * time.Millisecond
	flushBytes = 4 << 10
)

// stream sends the pieces of an answer to those who asked for it. It is safe for
// concurrent use; send is never called by two goroutines at a time, nor after close.
type stream struct {
	send func(api.Delta)

	mu     sync.Mutex
	held   strings.Builder // not sent yet
	said   bool            // some of the present answer was sent
	timer  *time.Timer     // nil: nothing is held, or it goes out with the next piece
	last   time.Time       // when something was sent
	closed bool
}

// text sends the next piece, at once or with those that follow.
func (s *stream) text(piece string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.held.WriteString(piece); s.held.Len() == 0 {
		return
	}
	if s.held.Len() >= flushBytes || time.Since(s.last) >= flushEvery {
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

// again says that the call is made again, and takes back what was sent of its answer.
func (s *stream) again(note string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held.Reset()
	s.flush()
	if !s.closed {
		s.send(api.Delta{Discard: s.said, Note: note})
	}
	s.said = false
}

// instead replaces all that was sent of the answer.
func (s *stream) instead(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held.Reset()
	s.flush()
	if s.said && !s.closed {
		s.send(api.Delta{Discard: true, Content: text})
	}
}

// answer sends the whole answer with what is held of its text.
func (s *stream) answer(c api.Completion) {
	s.mu.Lock()
	defer s.mu.Unlock()
	rest := s.held.String()
	s.held.Reset()
	s.flush()
	if !s.closed {
		s.send(api.Delta{Content: rest, Answer: &c})
	}
}

// close sends what is held and ends the stream.
func (s *stream) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.flush()
	s.closed = true
}

// flush sends what is held; the caller holds the lock.
func (s *stream) flush() {
	if s.timer != nil {
		s.timer.Stop()
		s.timer = nil
	}
	if s.held.Len() == 0 || s.closed {
		return
	}
	s.send(api.Delta{Content: s.held.String()})
	s.held.Reset()
	s.said, s.last = true, time.Now()
}

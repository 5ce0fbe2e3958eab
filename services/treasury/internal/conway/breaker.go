package conway

import (
	"fmt"
	"sync"
	"time"
)

// A breaker opens after this many failed attempts in a row, and stays open for this long.
const (
	openAfter = 5
	openFor   = time.Minute
)

// breakers has one breaker for each host and route, so that a failing route does not
// block the others:
//
//	         5 failures               60 s, one probe
//	closed ─────────────▶ open ─────────────────────────▶ half-open
//	   ▲                   ▲─────────── probe fails ──────────┤
//	   └──────────────────────── probe succeeds ──────────────┘
//
// A breaker of its own and not one of failsafe-go, whose breakers read the clock of the
// machine. The zero value with a clock is ready to use.
type breakers struct {
	now func() time.Time

	mu  sync.Mutex
	all map[string]*breaker
}

type breaker struct {
	failures int // in a row
	until    time.Time
	probing  bool
}

// openError is the error of a request that was not sent, because the breaker is open.
type openError struct{ Wait time.Duration }

func (e *openError) Error() string {
	return fmt.Sprintf("it has failed %d times in a row and is asked again in %s", openAfter, e.Wait.Round(time.Second))
}

// enter reports whether an attempt may be made, and whether it is the probe of a half-open
// breaker. The caller must call leave afterwards.
func (b *breakers) enter(key string) (probe bool, err *openError) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.all == nil {
		b.all = map[string]*breaker{}
	}
	s := b.all[key]
	if s == nil {
		s = &breaker{}
		b.all[key] = s
	}
	if s.failures < openAfter {
		return false, nil
	}
	left := s.until.Sub(b.now())
	if left > 0 {
		return false, &openError{left}
	}
	if s.probing {
		return false, &openError{time.Second}
	}
	s.probing = true
	return true, nil
}

// leave records the result of an attempt. An attempt that its caller has canceled is
// neither a success nor a failure.
func (b *breakers) leave(key string, probe, failed, canceled bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.all[key]
	if probe {
		s.probing = false
	}
	switch {
	case canceled:
	case !failed:
		s.failures = 0
	default:
		if s.failures++; s.failures >= openAfter {
			s.until = b.now().Add(openFor)
		}
	}
}

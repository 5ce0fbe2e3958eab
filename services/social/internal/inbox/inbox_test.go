package inbox_test

import (
	"strings"
	"testing"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/services/social/internal/inbox"
)

func TestCheckRate(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 2, 12, 0, 0, 0, time.UTC)
	var latest []time.Time
	for i := range inbox.Rate {
		if err := inbox.CheckRate(latest, now); err != nil {
			t.Fatalf("after %d messages: got %v", len(latest), err)
		}
		latest = append(latest, now.Add(-time.Duration(i)*time.Second))
	}
	err := inbox.CheckRate(latest, now)
	if api.CodeOf(err) != api.Unavailable || api.ReasonOf(err) != api.ReasonLimit {
		t.Fatalf("after %d messages within a minute: got %v, want unavailable, limit reached", inbox.Rate, err)
	}
	// The tenth latest message arrived 9 s ago.
	if got, want := api.Wire(err).Retry(), 51*time.Second; got != want {
		t.Errorf("retry after: got %s, want %s", got, want)
	}
	if err := inbox.CheckRate(latest, now.Add(51*time.Second)); err != nil {
		t.Errorf("when the tenth is a minute old: got %v", err)
	}
}

func TestFit(t *testing.T) {
	t.Parallel()
	large := inbox.Message{Content: strings.Repeat("\x01", api.MaxMessageBytes)} // JSON encodes each byte as six
	got := inbox.Fit([]inbox.Message{large, large, large, large})
	if len(got) != 2 {
		t.Errorf("four of %d bytes: got %d, want 2", large.Size(), len(got))
	}
	if got := inbox.Fit(make([]inbox.Message, 100)); len(got) != 100 {
		t.Errorf("hundred small ones: got %d", len(got))
	}
	if got := inbox.Fit(nil); len(got) != 0 {
		t.Errorf("none: got %d", len(got))
	}
}

func TestStatusValid(t *testing.T) {
	t.Parallel()
	for s, want := range map[inbox.Status]bool{inbox.Received: true, inbox.Failed: true, "": false, "read": false} {
		if got := s.Valid(); got != want {
			t.Errorf("%q: got %v, want %v", s, got, want)
		}
	}
}

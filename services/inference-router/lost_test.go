package router_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/anima-run/anima/pkg/api"
)

func answersAtOnce(t *testing.T) *server {
	t.Helper()
	return answering(t, func(_ int64, out raw, _ *http.Request) { out.events(chunkText("fine"), chunkStop, chunkDone) })
}

// holdOf returns a hold.
func holdOf(t *testing.T, b *books, id string) api.HoldState {
	t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.holds[id] == nil {
		t.Fatalf("there is no hold %s", id)
	}
	return *b.holds[id]
}

// TestLostAttempt checks that a hold that a crashed process left is paid whole, whether or
// not the prompt is the same, and that the next attempt has a hold of its own.
func TestLostAttempt(t *testing.T) {
	t.Parallel()
	w, b := paid(t, answersAtOnce(t).url, nil)
	one, _, err := ask(t, w.Bus, request("probe", "hello"))
	if err != nil {
		t.Fatal(err)
	}
	amount := holdOf(t, b, "probe/0").Amount
	for name, more := range map[string]api.Micros{"same": 0, "other": 5} {
		left := api.HoldState{
			ID: name + "/0", Agent: "lucky", Status: api.HoldActive, Amount: amount + more, ExpiresAt: time.Now().Add(time.Minute).UnixMicro(),
		}
		b.mu.Lock()
		b.holds[left.ID] = &left
		b.mu.Unlock()
		c, _, err := ask(t, w.Bus, request(name, "hello"))
		if err != nil || c.Text != "fine" || c.Attempts != 1 || c.Cost != one.Cost+left.Amount {
			t.Errorf("%s: got %+v, %v; want a cost of %s", name, c, err, one.Cost+left.Amount)
		}
		if h := holdOf(t, b, name+"/0"); h.Status != api.HoldSettled || h.Settled != left.Amount {
			t.Errorf("%s: got %+v, want the lost hold paid whole", name, h)
		}
		if h := holdOf(t, b, name+"/0/1"); h.Status != api.HoldSettled || h.Settled != one.Cost {
			t.Errorf("%s: got %+v, want the answer paid", name, h)
		}
	}
}

// TestUnansweredHold checks that a hold that treasury made without an answer is not taken
// for that of a lost attempt, and is ended.
func TestUnansweredHold(t *testing.T) {
	t.Parallel()
	w, b := paid(t, answersAtOnce(t).url, nil)
	first := true
	b.refusing(func(m api.Message) error {
		h, ok := m.(api.Hold)
		if !ok || !first {
			return nil
		}
		first = false
		b.holds[h.ID] = &api.HoldState{ID: h.ID, Agent: h.Agent, Status: api.HoldActive, Amount: h.Amount, ExpiresAt: h.ExpiresAt}
		return api.Errorf(api.Unavailable, "the answer is lost")
	})
	if _, _, err := ask(t, w.Bus, request("again", "hello")); api.CodeOf(err) != api.Unavailable {
		t.Fatalf("got %v, want %s", err, api.Unavailable)
	}
	c, _, err := ask(t, w.Bus, request("again", "hello"))
	if err != nil || c.Text != "fine" {
		t.Fatalf("got %+v, %v", c, err)
	}
	if settled, _, active, sum := b.sums(); settled != 1 || active != 0 || sum != c.Cost {
		t.Errorf("%d settled with %s, %d active; want one with %s", settled, sum, active, c.Cost)
	}
}

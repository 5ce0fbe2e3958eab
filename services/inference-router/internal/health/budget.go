package health

// The rules of a budget, in tenths of a retry: each call to a provider pays for a tenth
// of a retry. So the attempts at a provider that answers none are at most 1.1 times the
// calls, and Burst more.
const (
	Burst     = 10 // retries that a new budget has, and the most that a budget can have
	perCall   = 1
	perRetry  = 10
	maxBudget = Burst * perRetry
)

// budget is the budget of the retries of one provider.
type budget struct {
	left   int // tenths of a retry
	denied int64
}

// Call counts a call to a provider: the first attempt at it for a request.
func (t *Tracker) Call(provider string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	b := t.budget(provider)
	b.left = min(b.left+perCall, maxBudget)
}

// Retry takes a retry from the budget of a provider. It returns false if none is left.
func (t *Tracker) Retry(provider string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	b := t.budget(provider)
	if b.left < perRetry {
		b.denied++
		return false
	}
	b.left -= perRetry
	return true
}

// Return gives back a retry that [Tracker.Retry] took and that was not made.
func (t *Tracker) Return(provider string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	b := t.budget(provider)
	b.left = min(b.left+perRetry, maxBudget)
}

// Denied calls f with the number of retries denied to each provider that has been called.
func (t *Tracker) Denied(f func(provider string, n int64)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for name, b := range t.budgets {
		f(name, b.denied)
	}
}

// budget returns the budget of a provider. The caller must hold the lock.
func (t *Tracker) budget(provider string) *budget {
	b := t.budgets[provider]
	if b == nil {
		b = &budget{left: maxBudget}
		t.budgets[provider] = b
	}
	return b
}

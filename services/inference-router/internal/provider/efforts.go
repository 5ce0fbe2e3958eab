package provider

import "sync"

// RefusedEfforts holds the efforts of reasoning that models have refused. A model that
// refuses one may accept another. The zero value is empty. It is safe for concurrent use.
type RefusedEfforts struct {
	mu  sync.Mutex
	all map[refusedEffort]bool
}

type refusedEffort struct{ model, effort string }

// maxRefusedEfforts bounds the entries: callers over HTTP may name any word as the effort.
const maxRefusedEfforts = 1024

// Add adds an effort that a model has refused. It forgets all others if there are too many;
// they are learnt again.
func (r *RefusedEfforts) Add(model, effort string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.all == nil || len(r.all) >= maxRefusedEfforts {
		r.all = map[refusedEffort]bool{}
	}
	r.all[refusedEffort{model, effort}] = true
}

// Has reports whether a model has refused an effort.
func (r *RefusedEfforts) Has(model, effort string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.all[refusedEffort{model, effort}]
}

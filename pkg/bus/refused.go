package bus

import (
	"errors"
	"strings"
	"sync"
)

// errRefused is the error of a question that NATS does not let this user ask.
var errRefused = errors.New("nats refuses this user the subject")

// refusals tells questions that NATS has dropped them: a server answers what its user may
// not publish by an error of the connection, which names the subject alone. While a release
// rolls out, its services may be there before the servers have its permissions; a question
// that is new in it has no answer then, as where there is no service that takes it.
type refusals struct {
	mu      sync.Mutex
	waiting map[string]map[*func()]struct{} // by subject
}

// watch calls refused if a message on subject is dropped before stop is called; it may be
// called more than once, and after stop if the two come together.
func (r *refusals) watch(subject string, refused func()) (stop func()) {
	key := &refused
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.waiting == nil {
		r.waiting = map[string]map[*func()]struct{}{}
	}
	all := r.waiting[subject]
	if all == nil {
		all = map[*func()]struct{}{}
		r.waiting[subject] = all
	}
	all[key] = struct{}{}
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		if delete(all, key); len(all) == 0 && len(r.waiting[subject]) == 0 {
			delete(r.waiting, subject)
		}
	}
}

// tell passes on an error of the connection.
func (r *refusals) tell(err error) {
	_, subject, found := strings.Cut(err.Error(), `Publish to "`)
	subject, _, _ = strings.Cut(subject, `"`)
	if !found {
		return
	}
	r.mu.Lock()
	var all []func()
	for refused := range r.waiting[subject] {
		all = append(all, *refused)
	}
	r.mu.Unlock()
	for _, refused := range all {
		refused()
	}
}

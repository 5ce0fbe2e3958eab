package bus

import (
	"errors"
	"strings"
	"sync"
)

// errRefused is the error of a question whose subject the user may not publish on.
var errRefused = errors.New("nats refuses this user the subject")

// refusals finds the questions that NATS has dropped because the user may not publish on
// their subjects: the server answers with an error of the connection, which names the
// subject alone. While a release rolls out, services may start before the servers have
// their permissions; a question that is new in the release then fails like one that no
// service takes.
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

// tell calls what waits for the subject of a connection's error, if there is any.
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

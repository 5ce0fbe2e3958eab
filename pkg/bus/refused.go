package bus

import (
	"errors"
	"strings"
	"sync"

	"github.com/nats-io/nats.go"
)

// errRefused is the error of a request whose subject the user may not publish to.
var errRefused = errors.New("nats does not permit this user to publish on the subject")

// ErrNoServers is in the chain of the error of [Dial] if no server could be reached.
var ErrNoServers = nats.ErrNoServers

// refusals reports the requests that NATS has dropped because the user may not publish to
// their subjects. The server reports such a message as an error of the connection, which
// names only the subject. During an upgrade, services may start before the servers have
// the permissions of the new release; a new request then fails as if no service took it.
type refusals struct {
	mu      sync.Mutex
	waiting map[*refusalWatch]struct{}
}

type refusalWatch struct {
	subject string
	refused func()
}

// watch calls refused if a message on subject is dropped before unwatch is called. It may
// call refused several times, and after unwatch if the two happen concurrently.
func (r *refusals) watch(subject string, refused func()) *refusalWatch {
	w := &refusalWatch{subject, refused}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.waiting == nil {
		r.waiting = map[*refusalWatch]struct{}{}
	}
	r.waiting[w] = struct{}{}
	return w
}

func (r *refusals) unwatch(w *refusalWatch) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.waiting, w)
}

// report calls the watches of the subject that an error of the connection names, if any.
func (r *refusals) report(err error) {
	_, subject, found := strings.Cut(err.Error(), `Publish to "`)
	subject, _, _ = strings.Cut(subject, `"`)
	if !found {
		return
	}
	var all []*refusalWatch
	r.mu.Lock()
	for w := range r.waiting {
		if w.subject == subject {
			all = append(all, w)
		}
	}
	r.mu.Unlock()
	for _, w := range all {
		w.refused()
	}
}

package router

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"
)

// working holds the ids of the holds whose attempts are in progress in this process. The
// zero value is ready to use.
type working struct {
	mu  sync.Mutex
	all map[string]struct{}
}

// begin adds a hold. It returns false if it is there already.
func (w *working) begin(hold string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, ok := w.all[hold]; ok {
		return false
	}
	if w.all == nil {
		w.all = map[string]struct{}{}
	}
	w.all[hold] = struct{}{}
	return true
}

func (w *working) end(hold string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.all, hold)
}

func (w *working) has(hold string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	_, ok := w.all[hold]
	return ok
}

const (
	answerWithin = time.Second      // how long a replica has to answer that it works on an attempt
	keepQuestion = 10 * time.Second // how long the server keeps a question
)

// questions asks the other replicas which attempts they work on, by keys of the
// coordination bucket. Nothing is written for an attempt unless another replica finds its
// hold, which is rare: the caller lost its connection, or the process crashed. A replica
// that does not answer within [answerWithin] is taken for crashed. If it only was slow, the
// agent pays for the whole hold of the attempt, the most that the provider may charge.
type questions struct {
	log    *slog.Logger
	bucket *bus.Bucket[api.AttemptQuery]
	owner  string
	mine   *working

	mu      sync.Mutex
	waiting map[*question]struct{}
}

// question is one call of [questions.ask] in progress.
type question struct {
	hold    string
	answers chan uint64 // revisions of answers; buffered, so that a late one does not block
}

// run answers the questions of the other replicas, and receives their answers, until ctx
// ends. An answer that cannot be written is left out: the end of run would stop the process
// with all its calls. After an outage of NATS the watch shows the question again.
func (q *questions) run(ctx context.Context) error {
	return q.bucket.Watch(ctx, api.AttemptKeys, nil, func(e bus.Entry[api.AttemptQuery]) error {
		v := e.Value
		switch {
		case e.Deleted:
		case v.Holder != "":
			q.received(v.Hold, e.Revision)
		case v.By != q.owner && q.mine.has(v.Hold):
			v.Holder = q.owner
			_, err := q.bucket.Update(ctx, api.AttemptKey(v.Hold), v, e.Revision, keepQuestion)
			if err != nil && api.CodeOf(err) != api.Conflict && ctx.Err() == nil { // after a Conflict the question is watched again
				q.log.WarnContext(ctx, "question about an attempt not answered", "hold", v.Hold, "err", err)
			}
		}
		return nil
	})
}

func (q *questions) received(hold string, revision uint64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for x := range q.waiting {
		if x.hold != hold {
			continue
		}
		select {
		case x.answers <- revision:
		default: // one answer suffices
		}
	}
}

// ask reports whether another replica works on an attempt.
func (q *questions) ask(ctx context.Context, hold string) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, answerWithin+claimTimeout)
	defer cancel()
	x := &question{hold, make(chan uint64, 4)}
	q.mu.Lock()
	if q.waiting == nil {
		q.waiting = map[*question]struct{}{}
	}
	q.waiting[x] = struct{}{}
	q.mu.Unlock()
	defer func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		delete(q.waiting, x)
	}()
	key, v := api.AttemptKey(hold), api.AttemptQuery{Hold: hold, By: q.owner}
	e, err := q.bucket.Get(ctx, key)
	switch {
	case err == nil: // a question or an answer of before
		_, err = q.bucket.Update(ctx, key, v, e.Revision, keepQuestion)
	case api.CodeOf(err) == api.NotFound:
		_, err = q.bucket.Create(ctx, key, v, keepQuestion)
	}
	if err != nil && api.CodeOf(err) != api.Conflict { // after a Conflict another replica asks the same
		return false, err
	}
	late := time.NewTimer(answerWithin)
	defer late.Stop()
	for {
		select {
		case revision := <-x.answers:
			if revision > e.Revision {
				return true, nil
			}
		case <-late.C:
			return false, nil
		case <-ctx.Done():
			return false, context.Cause(ctx)
		}
	}
}

// inProgress reports whether an attempt is in progress, at this or another replica.
func (h *handlers) inProgress(ctx context.Context, hold string) (bool, error) {
	if h.working.has(hold) {
		return true, nil
	}
	return h.questions.ask(ctx, hold)
}

package router

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"
)

// unsure holds the ids of holds whose request failed in this process: treasury may have
// made them, and no call was made on them. Without it, another try of the call would take
// such a hold for that of a lost attempt. The zero value is ready to use.
type unsure struct {
	mu  sync.Mutex
	ids map[string]bool // true: a release is in progress
}

func (u *unsure) add(id string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.ids == nil {
		u.ids = map[string]bool{}
	}
	u.ids[id] = false
}

func (u *unsure) has(id string) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	_, ok := u.ids[id]
	return ok
}

// take removes an id and reports whether it was there and is not being released: then the
// caller may use the hold.
func (u *unsure) take(id string) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	releasing, ok := u.ids[id]
	if ok && !releasing {
		delete(u.ids, id)
	}
	return ok && !releasing
}

// release calls the function for each id. After an error the id remains.
func (u *unsure) release(release func(id string) error) error {
	u.mu.Lock()
	all := slices.Sorted(maps.Keys(u.ids))
	u.mu.Unlock()
	var faults []error
	for _, id := range all {
		u.mu.Lock()
		_, ok := u.ids[id]
		if ok {
			u.ids[id] = true
		}
		u.mu.Unlock()
		if !ok {
			continue
		}
		err := release(id)
		u.mu.Lock()
		if delete(u.ids, id); err != nil {
			u.ids[id] = false
			faults = append(faults, fmt.Errorf("release %s: %w", id, err))
		}
		u.mu.Unlock()
	}
	return errors.Join(faults...)
}

// releaseUnsure releases the holds that may exist and that no other try of their call
// uses.
func (h *handlers) releaseUnsure(ctx context.Context) error {
	return h.unsure.release(func(id string) error {
		_, err := bus.Call[api.HoldState](ctx, h.bus, api.Release{ID: id, Reason: "no call was made"})
		if code := api.CodeOf(err); code == api.NotFound || code == api.Conflict { // it was not made, or has ended
			return nil
		}
		return err
	})
}

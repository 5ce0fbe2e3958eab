//go:build !failpoint

package failpoint

import "context"

// Enabled says whether this build can be made to die.
const Enabled = false

// Do takes the step f.
func Do(ctx context.Context, _ Point, f func(context.Context) error) error { return f(ctx) }

// Value takes the step f, which has a result.
func Value[T any](ctx context.Context, _ Point, f func(context.Context) (T, error)) (T, error) {
	return f(ctx)
}

// Broken says whether a safety is left out.
func Broken(Mutation) bool { return false }

//go:build !failpoint

package failpoint

import "context"

// Do calls the step f.
func Do(ctx context.Context, _ Point, f func(context.Context) error) error { return f(ctx) }

// Value calls the step f and returns its result.
func Value[T any](ctx context.Context, _ Point, f func(context.Context) (T, error)) (T, error) {
	return f(ctx)
}

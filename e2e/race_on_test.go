//go:build race

package e2e

// raced says that the race detector counts allocations of its own.
const raced = true

//go:build race

package e2e

// raced reports that the test was built with the race detector, which makes additional
// allocations.
const raced = true

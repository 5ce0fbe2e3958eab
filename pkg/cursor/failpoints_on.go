//go:build failpoint

package cursor

// maxBatch is 1, so that repetitions of a crash test pass the same points.
const maxBatch = 1

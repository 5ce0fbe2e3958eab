//go:build failpoint

package treasury

// feedLinger is 0, so that each run of a crash test passes the same points, if not as
// often.
const feedLinger = 0

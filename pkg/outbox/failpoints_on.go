//go:build failpoint

package outbox

// lingerRows is 1: with a wait, the number and the time of the deletions would vary
// between repetitions of a crash test.
const lingerRows = 1

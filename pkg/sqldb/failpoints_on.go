//go:build failpoint

package sqldb

// deferral is 0, so that each run of a crash test passes the same failpoints.
const deferral = 0

//go:build !failpoint

package cursor

// maxBatch is the number of messages after which a batch with an event is applied
// without waiting for more.
const maxBatch = 256

//go:build !failpoint

package ledger

// decided is called when a request is decided and not yet committed.
func decided(*request, error) {}

//go:build !failpoint

package outbox

// lingerRows is the number of published rows that ends the wait for others, see [linger].
const lingerRows = 64

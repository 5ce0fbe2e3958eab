//go:build !failpoint

package sqldb

import "time"

// deferral is how long [DB.ExecDeferred] waits for other transactions.
const deferral = 50 * time.Millisecond

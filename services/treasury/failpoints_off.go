//go:build !failpoint

package treasury

import "time"

// feedLinger is how long the feed waits after a commit for further commits to publish in
// the same message.
const feedLinger = 250 * time.Millisecond

//go:build failpoint

package ledger

import "github.com/anima-run/anima/pkg/failpoint"

// decided is called when a request is decided and not yet committed. With
// [failpoint.AnswerBeforeCommit] it answers the request.
func decided(r *request, refusal error) {
	if failpoint.Broken(failpoint.AnswerBeforeCommit) && len(r.done) == 0 {
		r.done <- refusal
	}
}

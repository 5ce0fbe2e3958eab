package policy

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/host"

	"github.com/anima-run/anima/services/policy/internal/sqlstore"
)

// routes registers policy's HTTP routes. The route that checks a call is in loop, under
// the agent.
func (h *handlers) routes(r host.Routes) {
	r.Handle("GET /v1/policy/rules", host.Answer(func(http.ResponseWriter, *http.Request) (api.ListRules, error) { return api.ListRules{}, nil }, h.listRules))
	r.Handle("GET /v1/policy/decisions", host.Answer(func(_ http.ResponseWriter, r *http.Request) (api.ListDecisions, error) {
		limit, err := host.Limit(r)
		q := r.URL.Query()
		return api.ListDecisions{Agent: q.Get("agent"), Turn: q.Get("turn"), After: q.Get("after"), Limit: limit}, err
	}, h.listDecisions))
}

// cursor encodes the position of a decision in the list: the After of the next page.
func cursor(d api.Decision) string { return fmt.Sprintf("%d.%d.%s", d.At, d.Index, d.Turn) }

// placeOf decodes a cursor. The empty string is the start of the list. Errors: Invalid.
func placeOf(after string) (sqlstore.Place, error) {
	if after == "" {
		return sqlstore.Place{}, nil
	}
	parts := strings.SplitN(after, ".", 3)
	if len(parts) == 3 {
		at, aerr := strconv.ParseInt(parts[0], 10, 64)
		index, ierr := strconv.Atoi(parts[1])
		if aerr == nil && ierr == nil && at > 0 {
			return sqlstore.Place{At: at, Turn: parts[2], Index: index}, nil
		}
	}
	return sqlstore.Place{}, api.NotInList(after)
}

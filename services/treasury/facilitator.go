package treasury

import (
	"net/http"

	"github.com/anima-run/anima/pkg/host"

	"github.com/anima-run/anima/services/treasury/internal/facilitator"
)

// facilitatorRoutes adds the routes of the built-in facilitator. It pays the fees of what
// it settles, so only the operator uses it unless it is public.
func facilitatorRoutes(r host.Routes, f *facilitator.Facilitator, public bool) {
	add := r.Handle
	if public {
		add = r.Public
	}
	add("POST /x402/verify", f.ServeVerify)
	add("POST /x402/settle", f.ServeSettle)
	r.Public("GET /x402/supported", func(w http.ResponseWriter, req *http.Request) { f.ServeSupported(w, req) })
}

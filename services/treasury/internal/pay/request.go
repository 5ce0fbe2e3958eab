package pay

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"net/http"
	"net/textproto"
	"slices"
	"strings"

	"github.com/ethereum/go-ethereum/common"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/services/treasury/internal/x402"
)

// Request is a request to make and to pay for.
type Request struct {
	ID      string // idempotency key: the same request has the same one
	Agent   string
	Session string
	Turn    string
	By      api.PrincipalKind // principal of the turn; "": unknown
	Method  string            // "" means GET
	URL     string
	Header  map[string]string
	Body    []byte
	Max     api.Micros       // most that may be paid; 0 means what the limits of the agent allow
	Own     bool             // made by treasury for its own purpose: only Max and Payees limit it
	Payees  []common.Address // the only addresses that are paid; empty: any, within the limits of the ledger
	Parent  string           // W3C traceparent
	address string           // the host that is paid
}

// maxRequestBody is the limit of the body of a request, in bytes.
const maxRequestBody = 256 << 10

// reserved are the header fields that a caller does not set: those of the connection and
// of the payment.
var reserved = []string{
	"Host", "Content-Length", "Transfer-Encoding", "Connection", "Upgrade", "Te", "Trailer", "Proxy-Authorization",
	http.CanonicalHeaderKey(x402.HeaderPayment), http.CanonicalHeaderKey(x402.HeaderPaymentV1),
}

func (p *Payer) check(r *Request) error {
	if r.Method == "" {
		r.Method = http.MethodGet
	}
	bad := func(format string, args ...any) error {
		return &api.Error{Code: api.Invalid, Message: fmt.Sprintf(format, args...), Next: "correct the request; docs/x402.md says what can be paid"}
	}
	switch {
	case r.ID == "" || len(r.ID) > 150 || strings.Trim(r.ID, visible) != "":
		return bad("%.40q cannot be the id of a payment: use 1 to 150 visible ASCII characters", r.ID)
	case !slices.Contains([]string{"GET", "POST", "PUT", "PATCH", "DELETE"}, r.Method):
		return bad("the method %.20q is not supported", r.Method)
	case len(r.URL) > 2048:
		return bad("the address has %d bytes, more than 2048", len(r.URL))
	case len(r.Body) > maxRequestBody:
		return bad("the body has %d bytes, more than %d", len(r.Body), maxRequestBody)
	case r.Max < 0 || r.Max > api.MaxMicros:
		return bad("%d micro-USD is not an amount", r.Max)
	case len(r.Header) > 50:
		return bad("%d header fields are more than 50", len(r.Header))
	}
	for name, value := range r.Header {
		switch canonical := textproto.CanonicalMIMEHeaderKey(name); {
		case slices.Contains(reserved, canonical):
			return bad("the header field %s is not the caller's to set", canonical)
		case name == "" || strings.Trim(name, token) != "" || strings.ContainsAny(value, "\r\n\x00"):
			return bad("%.40q is not a header field", name)
		}
	}
	u, err := p.o.Outbound.Parse(r.URL)
	if err != nil {
		return bad("the address: %v", err)
	}
	r.address = u.Hostname()
	return nil
}

const (
	token   = "!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
	visible = token + `"(),/:;<=>?@[\]{}`
)

// hash identifies the request: the same id with another hash is a conflict.
func (r *Request) hash() string {
	h := sha256.New()
	write := func(s string) { _, _ = fmt.Fprintf(h, "%d:%s", len(s), s) } // a hash has no errors
	write(r.Agent)
	write(r.Method)
	write(r.URL)
	for _, name := range slices.Sorted(maps.Keys(r.Header)) {
		write(textproto.CanonicalMIMEHeaderKey(name))
		write(r.Header[name])
	}
	write(string(r.Body))
	return hex.EncodeToString(h.Sum(nil))
}

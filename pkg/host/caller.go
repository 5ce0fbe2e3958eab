package host

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"strings"

	"github.com/anima-run/anima/pkg/api"
)

// Credential returns the token or the key of a request, or "" if it has none. The scheme
// is case-insensitive (RFC 9110 §11.1); existing clients send the key without a scheme, or
// in X-Api-Key (docs/reference/platform.md, HTTP access).
func Credential(r *http.Request) string {
	given := cmp.Or(r.Header.Get("Authorization"), r.Header.Get("X-Api-Key"))
	if scheme, key, ok := strings.Cut(given, " "); ok && strings.EqualFold(scheme, "Bearer") {
		given = strings.TrimLeft(key, " ")
	}
	return given
}

// Caller is who sent an authenticated request. The zero value is the operator.
type Caller struct {
	Key     string // id of the API key; "": the operator
	Account string // account of the holder of the key
	Address string // address of the holder, EIP-55
}

type callerKey struct{}

func withCaller(r *http.Request, c Caller) *http.Request {
	return r.WithContext(context.WithValue(r.Context(), callerKey{}, c))
}

// CallerOf returns the caller of a request of a route that was added with [Routes].
func CallerOf(ctx context.Context) Caller {
	c, _ := ctx.Value(callerKey{}).(Caller)
	return c
}

// Operator reports whether the caller is the operator.
func (c Caller) Operator() bool { return c.Key == "" }

// Acts returns the account on which a request acts: for the holder of a key its own
// account, for the operator the named one. named is "" if the request names none. Errors:
// Denied, for another account than that of the key; Invalid, for an operator that names
// none.
func (c Caller) Acts(named string) (string, error) {
	switch {
	case c.Operator() && named == "":
		return "", &api.Error{Code: api.Invalid, Message: "no agent is named", Next: "name the agent, or use an API key of it"}
	case c.Operator() || named == "" || named == c.Account:
		return cmp.Or(named, c.Account), nil
	}
	return "", &api.Error{
		Code: api.Denied, Message: fmt.Sprintf("the API key is of %s and cannot act for %.60q", c.Account, named),
		Next: "leave the agent out, or use a key of that agent",
	}
}

package host

import (
	"context"
	"net/http"
	"strconv"

	"github.com/anima-run/anima/pkg/api"
)

// Answer returns a handler that reads a request message with read, and responds with the
// result of answer, or with the error of either.
func Answer[Req, Resp any](read func(http.ResponseWriter, *http.Request) (Req, error), answer func(context.Context, Req) (Resp, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		req, err := read(w, r)
		if err != nil {
			WriteError(w, 0, err)
			return
		}
		v, err := answer(r.Context(), req)
		WriteJSON(w, v, err)
	}
}

// Limit returns the query parameter limit of a list, or 0 if there is none. It returns an
// Invalid error if the value is not a number, or is 0.
func Limit(r *http.Request) (int, error) {
	text := r.URL.Query().Get("limit")
	if text == "" {
		return 0, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n == 0 {
		return 0, &api.Error{Code: api.Invalid, Message: "limit " + strconv.Quote(text) + " is not a number of entries", Next: "ask for 1 to " + strconv.Itoa(api.MaxPage) + ", or leave it out"}
	}
	return n, nil
}

// Flag returns a boolean query parameter, or false if it is absent. It returns an Invalid
// error for any other value.
func Flag(r *http.Request, name string) (bool, error) {
	text := r.URL.Query().Get(name)
	if text == "" {
		return false, nil
	}
	v, err := strconv.ParseBool(text)
	if err != nil {
		return false, &api.Error{Code: api.Invalid, Message: name + " " + strconv.Quote(text) + " is neither true nor false", Next: "write " + name + "=true, or leave it out"}
	}
	return v, nil
}

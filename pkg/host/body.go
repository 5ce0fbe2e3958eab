package host

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"unicode/utf8"

	"github.com/anima-run/anima/pkg/api"
)

// firstPart is how many bytes of a body must have arrived before memory is reserved for
// the rest. A client that announces a body and sends nothing occupies no memory.
const firstPart = 16 << 10

// ReadBody reads the body of a request, of at most limit bytes. It reserves memory for the
// length that the client announces, once the first part has arrived. It returns an Invalid
// error, with ReasonTooLarge or ReasonTooSlow if that is the cause, or Unavailable with
// ReasonBusy for a Public route.
func ReadBody(w http.ResponseWriter, r *http.Request, limit int64) ([]byte, error) {
	in := http.MaxBytesReader(w, r.Body, limit)
	announced := int(min(max(r.ContentLength, 0), limit))
	var body bytes.Buffer
	body.Grow(min(announced, firstPart) + bytes.MinRead) // with room for the read that returns io.EOF
	_, err := body.ReadFrom(io.LimitReader(in, firstPart))
	if err == nil {
		if announced > firstPart {
			body.Grow(announced - firstPart + bytes.MinRead)
		}
		_, err = body.ReadFrom(in)
	}
	if err == nil {
		return body.Bytes(), nil
	}
	if busy, ok := errors.AsType[*api.Error](err); ok {
		return nil, busy
	}
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		e := api.Errorf(api.Invalid, "the body is larger than %d bytes", limit)
		e.Reason, e.Next = api.ReasonTooLarge, "send less at a time; see docs/http.md"
		return nil, e
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return nil, &api.Error{
			Code: api.Invalid, Reason: api.ReasonTooSlow, Message: "the body did not arrive in time",
			Next: "send it at once; ANIMA_HTTP_READ_TIMEOUT sets the time limit",
		}
	}
	return nil, &api.Error{Code: api.Invalid, Message: "the body cannot be read: " + err.Error(), Next: "send it again"}
}

// ReadJSON decodes the body of a request, of at most limit bytes, into v. The body must
// be one JSON value in UTF-8 without fields that v lacks. Errors are those of [ReadBody],
// or Invalid.
func ReadJSON(w http.ResponseWriter, r *http.Request, limit int64, v any) error {
	body, err := ReadBody(w, r, limit)
	if err != nil {
		return err
	}
	if !utf8.Valid(body) { // encoding/json would replace invalid bytes
		return &api.Error{Code: api.Invalid, Message: "the body is not UTF-8", Next: "encode it as UTF-8"}
	}
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.DisallowUnknownFields()
	err = dec.Decode(v)
	if err == nil {
		if _, more := dec.Token(); more == nil || !errors.Is(more, io.EOF) {
			err = errors.New("more than one JSON value")
		}
	}
	if err != nil {
		return &api.Error{Code: api.Invalid, Message: "the body is not the JSON this route takes: " + api.JSONFault(err), Next: "see docs/http.md"}
	}
	return nil
}

package anthropic

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"

	"github.com/anima-run/anima/services/inference-router/internal/provider"
)

// Errors for answers that are not in the protocol.
var (
	errPage      = errors.New("the server answered with a web page, not with a message: check the base URL")
	errTruncated = errors.New("the stream ended before the answer was complete")
	errNoList    = errors.New("the answer to GET /v1/models is not a list of models: check the base URL")
	errNoAnswer  = errors.New("the server accepted the request and sent no answer")
)

// fault returns the error for an unfinished call. head is the answer's head, nil if none
// was received, and body the error object of a refusal; err is the error of the transport
// or the stream, nil if the stream ended early without one.
func (p *Provider) fault(ctx context.Context, head *http.Response, body []byte, err error) *provider.Error {
	if ctx.Err() != nil {
		return provider.CanceledError(p.name, ctx.Err())
	}
	if err == nil {
		err = errTruncated
	}
	fault := &provider.Error{Kind: provider.Failover, Provider: p.name}
	if head == nil && provider.NotConnected(err) {
		fault.Kind = provider.Unreachable
	}
	switch {
	case head != nil && head.StatusCode >= http.StatusMultipleChoices && head.StatusCode < http.StatusBadRequest:
		fault.Kind, fault.Status = provider.Endpoint, head.StatusCode
		fault.Message = "the server redirects to " + head.Header.Get("Location") + ": set the base URL to that address"
	case head != nil && head.StatusCode >= http.StatusBadRequest:
		var word string
		word, fault.Message = words(body)
		if fault.Message == "" {
			fault.Message = http.StatusText(head.StatusCode)
		}
		fault.Status = head.StatusCode
		fault.Kind = provider.KindOfStatus(head.StatusCode, code(word), fault.Message)
		fault.RetryAfter = provider.RetryAfter(head.Header, p.now())
	case errors.Is(err, errPage):
		fault.Kind, fault.Message = provider.Endpoint, err.Error()
	default:
		var outer *url.Error
		if errors.As(err, &outer) {
			err = outer.Err // without the URL
		}
		fault.Message = err.Error()
	}
	fault.Message = provider.Clean(fault.Message, p.key)
	return fault
}

// words returns the type and the message of an error object.
func words(data []byte) (word, message string) {
	var object struct {
		Error struct {
			Type    string `json:"type"`
			Message string `json:"message"`
		} `json:"error"`
	}
	if json.Unmarshal(data, &object) != nil {
		return "", ""
	}
	return object.Error.Type, object.Error.Message
}

// code returns the code of package provider for a type of error that the status does not
// express.
func code(word string) string {
	if word == "billing_error" {
		return "insufficient_quota"
	}
	return ""
}

// statuses are the statuses of the types of errors. An error within a stream has no
// status.
//
//nolint:gochecknoglobals // a table
var statuses = map[string]int{
	"invalid_request_error": http.StatusBadRequest, "authentication_error": http.StatusUnauthorized, "billing_error": http.StatusPaymentRequired,
	"permission_error": http.StatusForbidden, "not_found_error": http.StatusNotFound, "request_too_large": http.StatusRequestEntityTooLarge,
	"rate_limit_error": http.StatusTooManyRequests, "timeout_error": http.StatusGatewayTimeout, "api_error": http.StatusInternalServerError,
	"overloaded_error": statusOverloaded,
}

// statusOverloaded is Anthropic's status for a server without capacity.
const statusOverloaded = 529

// streamFault reads an error event of the stream.
func streamFault(data []byte) (provider.Kind, string) {
	word, message := words(data)
	if message == "" {
		message = "the stream ended with an error"
	}
	status, ok := statuses[word]
	if !ok {
		status = http.StatusBadGateway
	}
	return provider.KindOfStatus(status, code(word), message), message
}

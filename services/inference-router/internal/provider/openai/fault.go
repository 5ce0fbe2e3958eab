package openai

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	sdk "github.com/openai/openai-go/v3"

	"github.com/anima-run/anima/services/inference-router/internal/provider"
)

// fault returns the error for an unfinished call. head is the answer's head, nil if none
// was received; err is the client's error, nil if the stream ended early without one.
func (p *Provider) fault(ctx context.Context, head *http.Response, err error) *provider.Error {
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
	inStream, broken := errors.AsType[streamError](err)
	switch {
	case broken:
		fault.Kind, fault.Message = streamFault(inStream)
	case head != nil && head.StatusCode >= http.StatusMultipleChoices && head.StatusCode < http.StatusBadRequest:
		fault.Kind, fault.Status = provider.Endpoint, head.StatusCode
		fault.Message = "the server redirects to " + head.Header.Get("Location") + ": set the base URL to that address"
	case head != nil && head.StatusCode >= http.StatusBadRequest:
		// The client returns no [sdk.Error] when the body was not JSON.
		var code string
		if refusal, ok := errors.AsType[*sdk.Error](err); ok {
			code, fault.Message, fault.Refused = refusal.Code, refusal.Message, refusal.Code+" "+refusal.Param
		}
		fault.Message = cmp.Or(fault.Message, refusalMessage(head), http.StatusText(head.StatusCode))
		fault.Status = head.StatusCode
		fault.Kind = provider.KindOfStatus(head.StatusCode, code, fault.Message)
		fault.RetryAfter = provider.RetryAfter(head.Header, p.now())
	case errors.Is(err, errPage):
		fault.Kind, fault.Message = provider.Endpoint, err.Error()
	default:
		if outer, ok := errors.AsType[*url.Error](err); ok {
			err = outer.Err // without the URL
		}
		fault.Message = err.Error()
	}
	fault.Message = provider.Clean(fault.Message, p.key)
	return fault
}

// streamFault reads an error event of the stream. Its code is a word, or with some
// gateways the HTTP status.
func streamFault(data []byte) (provider.Kind, string) {
	var event struct {
		Error struct {
			Message string `json:"message"`
			Type    string `json:"type"`
			Code    any    `json:"code"`
		} `json:"error"`
	}
	if err := json.Unmarshal(data, &event); err != nil {
		return provider.Failover, "the stream ended with an error that cannot be read"
	}
	message := cmp.Or(event.Error.Message, "the stream ended with an error")
	word, _ := event.Error.Code.(string)
	status := 0
	if n, ok := event.Error.Code.(float64); ok {
		status = int(n)
	} else if n, err := strconv.Atoi(word); err == nil {
		status = n
	}
	switch {
	case status >= http.StatusBadRequest:
	case word == "rate_limit_exceeded" || event.Error.Type == "rate_limit_error":
		status = http.StatusTooManyRequests
	case event.Error.Type == "server_error" || event.Error.Type == "overloaded_error":
		status = http.StatusServiceUnavailable
	default:
		status = http.StatusBadGateway
	}
	return provider.KindOfStatus(status, word, message), message
}

// Bounds on reading the rest of a body, which is the terminal chunk of the HTTP body. The
// connection can be reused only after that chunk is read.
const (
	drainBytes = 4 << 10
	drainWait  = 50 * time.Millisecond
)

// drain reads the rest of a body, up to drainBytes, and closes it. After drainWait it calls
// cancel, which aborts the read.
func drain(body io.ReadCloser, cancel context.CancelFunc) {
	late := time.AfterFunc(drainWait, cancel)
	defer late.Stop()
	// The rest is discarded, and so are its errors.
	_, _ = io.CopyN(io.Discard, body, drainBytes)
	_ = body.Close()
}

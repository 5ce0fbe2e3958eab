// Package anthropic calls models through Anthropic's Messages API with Anthropic's
// official client. It always streams. It converts the neutral prompt to content blocks:
// calls are tool_use blocks, results are tool_result blocks, and the stable beginning of
// the prompt is marked for the provider's cache.
//
// It never repeats a failed call: the router does, because each attempt is paid. It must
// not read the environment: URL and key are in [Config].
package anthropic

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	sdk "github.com/anthropics/anthropic-sdk-go"
	"github.com/anthropics/anthropic-sdk-go/option"
	"github.com/anthropics/anthropic-sdk-go/packages/ssestream"

	"github.com/anima-run/anima/services/inference-router/internal/provider"
)

// Config holds the settings of one endpoint.
type Config struct {
	Name    string // name of the provider in the registry; required
	BaseURL string // without the version, like https://api.anthropic.com; a trailing /v1 is removed; required
	Key     string // sent as X-Api-Key; empty sends none
	// HTTP is the client for all requests, with its tracing transport and connection
	// limits. It must not have a Timeout, because the context bounds each call. Required.
	HTTP *http.Client
	Now  func() time.Time // clock for a Retry-After that is a date; required
}

// Provider is a [provider.Provider] for one endpoint.
type Provider struct {
	name     string
	key      string
	now      func() time.Time
	messages sdk.MessageService
	models   sdk.ModelService
}

// New returns a provider, or an error if the configuration is invalid. It makes no
// request.
func New(c Config) (*Provider, error) {
	if c.Name == "" || c.HTTP == nil || c.Now == nil {
		return nil, errors.New("an anthropic provider needs a name, an HTTP client and a clock")
	}
	base, err := url.Parse(c.BaseURL)
	if err != nil || (base.Scheme != "http" && base.Scheme != "https") || base.Host == "" {
		return nil, fmt.Errorf("provider %s: the base URL must look like https://host", c.Name)
	}
	base.Path = strings.TrimSuffix(strings.TrimSuffix(base.Path, "/"), "/v1") // the client adds it
	web := *c.HTTP
	web.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	opts := []option.RequestOption{option.WithBaseURL(base.String()), option.WithHTTPClient(&web), option.WithMaxRetries(0)}
	if c.Key != "" {
		opts = append(opts, option.WithAPIKey(c.Key))
	}
	return &Provider{
		name: c.Name, key: c.Key, now: c.Now,
		// The services, unlike the client around them, read nothing from the environment.
		messages: sdk.NewMessageService(opts...), models: sdk.NewModelService(opts...),
	}, nil
}

// Name returns the name of the provider.
func (p *Provider) Name() string { return p.name }

// Complete makes one call; see [provider.Provider]. An answer that broke off after its
// stop reason is complete, with estimated usage: a repeated call would be paid twice for
// the same text.
func (p *Provider) Complete(ctx context.Context, req provider.Request, onDelta func(string) error) (provider.Response, error) {
	sent, err := body(req)
	if err != nil {
		return provider.Response{}, &provider.Error{Kind: provider.Fatal, Provider: p.name, Message: provider.Clean(err.Error(), p.key)}
	}
	callCtx, cancel := context.WithCancel(ctx)
	defer cancel()

	var head *http.Response
	opts := []option.RequestOption{option.WithRequestBody("application/json", sent), option.WithResponseBodyInto(&head), option.WithMiddleware(boundRefusals)}
	if _, err := p.messages.New(callCtx, sdk.MessageNewParams{}, opts...); err != nil {
		return provider.Response{}, p.fault(ctx, head, err)
	}
	if head.StatusCode != http.StatusOK {
		defer func() { _ = head.Body.Close() }() // the status is the error to report
		return provider.Response{}, p.fault(ctx, head, errNoAnswer)
	}
	if page(head) {
		defer func() { _ = head.Body.Close() }()
		return (&answer{}).partial(req), p.fault(ctx, head, errPage)
	}
	// Without the request, because the decoder would put it into its errors, with the key.
	stream := ssestream.NewDecoder(&http.Response{Header: http.Header{}, Body: head.Body})
	defer func() { _ = stream.Close() }() // the stream's own error is the one to report

	got, fault := p.read(ctx, stream, onDelta)
	switch {
	case fault != nil:
		cancel() // stop receiving the rest of the answer
		return got.partial(req), fault
	case got.stop == "":
		return got.partial(req), p.fault(ctx, head, stream.Err())
	}
	return got.response(req), nil
}

// read adds the events of a stream to an answer, until the stream ends or the answer is
// complete.
func (p *Provider) read(ctx context.Context, stream ssestream.Decoder, onDelta func(string) error) (*answer, *provider.Error) {
	got := &answer{}
	for !got.done && stream.Next() {
		provider.TokenReceived(ctx)
		e := stream.Event()
		if e.Type == "error" {
			kind, message := streamFault(e.Data)
			return got, &provider.Error{Kind: kind, Provider: p.name, Message: provider.Clean(message, p.key)}
		}
		text, err := got.add(e.Data)
		if err != nil {
			return got, &provider.Error{Kind: provider.Failover, Provider: p.name, Message: err.Error()}
		}
		if text == "" || onDelta == nil {
			continue
		}
		if err := onDelta(text); err != nil {
			return got, provider.CanceledError(p.name, err)
		}
	}
	return got, nil
}

// page reports whether a server answered with a web page. Anthropic's streams and errors
// are never of this type.
func page(res *http.Response) bool {
	return strings.HasPrefix(res.Header.Get("Content-Type"), "text/html")
}

// maxRefusal is the most bytes that are read of the body of an error.
const maxRefusal = 64 << 10

// boundRefusals bounds the body of an error answer, which the client reads to its end.
func boundRefusals(req *http.Request, next option.MiddlewareNext) (*http.Response, error) {
	res, err := next(req)
	if err == nil && res.StatusCode != http.StatusOK {
		res.Body = struct {
			io.Reader
			io.Closer
		}{io.LimitReader(res.Body, maxRefusal), res.Body}
	}
	return res, err
}

// Models reads GET /v1/models, all pages of it. The list has no prices.
func (p *Provider) Models(ctx context.Context) ([]provider.Listed, error) {
	const perPage, maxPages = 1000, 10
	var models []provider.Listed
	for after, n := "", 0; n < maxPages; n++ {
		params := sdk.ModelListParams{Limit: sdk.Int(perPage)}
		if after != "" {
			params.AfterID = sdk.String(after)
		}
		var head *http.Response
		list, err := p.models.List(ctx, params, option.WithResponseInto(&head), option.WithMiddleware(boundRefusals))
		if err != nil {
			return nil, p.fault(ctx, head, err)
		}
		for _, m := range list.Data {
			models = append(models, provider.Listed{ID: m.ID, ContextWindow: m.MaxInputTokens, MaxOutput: m.MaxTokens})
		}
		if !list.HasMore || list.LastID == "" || list.LastID == after {
			break
		}
		after = list.LastID
	}
	return models, nil
}

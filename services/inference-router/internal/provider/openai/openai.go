// Package openai calls models through an endpoint with OpenAI's protocol of chat
// completions or of responses: OpenAI itself, Ollama, gateways. It uses OpenAI's official
// client and streams where the server supports it. It never repeats a failed call: the router does, because
// each attempt is paid. The exception is a server that refuses a part of the protocol; its
// request is repeated without that part, see [dialect].
//
// It must not read the environment: URL and key are in [Config].
package openai

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"net/url"
	"strings"
	"time"

	sdk "github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	sdkresponses "github.com/openai/openai-go/v3/responses"

	"github.com/anima-run/anima/services/inference-router/internal/provider"
)

// Config holds the settings of one endpoint.
type Config struct {
	Name    string // name of the provider in the registry; required
	BaseURL string // with the version, like https://api.openai.com/v1; required
	Key     string // empty sends no Authorization
	RawKey  bool   // send the key without the word Bearer (Conway's dialect)
	// Responses selects the protocol of responses instead of that of chat completions.
	Responses bool
	// HTTP is the client for all requests, with its tracing transport and connection
	// limits. It must not have a Timeout, because the context bounds each call. Required.
	HTTP *http.Client
	Now  func() time.Time // clock for a Retry-After that is a date; required
}

// Provider is a [provider.Provider] for one endpoint.
type Provider struct {
	name     string
	key      string
	rawKey   bool
	now      func() time.Time
	protocol protocol
	models   sdk.ModelService
	root     string // of the server, without the version
	web      *http.Client
	dialects dialects
}

// protocol is one of the two protocols for model calls.
type protocol interface {
	// body encodes a request.
	body(req provider.Request, d dialect) ([]byte, error)
	// post sends a body as the options say.
	post(ctx context.Context, opts ...option.RequestOption) error
	// chunks reads the chunks of an answer. An error is the last value.
	chunks(body io.Reader) iter.Seq2[chunk, error]
}

// completions is the protocol of chat completions.
type completions struct{ sdk.ChatCompletionService }

func (completions) body(req provider.Request, d dialect) ([]byte, error) { return body(req, d) }

func (c completions) post(ctx context.Context, opts ...option.RequestOption) error {
	_, err := c.New(ctx, sdk.ChatCompletionNewParams{}, opts...)
	return err
}

func (completions) chunks(body io.Reader) iter.Seq2[chunk, error] {
	return events(body, document, func(data []byte) (chunk, bool, error) {
		c, err := chunkOf(data)
		return c, false, err
	})
}

// New returns a provider, or an error if the configuration is invalid. It makes no
// request.
func New(c Config) (*Provider, error) {
	if c.Name == "" || c.HTTP == nil || c.Now == nil {
		return nil, errors.New("an openai provider needs a name, an HTTP client and a clock")
	}
	base, err := url.Parse(c.BaseURL)
	if err != nil || (base.Scheme != "http" && base.Scheme != "https") || base.Host == "" {
		return nil, fmt.Errorf("provider %s: the base URL must look like https://host/v1", c.Name)
	}
	web := *c.HTTP
	web.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	opts := []option.RequestOption{
		option.WithBaseURL(c.BaseURL),
		option.WithHTTPClient(&web),
		option.WithMaxRetries(0),
	}
	switch {
	case c.Key != "" && c.RawKey:
		opts = append(opts, option.WithHeader("Authorization", c.Key))
	case c.Key != "":
		opts = append(opts, option.WithAPIKey(c.Key))
	}
	// The services, unlike the client around them, read nothing from the environment and
	// link a fifth of the library.
	p := &Provider{
		name: c.Name, key: c.Key, now: c.Now, web: &web, root: rootOf(base), rawKey: c.RawKey,
		protocol: completions{sdk.NewChatCompletionService(opts...)}, models: sdk.NewModelService(opts...),
	}
	if c.Responses {
		p.protocol = responses{sdkresponses.NewResponseService(opts...)}
	}
	return p, nil
}

// rootOf returns a base URL without its version.
func rootOf(base *url.URL) string {
	root := url.URL{Scheme: base.Scheme, Host: base.Host, Path: strings.TrimSuffix(strings.TrimSuffix(base.Path, "/"), "/v1")}
	return root.String()
}

// Name returns the name of the provider.
func (p *Provider) Name() string { return p.name }

// Complete makes one call; see [provider.Provider]. An answer that broke off after its
// finish reason is complete, with estimated usage: a repeated call would be paid twice
// for the same text.
//
// If the server refuses a part of the protocol, the request is repeated without that
// part. A refusal costs nothing. After a success, later calls leave that part out from
// the start. See [dialect].
func (p *Provider) Complete(ctx context.Context, req provider.Request, onDelta func(string) error) (provider.Response, error) {
	known := p.dialects.of(req)
	for d := known; ; {
		res, fault := p.once(ctx, req, d, onDelta)
		if fault == nil {
			if d != known {
				p.dialects.keep(req, d)
			}
			return res, nil
		}
		next, ok := d.reduced(req, fault)
		if !ok {
			return res, fault
		}
		d = next
	}
}

func (p *Provider) once(ctx context.Context, req provider.Request, d dialect, onDelta func(string) error) (provider.Response, *provider.Error) {
	if d.noEffort {
		req.Effort = ""
	}
	sent, err := p.protocol.body(req, d)
	if err != nil {
		return provider.Response{}, &provider.Error{Kind: provider.Fatal, Provider: p.name, Message: provider.Clean(err.Error(), p.key)}
	}
	callCtx, cancel := context.WithCancel(ctx)
	defer cancel()

	var head *http.Response
	if d.noStream {
		provider.NotStreamed(ctx)
	}
	err = p.protocol.post(callCtx, option.WithRequestBody("application/json", sent), option.WithResponseBodyInto(&head), inMemory(sent))
	if err != nil {
		return provider.Response{}, p.fault(ctx, head, err)
	}
	if head.StatusCode != http.StatusOK {
		defer func() { _ = head.Body.Close() }() // the status is the error to report
		return provider.Response{}, p.fault(ctx, head, errNoAnswer)
	}
	defer drain(head.Body, cancel)

	var got answer
	pass := func(text string) *provider.Error {
		if text == "" || onDelta == nil {
			return nil
		}
		if err := onDelta(text); err != nil {
			cancel() // stop receiving the rest of the answer
			return provider.CanceledError(p.name, err)
		}
		return nil
	}
	var broken error
	begun := false // content was received
	for c, err := range p.protocol.chunks(head.Body) {
		if broken = err; err != nil {
			break
		}
		provider.EventReceived(ctx)
		delta, err := got.add(c)
		if err != nil {
			cancel()
			return got.partial(req), &provider.Error{Kind: provider.Failover, Provider: p.name, Message: err.Error()}
		}
		if !begun && got.size > 0 {
			begun = true
			provider.ContentReceived(ctx)
		}
		if stopped := pass(delta); stopped != nil {
			return got.partial(req), stopped
		}
	}
	if stopped := pass(got.rest()); stopped != nil {
		return got.partial(req), stopped
	}
	if got.finished() {
		return got.response(req), nil
	}
	return got.partial(req), p.fault(ctx, head, broken)
}

// Package openai calls models through any endpoint that speaks OpenAI's
// chat-completions protocol: OpenAI itself, Ollama, gateways, the simulated
// provider. It uses OpenAI's official client, streams where the server does, and
// never retries: retries are the router's, which pays for each. A server that
// refuses a part of the protocol is asked without it.
//
// It reads no environment; URL and key come from the one who builds it.
package openai

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	sdk "github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/packages/ssestream"

	"github.com/anima-run/anima/services/inference-router/internal/provider"
)

// Config of one endpoint.
type Config struct {
	Name    string // as the registry knows the provider; needed
	BaseURL string // with the version, like https://api.openai.com/v1; needed
	Key     string // empty sends no Authorization
	RawKey  bool   // send the key without the word Bearer (Conway's dialect)
	// HTTP is the client to call with, for a tracing transport and connection
	// limits; it must not have a Timeout, the context bounds each call. Needed.
	HTTP *http.Client
	Now  func() time.Time // to read a Retry-After that is a date; needed
}

// Provider is a [provider.Provider] for one endpoint.
type Provider struct {
	name   string
	key    string
	now    func() time.Time
	chat   sdk.ChatCompletionService
	models sdk.ModelService
	root   string // of the server, without the version
	web    *http.Client
	spoken dialects
}

// New checks the configuration; it calls nobody.
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
	return &Provider{
		name: c.Name, key: c.Key, now: c.Now, web: &web, root: rootOf(base),
		// The services, unlike the client around them, take nothing from the environment,
		// and link a fifth of the library.
		chat: sdk.NewChatCompletionService(opts...), models: sdk.NewModelService(opts...),
	}, nil
}

// rootOf is a base URL without its version.
func rootOf(base *url.URL) string {
	root := url.URL{Scheme: base.Scheme, Host: base.Host, Path: strings.TrimSuffix(strings.TrimSuffix(base.Path, "/"), "/v1")}
	return root.String()
}

// Name of the provider.
func (p *Provider) Name() string { return p.name }

// Complete makes one call; see [provider.Provider]. An answer that broke after its
// finish reason is whole and only its usage is estimated: asking again would pay
// twice for the same words.
//
// A server that refuses a part of the protocol is asked again without that part, and
// from then on if it answers: a refusal costs nothing. See [dialect].
func (p *Provider) Complete(ctx context.Context, req provider.Request, onDelta func(string) error) (provider.Response, error) {
	known := p.spoken.of(req.Model)
	for d := known; ; {
		res, fault := p.once(ctx, req, d, onDelta)
		if fault == nil {
			if d != known {
				p.spoken.keep(req.Model, d)
			}
			return res, nil
		}
		next, ok := d.reduced(req, fault.Status, fault.Message)
		if !ok {
			return res, fault
		}
		d = next
	}
}

func (p *Provider) once(ctx context.Context, req provider.Request, d dialect, onDelta func(string) error) (provider.Response, *provider.Error) {
	sent, err := body(req, d)
	if err != nil {
		return provider.Response{}, &provider.Error{Kind: provider.Fatal, Provider: p.name, Message: provider.Clean(err.Error(), p.key)}
	}
	callCtx, cancel := context.WithCancel(ctx)
	defer cancel()

	var head *http.Response
	opts := []option.RequestOption{option.WithRequestBody("application/json", sent), option.WithResponseBodyInto(&head), fromMemory(sent), drainOnClose(cancel)}
	if d.noStream {
		provider.Whole(ctx)
	}
	if _, err := p.chat.New(callCtx, sdk.ChatCompletionNewParams{}, opts...); err != nil {
		return provider.Response{}, p.fault(ctx, head, err)
	}
	if head.StatusCode != http.StatusOK {
		defer func() { _ = head.Body.Close() }() // its status is the error to report
		return provider.Response{}, p.fault(ctx, head, errNoAnswer)
	}
	stream := ssestream.NewStream[chunk](events(head), nil)
	defer func() { _ = stream.Close() }() // the stream's own error is the one to report

	var got answer
	pass := func(text string) *provider.Error {
		if text == "" || onDelta == nil {
			return nil
		}
		if err := onDelta(text); err != nil {
			cancel() // the rest is not wanted
			return provider.Stopped(p.name, err)
		}
		return nil
	}
	for stream.Next() {
		provider.Alive(ctx)
		delta, err := got.add(stream.Current())
		if err != nil {
			cancel()
			return got.partial(req), &provider.Error{Kind: provider.Failover, Provider: p.name, Message: err.Error()}
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
	return got.partial(req), p.fault(ctx, head, stream.Err())
}

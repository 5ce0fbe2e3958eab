// Package openai calls models through any endpoint that speaks OpenAI's
// chat-completions protocol: OpenAI itself, Ollama, gateways, the simulated
// provider. It uses OpenAI's official client, always streams, and never retries:
// retries are the router's, which pays for each.
//
// It reads no environment; URL and key come from the one who builds it.
package openai

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"time"

	sdk "github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"

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
	opts := []option.RequestOption{
		option.WithBaseURL(c.BaseURL),
		option.WithHTTPClient(c.HTTP),
		option.WithMaxRetries(0),
	}
	switch {
	case c.Key != "" && c.RawKey:
		opts = append(opts, option.WithHeader("Authorization", c.Key))
	case c.Key != "":
		opts = append(opts, option.WithAPIKey(c.Key))
	}
	// The services, unlike the client around them, take nothing from the
	// environment.
	return &Provider{
		name: c.Name, key: c.Key, now: c.Now,
		chat:   sdk.NewChatCompletionService(opts...),
		models: sdk.NewModelService(opts...),
	}, nil
}

// Name of the provider.
func (p *Provider) Name() string { return p.name }

// Complete makes one streaming call; see [provider.Provider]. An answer that
// broke after its finish reason is whole and only its usage is estimated:
// asking again would pay twice for the same words.
func (p *Provider) Complete(ctx context.Context, req provider.Request, onDelta func(string) error) (provider.Response, error) {
	params, err := params(req)
	if err != nil {
		return provider.Response{}, &provider.Error{Kind: provider.Fatal, Provider: p.name, Message: provider.Clean(err.Error(), p.key)}
	}
	callCtx, cancel := context.WithCancel(ctx)
	defer cancel()

	var head *http.Response
	stream := p.chat.NewStreaming(callCtx, params, option.WithResponseInto(&head), drainOnClose(cancel))
	defer func() { _ = stream.Close() }() // the stream's own error is the one to report

	var got answer
	for stream.Next() {
		delta, err := got.add(stream.Current())
		if err != nil {
			cancel() // the rest is not wanted
			return got.partial(req), &provider.Error{Kind: provider.Failover, Provider: p.name, Message: err.Error()}
		}
		if delta == "" || onDelta == nil {
			continue
		}
		if err := onDelta(delta); err != nil {
			cancel()
			return got.partial(req), provider.Stopped(p.name, err)
		}
	}
	if got.finished() {
		return got.response(req), nil
	}
	fault := p.fault(ctx, head, stream.Err())
	if head == nil || head.StatusCode != http.StatusOK {
		return provider.Response{}, fault
	}
	return got.partial(req), fault
}

// Models lists the ids that the endpoint serves, sorted.
func (p *Provider) Models(ctx context.Context) ([]string, error) {
	var head *http.Response
	page, err := p.models.List(ctx, option.WithResponseInto(&head))
	if err != nil {
		return nil, p.fault(ctx, head, err)
	}
	ids := make([]string, 0, len(page.Data))
	for _, m := range page.Data {
		ids = append(ids, m.ID)
	}
	slices.Sort(ids)
	return slices.Compact(ids), nil
}

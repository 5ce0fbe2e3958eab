// Package anthropic calls models through Anthropic's Messages API. It always streams. It
// converts the neutral prompt to content blocks: calls are tool_use blocks, results are
// tool_result blocks, and the stable beginning of the prompt is marked for the provider's
// cache.
//
// The package makes its two requests with net/http: Anthropic's client would add more than
// a megabyte to the images (1.8 MiB compressed to that of anima). The tests of the
// surfaces use it.
//
// It never repeats a failed call: the router does, because each attempt is paid. It must
// not read the environment: URL and key are in [Config].
package anthropic

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/openai/openai-go/v3/packages/ssestream"

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
	name string
	key  string
	now  func() time.Time
	root string // of the server, without the version
	web  *http.Client

	refused provider.RefusedEfforts
}

// version is the version of the API.
const version = "2023-06-01"

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
	base.Path = strings.TrimSuffix(strings.TrimSuffix(base.Path, "/"), "/v1")
	web := *c.HTTP
	web.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &Provider{name: c.Name, key: c.Key, now: c.Now, root: base.String(), web: &web}, nil
}

// send makes one request. It returns the answer, whose body the caller closes, or an error
// without one.
func (p *Provider) send(ctx context.Context, method, path string, body []byte) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, p.root+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Anthropic-Version", version)
	req.Header.Set("Content-Type", "application/json")
	if p.key != "" {
		req.Header.Set("X-Api-Key", p.key)
	}
	return p.web.Do(req)
}

// Name returns the name of the provider.
func (p *Provider) Name() string { return p.name }

// Complete makes one call; see [provider.Provider]. An answer that broke off after its
// stop reason is complete, with estimated usage: a repeated call would be paid twice for
// the same text. A model that refuses the effort of reasoning is called without it: a
// refused request is not billed.
func (p *Provider) Complete(ctx context.Context, req provider.Request, onDelta func(string) error) (provider.Response, error) {
	effort := req.Effort
	if p.refused.Has(req.Model, effort) {
		req.Effort = ""
	}
	res, err := p.once(ctx, req, onDelta)
	if fault, ok := errors.AsType[*provider.Error](err); ok && req.Effort != "" && refusesEffort(fault) {
		req.Effort = ""
		if res, err = p.once(ctx, req, onDelta); err == nil {
			p.refused.Add(req.Model, effort)
		}
	}
	return res, err
}

// refusesEffort reports whether a server refused a request for its effort of reasoning, or
// for the field that has it.
func refusesEffort(fault *provider.Error) bool {
	refused := fault.Status == http.StatusBadRequest || fault.Status == http.StatusUnprocessableEntity
	return refused && (strings.Contains(fault.Message, "effort") || strings.Contains(fault.Message, "output_config"))
}

// once sends a request once.
func (p *Provider) once(ctx context.Context, req provider.Request, onDelta func(string) error) (provider.Response, error) {
	sent, err := body(req)
	if err != nil {
		return provider.Response{}, &provider.Error{Kind: provider.Fatal, Provider: p.name, Message: provider.Clean(err.Error(), p.key)}
	}
	callCtx, cancel := context.WithCancel(ctx)
	defer cancel()

	head, err := p.send(callCtx, http.MethodPost, "/v1/messages", sent)
	if err != nil {
		return provider.Response{}, p.fault(ctx, nil, nil, err)
	}
	if head.StatusCode != http.StatusOK {
		return provider.Response{}, p.fault(ctx, head, refusal(head), errNoAnswer)
	}
	if isPage(head) {
		defer func() { _ = head.Body.Close() }()
		return (&answer{}).partial(req), p.fault(ctx, head, nil, errPage)
	}
	// Without the content type, because the decoder would be selected by it.
	stream := ssestream.NewDecoder(&http.Response{Header: http.Header{}, Body: head.Body})
	defer func() { _ = stream.Close() }() // the stream's own error is the one to report

	got, fault := p.read(ctx, stream, onDelta)
	switch {
	case fault != nil:
		cancel() // stop receiving the rest of the answer
		return got.partial(req), fault
	case got.stop == "":
		return got.partial(req), p.fault(ctx, head, nil, stream.Err())
	}
	drain(stream, cancel)
	return got.response(req), nil
}

// drainWait is how long the end of a body may take after the last event of its stream.
const drainWait = 50 * time.Millisecond

// drain reads the end of a body, because its connection can be used again only then. After
// drainWait it calls cancel, which aborts the read.
func drain(stream ssestream.Decoder, cancel context.CancelFunc) {
	late := time.AfterFunc(drainWait, cancel)
	defer late.Stop()
	stream.Next()
}

// read adds the events of a stream to an answer, until the stream ends or the answer is
// complete.
func (p *Provider) read(ctx context.Context, stream ssestream.Decoder, onDelta func(string) error) (*answer, *provider.Error) {
	got := &answer{}
	begun := false // content was received
	for !got.done && stream.Next() {
		provider.EventReceived(ctx)
		e := stream.Event()
		if e.Type == "error" {
			kind, message := streamFault(e.Data)
			return got, &provider.Error{Kind: kind, Provider: p.name, Message: provider.Clean(message, p.key)}
		}
		text, err := got.add(e.Data)
		if err != nil {
			return got, &provider.Error{Kind: provider.Failover, Provider: p.name, Message: err.Error()}
		}
		if !begun && got.size > 0 {
			begun = true
			provider.ContentReceived(ctx)
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

// isPage reports whether a server answered with a web page. Anthropic's streams and errors
// are never of this type.
func isPage(res *http.Response) bool {
	return strings.HasPrefix(res.Header.Get("Content-Type"), "text/html")
}

// maxRefusal is the most bytes that are read of the body of an error, and maxList of a
// page of models.
const (
	maxRefusal = 64 << 10
	maxList    = 4 << 20
)

// refusal reads and closes the body of an error.
func refusal(res *http.Response) []byte {
	defer func() { _ = res.Body.Close() }() // it was only read
	data, err := io.ReadAll(io.LimitReader(res.Body, maxRefusal))
	if err != nil {
		return nil // the status is the error
	}
	return data
}

// Models reads GET /v1/models, all pages of it. The list has no prices.
func (p *Provider) Models(ctx context.Context) ([]provider.Listed, error) {
	const perPage, maxPages = 1000, 10
	var models []provider.Listed
	for after, n := "", 0; n < maxPages; n++ {
		query := url.Values{"limit": {strconv.Itoa(perPage)}}
		if after != "" {
			query.Set("after_id", after)
		}
		list, fault := p.page(ctx, "/v1/models?"+query.Encode())
		if fault != nil {
			return nil, fault
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

// list is a page of the list of models.
type list struct {
	Data []struct {
		ID             string `json:"id"`
		MaxInputTokens int64  `json:"max_input_tokens"`
		MaxTokens      int64  `json:"max_tokens"`
	} `json:"data"`
	HasMore bool   `json:"has_more"`
	LastID  string `json:"last_id"`
}

func (p *Provider) page(ctx context.Context, path string) (l list, _ error) {
	head, err := p.send(ctx, http.MethodGet, path, nil)
	if err != nil {
		return l, p.fault(ctx, nil, nil, err)
	}
	if head.StatusCode != http.StatusOK {
		return l, p.fault(ctx, head, refusal(head), errNoAnswer)
	}
	defer func() { _ = head.Body.Close() }() // it was only read
	if err := json.NewDecoder(io.LimitReader(head.Body, maxList)).Decode(&l); err != nil {
		return l, p.fault(ctx, head, nil, errNoList)
	}
	return l, nil
}

package openai

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"math/big"
	"net/http"
	"slices"
	"strings"

	"github.com/openai/openai-go/v3/option"

	"github.com/anima-run/anima/services/inference-router/internal/provider"
)

// maxList is the largest list of models that is read, in bytes. OpenRouter's has about
// 0.5 MB.
const maxList = 16 << 20

// entry is a model in GET /v1/models, with the fields that servers add to OpenAI's.
type entry struct {
	ID      string `json:"id"`
	OwnedBy string `json:"owned_by"`
	Type    string `json:"type"` // LM Studio, Together: llm, vlm, chat, embeddings, …

	Available *bool `json:"available"` // Conway: false if it cannot be called

	MaxModelLen   int64 `json:"max_model_len"`  // vLLM, SGLang
	ContextLength int64 `json:"context_length"` // OpenRouter, Together
	ContextWindow int64 `json:"context_window"` // Groq
	MaxOutput     int64 `json:"max_completion_tokens"`
	Meta          struct {
		Train int64 `json:"n_ctx_train"`
		Now   int64 `json:"n_ctx"`
	} `json:"meta"` // llama.cpp
	TopProvider struct {
		ContextLength int64 `json:"context_length"`
		MaxOutput     int64 `json:"max_completion_tokens"`
	} `json:"top_provider"` // OpenRouter
	Architecture struct {
		Input  []string `json:"input_modalities"`
		Output []string `json:"output_modalities"`
	} `json:"architecture"` // OpenRouter
	Parameters []string                   `json:"supported_parameters"` // OpenRouter
	Pricing    map[string]json.RawMessage `json:"pricing"`              // OpenRouter: USD per token, as text; Conway: USD per million tokens
}

// visionModel is the type of a model that sees images, in the lists of LM Studio.
const visionModel = "vlm"

// Models reads GET /v1/models and adds what the server reports elsewhere: Ollama, LM
// Studio and llama.cpp report the context length at other addresses.
func (p *Provider) Models(ctx context.Context) ([]provider.Listed, error) {
	data, err := p.readList(ctx)
	if err != nil {
		return nil, err
	}
	var list struct {
		Data   []json.RawMessage `json:"data"`
		Models []json.RawMessage `json:"models"` // Conway, instead of data
	}
	// Together sends the array without an object around it.
	if err := json.Unmarshal(data, &list.Data); err != nil || list.Data == nil {
		// Ollama without models sends null.
		if err := json.Unmarshal(data, &list); err != nil || list.Data == nil && list.Models == nil && !nullData(data) {
			return nil, &provider.Error{Kind: provider.Failover, Provider: p.name, Message: notAList(data)}
		}
	}
	var entries []entry
	seen := map[string]bool{}
	if list.Data == nil {
		list.Data = list.Models
	}
	for _, raw := range list.Data {
		var e entry
		// A field of an unexpected type must not hide the model.
		if json.Unmarshal(raw, &e) != nil {
			var id struct {
				ID string `json:"id"`
			}
			if json.Unmarshal(raw, &id) != nil {
				continue
			}
			e = entry{ID: id.ID}
		}
		if e.ID == "" || seen[e.ID] || e.Available != nil && !*e.Available {
			continue
		}
		seen[e.ID] = true
		entries = append(entries, e)
	}
	models := make([]provider.Listed, 0, len(entries))
	for _, e := range entries {
		models = append(models, e.listed())
	}
	p.probe(ctx, entries, models)
	return models, nil
}

// nullData reports whether a list has the field data with the value null.
func nullData(data []byte) bool {
	var fields map[string]json.RawMessage
	return json.Unmarshal(data, &fields) == nil && string(fields["data"]) == "null"
}

func notAList(data []byte) string {
	if strings.HasPrefix(strings.TrimSpace(string(data)), "<") {
		return errPage.Error()
	}
	return "the answer to GET /models is not a list of models: check the base URL, which ends with the version (…/v1)"
}

func (p *Provider) readList(ctx context.Context) ([]byte, error) {
	var head *http.Response
	_, err := p.models.List(ctx, option.WithResponseBodyInto(&head))
	if err != nil {
		return nil, p.fault(ctx, head, err)
	}
	defer func() { _ = head.Body.Close() }() // the body was only read
	if head.StatusCode != http.StatusOK {
		return nil, p.fault(ctx, head, errNoAnswer)
	}
	data, err := io.ReadAll(io.LimitReader(head.Body, maxList+1))
	if err == nil && len(data) > maxList {
		err = errors.New("the list of models is too large")
	}
	if err != nil {
		return nil, p.fault(ctx, head, err)
	}
	return data, nil
}

func (e entry) listed() provider.Listed {
	m := provider.Listed{
		ID:            e.ID,
		ContextWindow: first(e.Meta.Now, e.MaxModelLen, e.TopProvider.ContextLength, e.ContextLength, e.ContextWindow, e.Meta.Train),
		MaxOutput:     first(e.TopProvider.MaxOutput, e.MaxOutput),
		NoTools:       len(e.Parameters) > 0 && !slices.Contains(e.Parameters, "tools"),
		Vision:        slices.Contains(e.Architecture.Input, "image") || e.Type == visionModel,
		NotChat:       len(e.Architecture.Output) > 0 && !slices.Contains(e.Architecture.Output, "text") || notChat(e.Type, e.ID),
	}
	in, inOK := e.price("prompt", "input_per_million", "input_per_1m_tokens_usd")
	out, outOK := e.price("completion", "output_per_million", "output_per_1m_tokens_usd")
	if inOK && outOK && nothing(e.Pricing["request"]) {
		m.Priced, m.InputPrice, m.OutputPrice = true, in, out
		m.CachedPrice, _ = e.price("input_cache_read")
		m.WritePrice, _ = e.price("input_cache_write")
		m.ReasonPrice, _ = e.price("internal_reasoning")
	}
	return m
}

// price returns a price in micro-USD per million tokens: from the field with the price of a
// token, or else from the first present one of the fields with the price of a million.
func (e entry) price(each string, million ...string) (int64, bool) {
	if raw, ok := e.Pricing[each]; ok {
		return perMillion(raw)
	}
	for _, name := range million {
		if raw, ok := e.Pricing[name]; ok {
			return scaled(raw, 1_000_000)
		}
	}
	return 0, false
}

// nothing reports whether there is no charge: the price is absent, null or zero. A price
// that cannot be parsed may be a charge.
func nothing(raw json.RawMessage) bool {
	price, ok := perMillion(raw)
	return len(raw) == 0 || string(raw) == "null" || ok && price == 0
}

// first returns the first positive number, 0 if there is none.
func first(all ...int64) int64 {
	for _, n := range all {
		if n > 0 {
			return n
		}
	}
	return 0
}

func notChat(kind, id string) bool {
	switch kind {
	case "embedding", "embeddings", "image", "audio", "rerank", "moderation", "transcribe":
		return true
	case "":
		return strings.Contains(strings.ToLower(id), "embed")
	}
	return false
}

// perMillion converts a price in USD per token, written as text, to micro-USD per million
// tokens: exact to the twelfth decimal, and rounded up beyond. It returns false for a
// price that is missing, or negative, which OpenRouter uses for variable prices.
func perMillion(raw json.RawMessage) (int64, bool) { return scaled(raw, 1_000_000_000_000) }

// scaled converts a price, written as text or as a number, to the given number of its
// units, rounded up.
func scaled(raw json.RawMessage, units int64) (int64, bool) {
	var text string
	if json.Unmarshal(raw, &text) != nil {
		text = string(raw) // a number, or absent
	}
	// Long texts and exponents are refused before they are computed: a price is between 0 and
	// 10⁶ USD a token, and an exponent of a few bytes makes a number of a megabyte.
	if len(text) > 40 || strings.ContainsAny(text, "eEpP/xX_") {
		return 0, false
	}
	price, ok := new(big.Rat).SetString(text)
	if !ok || price.Sign() < 0 {
		return 0, false
	}
	price.Mul(price, big.NewRat(units, 1))
	up := new(big.Int).Add(price.Num(), new(big.Int).Sub(price.Denom(), big.NewInt(1)))
	up.Quo(up, price.Denom())
	if !up.IsInt64() {
		return 0, false
	}
	return up.Int64(), true
}

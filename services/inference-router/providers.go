package router

import (
	"cmp"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/anima-run/anima/pkg/config"

	"github.com/anima-run/anima/services/inference-router/internal/provider"
	"github.com/anima-run/anima/services/inference-router/internal/provider/anthropic"
	"github.com/anima-run/anima/services/inference-router/internal/provider/openai"
	"github.com/anima-run/anima/services/inference-router/internal/provider/simulated"
)

// The protocols of providers. One of OpenAI's with the prefix rawKey is for a server that
// takes the key without the word Bearer.
const (
	apiChat      = "chat"
	apiResponses = "responses"
	apiAnthropic = "anthropic"
	rawKey       = "raw-"
)

// conway is the name of Conway's API, and conwayURL its address.
const (
	conway    = "conway"
	conwayURL = "https://api.conway.tech"
)

// settingProviders is the setting of the further providers.
const settingProviders = "ANIMA_INFERENCE_ROUTER_PROVIDERS"

// conwayBase returns the base URL of OpenAI's protocol at Conway's API, whose own address
// has no version.
func conwayBase(url string) string {
	if url == "" {
		url = conwayURL
	}
	return strings.TrimSuffix(strings.TrimSuffix(url, "/"), "/v1") + "/v1"
}

// endpoint is a provider of the settings.
type endpoint struct {
	name, url, key string
	kind           string // one of the protocols
	raw            bool   // the key is sent without the word Bearer
}

// source returns the source of the endpoint's models.
func (e endpoint) source(cfg Config, client *http.Client, now func() time.Time) (*source, error) {
	var p provider.Provider
	var err error
	if e.kind == apiAnthropic {
		p, err = anthropic.New(anthropic.Config{Name: e.name, BaseURL: e.url, Key: e.key, HTTP: client, Now: now})
	} else {
		p, err = openai.New(openai.Config{
			Name: e.name, BaseURL: e.url, Key: e.key, RawKey: e.raw, Responses: e.kind == apiResponses, HTTP: client, Now: now,
		})
	}
	if err != nil {
		return nil, err
	}
	another := func(url, key string) (provider.Provider, error) {
		other := e
		other.url, other.key = cmp.Or(url, e.url), cmp.Or(key, e.key)
		s, err := other.source(cfg, client, now)
		if err != nil {
			return nil, err
		}
		return s.provider, nil
	}
	s := &source{provider: p, url: redactURL(e.url), local: isLocal(e.url), another: another}
	if cfg.Local != "auto" {
		s.local = cfg.Local == "yes"
	}
	return s, nil
}

// parseOthers parses the further providers, in the form name=kind:url, and their keys.
// Errors contain neither keys nor URLs, which may have a password.
func parseOthers(list []string, keys config.Secret) ([]endpoint, error) {
	var out []endpoint
	used := map[string]bool{"openai": true, "anthropic": true, conway: true, ollama: true, simulated.Name: true}
	for i, item := range list {
		name, rest, _ := strings.Cut(strings.TrimSpace(item), "=")
		kind, url, ok := strings.Cut(rest, ":")
		e := endpoint{name: name, url: url}
		e.kind, e.raw = strings.CutPrefix(kind, rawKey)
		switch {
		case !ok || url == "":
			return nil, fmt.Errorf("%s: item %d is not name=kind:url, like groq=chat:https://api.groq.com/openai/v1", settingProviders, i+1)
		case strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789-_") != "" || name == "" || used[name]:
			return nil, fmt.Errorf("%s: the name %.40q of item %d is used already, or has other characters than a-z, 0-9, - and _", settingProviders, name, i+1)
		case e.kind != apiChat && e.kind != apiResponses && (e.kind != apiAnthropic || e.raw):
			return nil, fmt.Errorf("%s: the kind %.40q of %s is none of chat, responses, raw-chat, raw-responses, anthropic", settingProviders, kind, name)
		}
		used[name] = true
		out = append(out, e)
	}
	for item := range strings.SplitSeq(keys.Reveal(), ",") {
		name, key, ok := strings.Cut(strings.TrimSpace(item), "=")
		if strings.TrimSpace(item) == "" {
			continue
		}
		at := slices.IndexFunc(out, func(e endpoint) bool { return e.name == name })
		if !ok || at < 0 {
			return nil, fmt.Errorf("ANIMA_INFERENCE_ROUTER_PROVIDER_KEYS has a key without the name of one of %s before it, as name=key", settingProviders)
		}
		out[at].key = key
	}
	return out, nil
}

// settingsOf returns the settings of the address and the key of a provider, and what the
// address is of.
func settingsOf(name string) (address, key, form string) {
	const withVersion, without = "API with its version, like http://127.0.0.1:11434/v1", "server, like "
	switch name {
	case "openai":
		return "OPENAI_BASE_URL", "OPENAI_API_KEY", withVersion
	case "anthropic":
		return "ANTHROPIC_BASE_URL", "ANTHROPIC_API_KEY", without + anthropicURL
	case conway:
		return "CONWAY_API_URL", "CONWAY_API_KEY", without + conwayURL
	case ollama:
		return "OLLAMA_HOST", "OLLAMA_HOST", without + "http://127.0.0.1:11434"
	}
	return settingProviders, "ANIMA_INFERENCE_ROUTER_PROVIDER_KEYS", withVersion
}

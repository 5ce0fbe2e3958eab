package openai

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/anima-run/anima/services/inference-router/internal/provider"
)

// probes is the most concurrent requests to a server about its models.
const probes = 4

// probe adds what a server reports about its models outside the protocol. It identifies
// the server by owned_by, and Ollama also by its names, which have a tag: llama3.3:70b.
// If a request fails, the model stays as listed.
func (p *Provider) probe(ctx context.Context, entries []entry, models []provider.Listed) {
	owned := func(by string) bool {
		return slices.ContainsFunc(entries, func(e entry) bool { return e.OwnedBy == by })
	}
	tagged := !slices.ContainsFunc(entries, func(e entry) bool { return !strings.Contains(e.ID, ":") || e.ContextLength > 0 })
	switch {
	case len(entries) == 0:
	case owned("organization_owner"):
		p.probeLMStudio(ctx, models)
	case owned("llamacpp"):
		p.probeLlama(ctx, models)
	case owned("library"), tagged:
		p.probeOllama(ctx, models)
	}
}

// probeOllama reads the context length and capabilities of each model, and the host of a
// cloud model. The window is that of the loaded model, else that of its Modelfile, else
// that of its training.
func (p *Provider) probeOllama(ctx context.Context, models []provider.Listed) {
	var running struct {
		Models []struct {
			Name          string `json:"name"`
			ContextLength int64  `json:"context_length"`
		} `json:"models"`
	}
	if !p.ask(ctx, http.MethodGet, "/api/ps", nil, &running) {
		return
	}
	loaded := map[string]int64{}
	for _, m := range running.Models {
		loaded[m.Name] = m.ContextLength
	}
	var wait sync.WaitGroup
	places := make(chan struct{}, probes)
	for i := range models {
		wait.Go(func() {
			places <- struct{}{}
			defer func() { <-places }()
			p.showOllama(ctx, &models[i], loaded[models[i].ID])
		})
	}
	wait.Wait()
}

func (p *Provider) showOllama(ctx context.Context, m *provider.Listed, loaded int64) {
	var show struct {
		Parameters   string                     `json:"parameters"`
		Info         map[string]json.RawMessage `json:"model_info"`
		Capabilities []string                   `json:"capabilities"`
		RemoteHost   string                     `json:"remote_host"`
	}
	if !p.ask(ctx, http.MethodPost, "/api/show", map[string]string{"model": m.ID}, &show) {
		return
	}
	var trained int64
	for name, raw := range show.Info {
		if strings.HasSuffix(name, ".context_length") {
			_ = json.Unmarshal(raw, &trained) // 0 if it is not a number
		}
	}
	m.ContextWindow = first(loaded, parameter(show.Parameters, "num_ctx"), trained, m.ContextWindow)
	m.Remote = show.RemoteHost
	if len(show.Capabilities) > 0 {
		m.NoTools = !slices.Contains(show.Capabilities, "tools")
		m.Vision = slices.Contains(show.Capabilities, "vision")
		m.NotChat = !slices.Contains(show.Capabilities, "completion")
	}
}

// parameter returns one whole number from the parameters of a Modelfile, 0 if it is
// missing.
func parameter(lines, name string) int64 {
	for line := range strings.Lines(lines) {
		if f := strings.Fields(line); len(f) == 2 && f[0] == name {
			n, err := strconv.ParseInt(f[1], 10, 64)
			if err == nil {
				return n
			}
		}
	}
	return 0
}

// probeLMStudio reads types and context lengths from LM Studio's own list.
func (p *Provider) probeLMStudio(ctx context.Context, models []provider.Listed) {
	var list struct {
		Data []struct {
			ID     string `json:"id"`
			Type   string `json:"type"`
			Max    int64  `json:"max_context_length"`
			Loaded int64  `json:"loaded_context_length"`
		} `json:"data"`
	}
	if !p.ask(ctx, http.MethodGet, "/api/v0/models", nil, &list) {
		return
	}
	for _, e := range list.Data {
		for i := range models {
			if models[i].ID == e.ID {
				models[i].ContextWindow = first(e.Loaded, e.Max, models[i].ContextWindow)
				models[i].Vision = e.Type == visionModel
				models[i].NotChat = notChat(e.Type, e.ID)
			}
		}
	}
}

// probeLlama reads the window with which llama.cpp's server runs its only model.
func (p *Provider) probeLlama(ctx context.Context, models []provider.Listed) {
	var props struct {
		Settings struct {
			Window int64 `json:"n_ctx"`
		} `json:"default_generation_settings"`
		Modalities struct {
			Vision bool `json:"vision"`
		} `json:"modalities"`
	}
	if len(models) == 1 && p.ask(ctx, http.MethodGet, "/props", nil, &props) {
		models[0].ContextWindow = first(props.Settings.Window, models[0].ContextWindow)
		models[0].Vision = props.Modalities.Vision
	}
}

// ask sends a request to the server outside the protocol and decodes the answer. It
// returns false if that fails.
func (p *Provider) ask(ctx context.Context, method, path string, body, into any) bool {
	var in io.Reader
	if body != nil {
		data, err := json.Marshal(body)
		if err != nil {
			return false
		}
		in = bytes.NewReader(data)
	}
	req, err := http.NewRequestWithContext(ctx, method, p.root+path, in)
	if err != nil {
		return false
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	switch {
	case p.key != "" && p.rawKey:
		req.Header.Set("Authorization", p.key)
	case p.key != "":
		req.Header.Set("Authorization", "Bearer "+p.key)
	}
	res, err := p.web.Do(req)
	if err != nil {
		return false
	}
	defer func() { _ = res.Body.Close() }() // the body was only read
	return res.StatusCode == http.StatusOK && json.NewDecoder(io.LimitReader(res.Body, maxList)).Decode(into) == nil
}

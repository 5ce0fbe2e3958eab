package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/anima-run/anima/pkg/api"
)

// modelView is the provider that init tested and stored, without its key.
type modelView struct {
	URL    string `json:"url"`              // "simulated" if no provider is stored
	Key    bool   `json:"key"`              // a key is stored with it
	Models int    `json:"models,omitempty"` // number of its models
	File   string `json:"file,omitempty"`   // path of the file that holds it
}

// flagProvider returns the provider that the flags name, after a test; nil if they name none.
func (c initCmd) flagProvider(ctx context.Context, a *app) (*provider, int, error) {
	if c.ModelURL == nil {
		if c.ModelKeyFile != "" {
			return nil, 0, &api.Error{Code: api.Invalid, Message: "--model-key-file requires --model-url", Next: "add --model-url; openai selects the OpenAI API"}
		}
		return nil, 0, nil
	}
	url, err := providerURL(*c.ModelURL)
	if err != nil {
		return nil, 0, err
	}
	p := &provider{URL: url}
	if c.ModelKeyFile != "" && url != "" {
		data, err := (agentApplyCmd{File: c.ModelKeyFile}).read(a.In)
		if err != nil {
			return nil, 0, &api.Error{Code: api.Invalid, Message: err.Error(), Next: "name a file that holds the key, or - for standard input"}
		}
		p.Key = strings.TrimSpace(string(data))
	}
	if url == "" || !c.ModelCheck {
		return p, 0, nil
	}
	n, err := p.probe(ctx)
	return p, n, err
}

// askModel asks for a provider until one passes the test or the user chooses none.
func (d *dialogue) askModel(ctx context.Context, was provider) (*provider, int, error) {
	fmt.Fprintln(d, "\nWhich model service does the agent use? Give the address of an OpenAI-compatible one, such as http://127.0.0.1:11434/v1 for")
	fmt.Fprintln(d, "Ollama; or openai; or simulated, which is free and calls no real model.")
	kept := simulated
	if was.URL != "" {
		kept = "the stored one, " + was.URL
	}
	fmt.Fprintf(d, "Press enter for %s.\n", kept)
	for {
		text, err := d.line("model: ")
		if err != nil {
			return nil, 0, err
		}
		if strings.TrimSpace(text) == "" && was.URL != "" {
			return &was, 0, nil
		}
		url, err := providerURL(text)
		if err != nil {
			d.fault(err)
			continue
		}
		if url == "" {
			return &provider{}, 0, nil
		}
		key, err := d.ReadPassword("key (not shown; enter for none): ")
		if err != nil {
			return nil, 0, err
		}
		p := &provider{URL: url, Key: strings.TrimSpace(key)}
		fmt.Fprintf(d, "  asking %s/models …\n", plain(url))
		n, err := p.probe(ctx)
		if err == nil {
			fmt.Fprintf(d, "  the service has %d models\n", n)
			return p, n, nil
		}
		if ctx.Err() != nil {
			return nil, 0, ctx.Err()
		}
		d.fault(err)
	}
}

// fault prints an error between two questions.
func (d *dialogue) fault(err error) {
	e, ok := errors.AsType[*api.Error](err)
	if !ok {
		e = &api.Error{Message: err.Error()}
	}
	fmt.Fprintf(d, "  %s\n", plain(e.Message))
	if e.Next != "" {
		fmt.Fprintf(d, "  %s\n", plain(e.Next))
	}
}

// storeModel stores the chosen provider; nil keeps the stored one.
func (c initCmd) storeModel(a *app, v *initView, p *provider, models int) error {
	if p == nil {
		return nil
	}
	dir, err := a.dataDir()
	if err != nil {
		return err
	}
	if err := storeProvider(dir, *p); err != nil {
		return err
	}
	v.Model = &modelView{URL: simulated}
	if p.URL != "" {
		v.Model = &modelView{URL: p.URL, Key: p.Key != "", Models: models, File: dir + string(os.PathSeparator) + providerFile}
	}
	return nil
}

// createAgent creates the agent in the running anima and makes its first deposit. Both
// requests are idempotent.
func (c initCmd) createAgent(ctx context.Context, a *app, v *initView, src []byte) error {
	if c.Fund == "" {
		return nil
	}
	amount, err := deposit(c.Fund)
	if err != nil {
		return err
	}
	if _, err := ask[api.Agent](ctx, a, api.ApplyAgent{Source: string(src)}); err != nil {
		return fmt.Errorf("%s is written, but the agent was not created: %w", c.File, err)
	}
	b, done, err := a.bus()
	if err != nil {
		return err
	}
	defer done()
	money := api.Deposit{ID: "init-money-" + v.Agent + "-" + amount.String(), Agent: v.Agent, Amount: amount, Source: "faucet", Memo: "anima init"}
	if _, err := callFor[api.Posted](ctx, b, money); err != nil {
		return fmt.Errorf("the agent is created, but the deposit failed: %w", err)
	}
	balance, err := callFor[api.Balance](ctx, b, api.GetBalance{Agent: v.Agent})
	if err != nil {
		return fmt.Errorf("the agent is created and funded, but its balance could not be read: %w", err)
	}
	v.Balance = &balance
	v.Next = []string{"anima chat " + v.Agent}
	return nil
}

// running reports whether an anima can be reached.
func (a *app) running() bool {
	_, done, err := a.bus()
	if err != nil {
		return false
	}
	done()
	return true
}

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/services/loop"
)

// ask asks for the values that the flags do not set, and then whether to write the
// resulting file. With --yes it asks only for values without a default.
func (s *setup) ask(ctx context.Context, t *terminal) error {
	autonomy, model := s.Autonomy == nil && !s.Yes, s.model == nil && !s.Yes && len(s.view.Providers) == 0
	type question struct {
		wanted        bool
		about, prompt string // without a prompt, the answer has several lines
		field         func(*loop.AgentFile) *string
	}
	questions := []question{
		{s.Name == nil, "What is the agent's name? Letters, digits and -.", "name: ", func(f *loop.AgentFile) *string { return &f.Name }},
		{
			s.Genesis == nil && s.GenesisFile == "", "What are its identity and its purpose? This is the genesis prompt. A line with only a dot ends it.", "",
			func(f *loop.AgentFile) *string { return &f.Genesis },
		},
		{
			s.Creator == nil && !s.Yes, "What is the address of its creator? Enter omits it.", "creator: ",
			func(f *loop.AgentFile) *string { return &f.Creator },
		},
		{
			s.Message == nil && !s.Yes, "What is the message of its creator for the first turn? Enter omits it.", "message: ",
			func(f *loop.AgentFile) *string { return &f.Message },
		},
	}
	questions = slices.DeleteFunc(questions, func(q question) bool { return !q.wanted })
	if len(questions) == 0 && !autonomy && !model {
		return nil
	}
	stored, err := s.app.storedHere()
	if err != nil {
		return err
	}
	return t.runDialogue(ctx, func(d *dialogue) (err error) {
		fmt.Fprintf(d, "This writes %s, the file that an agent is created from. Ctrl-c exits, and nothing is written.\n\n", s.File)
		s.view.printEnvironment(d)
		for _, q := range questions {
			fmt.Fprintf(d, "\n%s\n", q.about)
			read := d.lines
			if q.prompt != "" {
				read = d.prompt(q.prompt)
			}
			answer, err := d.ask(read, func(answer string) []string {
				whole := loop.AgentFile{Name: "x", Genesis: "x"} // the other values are valid
				*q.field(&whole) = answer
				_, faults := whole.Source()
				return faults
			})
			if err != nil {
				return err
			}
			*q.field(&s.file) = answer
		}
		if autonomy {
			fmt.Fprintln(d, "\nAn autonomous agent is woken a minute after it had no more work, and its runs cost money.")
			if s.file.Autonomy, err = d.askYesNo("Make the agent autonomous?"); err != nil {
				return err
			}
		}
		if model {
			if s.model, err = d.askModel(ctx, stored); err != nil {
				return err
			}
		}
		if s.Yes {
			return nil
		}
		return s.confirm(d)
	})
}

// confirm prints the file, including defaults, and asks whether to write it, and whether
// to create the agent in the anima that is running.
func (s *setup) confirm(d *dialogue) error {
	src, _ := s.file.Source()
	fmt.Fprintf(d, "\n%s, with all defaults:\n\n", s.File)
	for l := range strings.Lines(string(src)) {
		fmt.Fprintf(d, "  %s\n", plain(strings.TrimRight(l, "\n")))
	}
	fmt.Fprintln(d)
	yes, err := d.askYesNo("Write it?")
	if err == nil && !yes {
		return errCancelled
	}
	if err != nil || s.Fund != "" {
		return err
	}
	if _, err := s.app.connect(); err != nil {
		return nil //nolint:nilerr // none is running
	}
	if yes, err = d.askYesNo("An anima is running: create the agent there, with $5 of test credits?"); yes {
		s.Fund = "5"
	}
	return err
}

// modelView is the provider that init tested and stored, without its key.
type modelView struct {
	URL    string `json:"url"`              // "simulated" if no provider is stored
	Key    bool   `json:"key"`              // a key is stored with it
	Models int    `json:"models,omitempty"` // number of its models
	File   string `json:"file,omitempty"`   // path of the file that holds it
}

// flagProvider returns the provider that the flags name, after a test; nil if they name none.
func (c initCmd) flagProvider(ctx context.Context, a *app) (*provider, error) {
	if c.ModelURL == nil {
		if c.ModelKeyFile != "" {
			return nil, failure(api.Invalid, "--model-key-file requires --model-url", "add --model-url; openai selects the OpenAI API")
		}
		return nil, nil
	}
	url, err := providerURL(*c.ModelURL)
	p := &provider{URL: url}
	if err != nil || url == "" {
		return p, err
	}
	if c.ModelKeyFile != "" {
		key, err := a.readText(c.ModelKeyFile, "name a file that holds the key, or - for standard input")
		if err != nil {
			return nil, err
		}
		if p.Key = strings.TrimSpace(key); p.Key == "" { // storing none would remove the stored one
			return nil, failure(api.Invalid, c.ModelKeyFile+" is empty", "name a file that holds the key, or leave the flag out for a service without one")
		}
	}
	if c.ModelCheck {
		p.models, err = p.probe(ctx)
	}
	return p, err
}

// askModel asks for a provider until one passes the test or the user chooses none.
func (d *dialogue) askModel(ctx context.Context, was provider) (*provider, error) {
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
			return nil, err
		}
		if strings.TrimSpace(text) == "" && was.URL != "" {
			return &was, nil
		}
		url, err := providerURL(text)
		if err != nil {
			d.fault(err)
			continue
		}
		if url == "" {
			return &provider{}, nil
		}
		key, err := d.ReadPassword("key (not shown; enter for none): ")
		if err != nil {
			return nil, err
		}
		p := &provider{URL: url, Key: strings.TrimSpace(key)}
		fmt.Fprintf(d, "  asking %s/models …\n", plain(url))
		if p.models, err = p.probe(ctx); err == nil {
			fmt.Fprintf(d, "  the service has %d models\n", p.models)
			return p, nil
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		d.fault(err)
	}
}

// fault prints an error between two questions.
func (d *dialogue) fault(err error) {
	lines := []string{err.Error()}
	if e, ok := errors.AsType[*api.Error](err); ok {
		lines = []string{e.Message, e.Next}
	}
	for _, l := range lines {
		if l != "" {
			fmt.Fprintf(d, "  %s\n", plain(l))
		}
	}
}

// storeModel stores the chosen provider; without one, the stored one is kept.
func (s *setup) storeModel() error {
	p := s.model
	if p == nil {
		return nil
	}
	dir, err := s.app.dataDir()
	if err != nil {
		return err
	}
	if err := storeProvider(dir, *p); err != nil {
		return err
	}
	s.view.Model = &modelView{URL: simulated}
	if p.URL != "" {
		s.view.Model = &modelView{URL: p.URL, Key: p.Key != "", Models: p.models, File: dir + string(os.PathSeparator) + providerFile}
	}
	return nil
}

// createAgent creates the agent in the running anima and makes its first deposit. Both
// requests are idempotent.
func (s *setup) createAgent(ctx context.Context, src []byte) error {
	if s.Fund == "" {
		return nil
	}
	amount, err := positive(s.Fund)
	if err != nil {
		return err
	}
	made, err := ask[api.Agent](ctx, s.app, api.ApplyAgent{Source: string(src)})
	if err != nil {
		return fmt.Errorf("%s is written, but the agent was not created: %w", s.File, err)
	}
	s.app.warn(made.Warnings)
	id := s.view.Agent
	money := api.Deposit{ID: "init-money-" + id + "-" + amount.String(), Agent: id, Amount: amount, Source: "faucet", Memo: "anima init"}
	if _, err := ask[api.Posted](ctx, s.app, money); err != nil {
		return fmt.Errorf("the agent is created, but the deposit failed: %w", err)
	}
	balance, err := ask[api.Balance](ctx, s.app, api.GetBalance{Agent: id})
	if err != nil {
		return fmt.Errorf("the agent is created and funded, but its balance could not be read: %w", err)
	}
	s.view.Balance, s.view.Next = &balance, []string{"anima chat " + id}
	return nil
}

// Package tool is what an agent can do in the loop: each tool with its schema,
// its effect class and the code that does it. It decides nothing about whether a
// call is allowed; that is policy's, before.
package tool

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/api/catalog"

	"github.com/anima-run/anima/services/loop/internal/sandbox"
	"github.com/anima-run/anima/services/loop/internal/turn"
)

// Memory keeps facts.
type Memory interface {
	// Remember stores a fact; the same category and key again replaces the value.
	Remember(ctx context.Context, agent string, f turn.Fact, confidence float64, source string, at int64) error
}

// Services are the other services as tools use them.
type Services interface {
	SetAlarm(ctx context.Context, a api.SetAlarm) (api.Alarm, error)
	Balance(ctx context.Context, agent string) (api.Balance, error)
	SignMessage(ctx context.Context, m api.SignMessage) (api.Signature, error)
	Send(ctx context.Context, m api.Send) (api.Sent, error)
}

// Config of the executor.
type Config struct {
	AllowUnsandboxed bool // the operator accepts commands without Landlock
	Now              func() time.Time
}

// Names are all tools, in the order they are shown to a model.
var names = []string{"read_file", "write_file", "exec", "sleep", "check_credits", "remember_fact", "send_message"}

// Names returns the tools that there are.
func Names() []string { return append([]string(nil), names...) }

// All returns every tool by name.
func All(cfg Config, mem Memory, svc Services) map[string]turn.Tool {
	all := map[string]turn.Tool{}
	for _, t := range []turn.Tool{
		readFile(), writeFile(), execTool(cfg), sleepTool(svc), checkCredits(svc), rememberFact(mem), sendMessage(svc),
	} {
		all[t.Name] = t
	}
	return all
}

// typed makes the two halves of a tool that takes arguments A: the check before
// policy and the run after it decode alike, strictly. check refuses values that
// the type alone lets through.
func typed[A any](t turn.Tool, check func(A) error, run func(context.Context, turn.Call, A) (turn.Output, error)) turn.Tool {
	var schema struct {
		Properties map[string]json.RawMessage `json:"properties"`
	}
	if err := json.Unmarshal(t.Schema, &schema); err != nil {
		panic(err) // the schemas are written below
	}
	decode := func(args json.RawMessage) (A, error) {
		var a A
		err := exact(args, schema.Properties)
		if err == nil {
			err = json.Unmarshal(args, &a)
		}
		if err != nil {
			return a, fmt.Errorf("the arguments do not fit the schema of %s: %w", t.Name, err)
		}
		return a, check(a)
	}
	t.Check = func(args json.RawMessage) error { _, err := decode(args); return err }
	t.Run = func(ctx context.Context, c turn.Call) (turn.Output, error) {
		a, err := decode(c.Args)
		if err != nil {
			return turn.Output{}, err
		}
		return run(ctx, c, a)
	}
	return t
}

// exact refuses what encoding/json forgives: keys in another case, keys given
// twice, null. No two readers of arguments that pass can see different values, so
// what policy judged is what runs.
func exact(args json.RawMessage, properties map[string]json.RawMessage) error {
	dec := json.NewDecoder(bytes.NewReader(args))
	if open, err := dec.Token(); err != nil || open != json.Delim('{') {
		return errors.New("they are not a JSON object")
	}
	seen := map[string]bool{}
	for dec.More() {
		token, err := dec.Token()
		if err != nil {
			return err
		}
		key, _ := token.(string)
		var value json.RawMessage
		if err := dec.Decode(&value); err != nil {
			return err
		}
		switch _, known := properties[key]; {
		case !known:
			return fmt.Errorf("there is no argument %.40q", key)
		case seen[key]:
			return fmt.Errorf("%s is given twice", key)
		case string(value) == "null":
			return fmt.Errorf("%s is null; leave out what you do not want to say", key)
		}
		seen[key] = true
	}
	if _, err := dec.Token(); err != nil {
		return err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return errors.New("they are more than one JSON object")
	}
	return nil
}

// required is the check of arguments that must not be empty.
func required(pairs ...string) error {
	for i := 0; i < len(pairs); i += 2 {
		if pairs[i+1] == "" {
			return fmt.Errorf("%s is missing or empty", pairs[i])
		}
	}
	return nil
}

// maxRead is the largest file that read_file reads, in bytes.
const maxRead = 1 << 20

type pathArgs struct {
	Path string `json:"path"`
}

func readFile() turn.Tool {
	return typed(turn.Tool{
		Name: "read_file", Effect: catalog.Pure,
		Description: "Read a text file of your folder.",
		Schema: json.RawMessage(`{"type":"object","additionalProperties":false,"required":["path"],"properties":{` +
			`"path":{"type":"string","minLength":1,"description":"path inside your folder"}}}`),
	}, func(a pathArgs) error { return required("path", a.Path) },
		func(_ context.Context, c turn.Call, a pathArgs) (turn.Output, error) {
			data, err := sandbox.ReadFile(c.Agent.Workspace, a.Path, maxRead)
			return turn.Output{Text: string(data)}, err
		})
}

type writeArgs struct {
	Path    string  `json:"path"`
	Content *string `json:"content"`
}

func writeFile() turn.Tool {
	return typed(turn.Tool{
		Name: "write_file", Effect: catalog.Idempotent,
		Description: "Write a text file in your folder; it replaces what was there. Folders are made as needed.",
		Schema: json.RawMessage(`{"type":"object","additionalProperties":false,"required":["path","content"],"properties":{` +
			`"path":{"type":"string","minLength":1,"description":"path inside your folder"},"content":{"type":"string"}}}`),
	}, func(a writeArgs) error {
		if a.Content == nil {
			return errors.New("content is missing")
		}
		return required("path", a.Path)
	}, func(_ context.Context, c turn.Call, a writeArgs) (turn.Output, error) {
		if err := sandbox.WriteFile(c.Agent.Workspace, a.Path, []byte(*a.Content)); err != nil {
			return turn.Output{}, err
		}
		return turn.Output{Text: fmt.Sprintf("wrote %d bytes to %s", len(*a.Content), a.Path)}, nil
	})
}

type execArgs struct {
	Command string `json:"command"`
	Timeout *int   `json:"timeout"` // seconds
}

func execTool(cfg Config) turn.Tool {
	return typed(turn.Tool{
		Name: "exec", Effect: catalog.Irreversible,
		Description: "Run a shell command in your folder. It sees your folder and the system's programs, nothing else.",
		Schema: json.RawMessage(`{"type":"object","additionalProperties":false,"required":["command"],"properties":{` +
			`"command":{"type":"string","minLength":1},"timeout":{"type":"integer","minimum":1,"maximum":600,"description":"seconds"}}}`),
	}, func(a execArgs) error {
		if a.Timeout != nil && (*a.Timeout < 1 || *a.Timeout > 600) {
			return errors.New("timeout must be 1 to 600 seconds")
		}
		return required("command", a.Command)
	}, func(ctx context.Context, c turn.Call, a execArgs) (turn.Output, error) {
		limit := c.Agent.ExecTimeoutS
		if a.Timeout != nil {
			limit = min(limit, *a.Timeout)
		}
		r, err := sandbox.Run(ctx, sandbox.Spec{
			Dir: c.Agent.Workspace, Command: a.Command, Timeout: time.Duration(limit) * time.Second,
			Network: c.Agent.Network, AllowUnsandboxed: cfg.AllowUnsandboxed, Now: cfg.Now,
		})
		if err != nil {
			return turn.Output{}, err
		}
		text := r.Stdout
		if r.Stderr != "" {
			text += "\n[stderr]\n" + r.Stderr
		}
		switch {
		case r.TimedOut:
			return turn.Output{Text: text}, fmt.Errorf("the command took longer than %d s and was ended: %w", limit, context.DeadlineExceeded)
		case r.ExitCode != 0:
			text = fmt.Sprintf("[exit code %d]\n%s", r.ExitCode, text)
		}
		return turn.Output{Text: text}, nil
	})
}

// MaxSleep bounds a sleep call; spec-core-7 W-14.
const MaxSleep = 86_400

type sleepArgs struct {
	Seconds int64  `json:"duration_seconds"`
	Reason  string `json:"reason"`
}

func sleepTool(svc Services) turn.Tool {
	return typed(turn.Tool{
		Name: "sleep", Effect: catalog.Keyed,
		Description: "End this run and sleep. A message wakes you earlier.",
		Schema: json.RawMessage(`{"type":"object","additionalProperties":false,"required":["duration_seconds"],"properties":{` +
			`"duration_seconds":{"type":"integer","minimum":1,"maximum":86400},"reason":{"type":"string"}}}`),
	}, func(a sleepArgs) error {
		if a.Seconds < 1 || a.Seconds > MaxSleep {
			return fmt.Errorf("duration_seconds must be 1 to %d", MaxSleep)
		}
		return nil
	}, func(ctx context.Context, c turn.Call, a sleepArgs) (turn.Output, error) {
		// From the thought's time, so that a call made again sets the same alarm.
		until := c.At + a.Seconds*1_000_000
		if a.Reason == "" {
			a.Reason = "slept enough"
		}
		if _, err := svc.SetAlarm(ctx, api.SetAlarm{ID: c.Key, Agent: c.Agent.ID, At: until, Reason: a.Reason}); err != nil {
			return turn.Output{}, err
		}
		at := time.UnixMicro(until).UTC().Format(time.RFC3339)
		return turn.Output{Text: "sleeping until " + at, Sleep: &turn.Sleep{Until: until, Reason: a.Reason}}, nil
	})
}

func checkCredits(svc Services) turn.Tool {
	return typed(turn.Tool{
		Name: "check_credits", Effect: catalog.Pure,
		Description: "See what you own and how long it keeps you alive.",
		Schema:      json.RawMessage(`{"type":"object","additionalProperties":false,"properties":{}}`),
	}, func(struct{}) error { return nil },
		func(ctx context.Context, c turn.Call, _ struct{}) (turn.Output, error) {
			b, err := svc.Balance(ctx, c.Agent.ID)
			if err != nil {
				return turn.Output{}, err
			}
			return turn.Output{Text: fmt.Sprintf("available %s, held %s, tier %s", b.Available, b.Held, b.Tier)}, nil
		})
}

type factArgs struct {
	Category   string   `json:"category"`
	Key        string   `json:"key"`
	Value      string   `json:"value"`
	Confidence *float64 `json:"confidence"`
	Source     string   `json:"source"`
}

// categories of facts, spec-core-4 §1.
var categories = []string{"self", "environment", "financial", "agent", "domain", "procedural_ref", "creator"}

func rememberFact(mem Memory) turn.Tool {
	return typed(turn.Tool{
		Name: "remember_fact", Effect: catalog.Idempotent,
		Description: "Remember a fact for all later runs. The same category and key replaces the value.",
		Schema: json.RawMessage(`{"type":"object","additionalProperties":false,"required":["category","key","value"],"properties":{` +
			`"category":{"type":"string","enum":["self","environment","financial","agent","domain","procedural_ref","creator"]},` +
			`"key":{"type":"string","minLength":1,"maxLength":256},"value":{"type":"string","minLength":1,"maxLength":4096},` +
			`"confidence":{"type":"number","minimum":0,"maximum":1},"source":{"type":"string"}}}`),
	}, func(a factArgs) error {
		if a.Confidence != nil && (*a.Confidence < 0 || *a.Confidence > 1) {
			return errors.New("confidence must be 0 to 1")
		}
		if !slices.Contains(categories, a.Category) {
			return fmt.Errorf("category must be one of %s", strings.Join(categories, ", "))
		}
		if utf8.RuneCountInString(a.Key) > 256 || utf8.RuneCountInString(a.Value) > 4096 {
			return errors.New("key takes 256 characters, value 4096")
		}
		return required("key", a.Key, "value", a.Value)
	}, func(ctx context.Context, c turn.Call, a factArgs) (turn.Output, error) {
		confidence := 1.0
		if a.Confidence != nil {
			confidence = *a.Confidence
		}
		if a.Source == "" {
			a.Source = "agent"
		}
		f := turn.Fact{Category: a.Category, Key: a.Key, Value: a.Value}
		if err := mem.Remember(ctx, c.Agent.ID, f, confidence, a.Source, c.At); err != nil {
			return turn.Output{}, err
		}
		return turn.Output{Text: "remembered " + a.Category + " / " + a.Key}, nil
	})
}

type messageArgs struct {
	To      string `json:"to_address"`
	Content string `json:"content"`
	ReplyTo string `json:"reply_to"`
}

func sendMessage(svc Services) turn.Tool {
	return typed(turn.Tool{
		Name: "send_message", Effect: catalog.Keyed,
		Description: "Send a signed message to another agent's address.",
		Schema: json.RawMessage(`{"type":"object","additionalProperties":false,"required":["to_address","content"],"properties":{` +
			`"to_address":{"type":"string","minLength":1,"description":"0x and 40 hex digits"},"content":{"type":"string","minLength":1},"reply_to":{"type":"string"}}}`),
	}, func(a messageArgs) error { return required("to_address", a.To, "content", a.Content) },
		func(ctx context.Context, c turn.Call, a messageArgs) (turn.Output, error) {
			// The time of the thought is part of what is signed, so a call made again
			// is the same message, and social keeps one.
			at := time.UnixMicro(c.At).UTC().Format("2006-01-02T15:04:05.000Z")
			sig, err := svc.SignMessage(ctx, api.SignMessage{Agent: c.Agent.ID, To: a.To, Content: a.Content, SignedAt: at})
			if err != nil {
				return turn.Output{}, err
			}
			sent, err := svc.Send(ctx, api.Send{
				From: sig.From, To: a.To, Content: a.Content, SignedAt: at, Signature: sig.Signature, ReplyTo: a.ReplyTo,
			})
			if err != nil {
				return turn.Output{}, err
			}
			return turn.Output{Text: "sent as " + sent.ID}, nil
		})
}

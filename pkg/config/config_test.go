package config_test

import (
	"bytes"
	"errors"
	"flag"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/anima-run/anima/pkg/config"
)

var update = flag.Bool("update", false, "rewrite the golden files")

type limits struct {
	Depth int `env:"depth" help:"messages that may wait"`
}

type shared struct {
	Addr string `env:"addr" help:"address to listen on"`
}

type settings struct {
	shared
	MaxCost int64         `env:"max_cost" help:"most a step may cost, in micro-USD"`
	Refresh time.Duration `env:"refresh" help:"time between two reloads"`
	Strict  bool          `env:"strict" help:"refuse | never guess"`
	Models  []string      `env:"models" help:"models to use, best first"`
	Mode    string        `env:"mode" oneof:"queue|drop" help:"what a full queue does"`
	Level   slog.Level    `env:"level" help:"least level to log"`
	Queue   limits        `env:"queue"`
	Token   config.Secret `env:"token" help:"the operator's token"`
	APIKey  config.Secret `env:"OPENAI_API_KEY,exact" help:"key of the provider"`
	BaseURL string        `env:"OPENAI_BASE_URL,exact" help:"where the provider is"`

	note    string // neither exported nor tagged: ignored
	Skipped chan int
}

func defaults() *settings {
	return &settings{
		shared:  shared{Addr: ":8080"},
		MaxCost: 1_000_000,
		Refresh: 90 * time.Second,
		Models:  []string{"a", "b"},
		Mode:    "queue",
		Queue:   limits{Depth: 10},
		Token:   "built-in",
		note:    "kept",
	}
}

func env(pairs ...string) config.Lookup {
	return func(name string) (string, bool) {
		for i := 0; i < len(pairs); i += 2 {
			if pairs[i] == name {
				return pairs[i+1], true
			}
		}
		return "", false
	}
}

func TestFields(t *testing.T) {
	t.Parallel()
	var got []string
	for _, f := range config.Fields("inference-router", defaults()) {
		got = append(got, strings.Join([]string{f.Env, f.Flag, f.Type, f.Accepts, f.Default}, " "))
	}
	want := []string{
		"ANIMA_INFERENCE_ROUTER_ADDR inference-router-addr text  :8080",
		"ANIMA_INFERENCE_ROUTER_MAX_COST inference-router-max-cost whole number  1000000",
		"ANIMA_INFERENCE_ROUTER_REFRESH inference-router-refresh duration  1m30s",
		"ANIMA_INFERENCE_ROUTER_STRICT inference-router-strict true or false  false",
		"ANIMA_INFERENCE_ROUTER_MODELS inference-router-models list  a,b",
		"ANIMA_INFERENCE_ROUTER_MODE inference-router-mode text queue|drop queue",
		"ANIMA_INFERENCE_ROUTER_LEVEL inference-router-level level  INFO",
		"ANIMA_INFERENCE_ROUTER_QUEUE_DEPTH inference-router-queue-depth whole number  10",
		"ANIMA_INFERENCE_ROUTER_TOKEN inference-router-token-file secret  ",
		"OPENAI_API_KEY  secret  ",
		"OPENAI_BASE_URL  text  ",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("fields (-want +got):\n%s", d)
	}
	if got := config.Fields("", &limits{})[0]; got.Env != "ANIMA_DEPTH" || got.Flag != "depth" {
		t.Errorf("without a prefix got %s and -%s, want ANIMA_DEPTH and -depth", got.Env, got.Flag)
	}
}

func TestFieldsRefusesMistakes(t *testing.T) {
	t.Parallel()
	for name, cfg := range map[string]any{
		"not a pointer": limits{},
		"nil":           (*limits)(nil),
		"not a struct":  new(int),
		"unknown type": &struct {
			F float64 `env:"f"`
		}{},
		"same variable twice": &struct {
			A string `env:"x"`
			B string `env:"x"`
		}{},
		"variable of a secret's file": &struct {
			A config.Secret `env:"x"`
			B string        `env:"x_file"`
		}{},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			defer func() {
				if recover() == nil {
					t.Errorf("Fields(%T) did not panic", cfg)
				}
			}()
			config.Fields("policy", cfg)
		})
	}
}

func TestLoad(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte("from file \r\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	got := defaults()
	err := config.Load("policy", got, env(
		"ANIMA_POLICY_ADDR", "",
		"ANIMA_POLICY_MAX_COST", "-9223372036854775808",
		"ANIMA_POLICY_REFRESH", "1m",
		"ANIMA_POLICY_STRICT", "true",
		"ANIMA_POLICY_MODELS", "x, y,",
		"ANIMA_POLICY_MODE", "drop",
		"ANIMA_POLICY_LEVEL", "debug",
		"ANIMA_POLICY_TOKEN_FILE", file,
		"OPENAI_API_KEY", "sk-1",
		"ANIMA_LOOP_QUEUE_DEPTH", "7", // a variable of another service
	))
	if err != nil {
		t.Fatal(err)
	}
	want := &settings{
		MaxCost: -9223372036854775808, Refresh: time.Minute, Strict: true, Models: []string{"x", "y"}, Mode: "drop",
		Level: slog.LevelDebug, Queue: limits{Depth: 10}, Token: "from file ", APIKey: "sk-1", note: "kept",
	}
	if d := cmp.Diff(reveal(want), reveal(got)); d != "" {
		t.Errorf("loaded (-want +got):\n%s", d)
	}
}

// reveal returns the values of all fields, with those of secrets and unexported fields,
// for comparison.
func reveal(s *settings) []any {
	return []any{
		s.Addr, s.MaxCost, s.Refresh, s.Strict, s.Models, s.Mode, s.Level, s.Queue,
		s.Token.Reveal(), s.APIKey.Reveal(), s.BaseURL, s.note,
	}
}

func (s *settings) Validate() error {
	if s.MaxCost < 0 && !s.Strict {
		return errNegative
	}
	return nil
}

var errNegative = errors.New("a negative max cost wants strict")

func TestLoadCollectsFaults(t *testing.T) {
	t.Parallel()
	empty := filepath.Join(t.TempDir(), "empty")
	if err := os.WriteFile(empty, []byte("\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	got := defaults()
	err := config.Load("policy", got, env(
		"ANIMA_POLICY_MAX_COST", "-1",
		"ANIMA_POLICY_REFRESH", "30",
		"ANIMA_POLICY_STRICT", "maybe",
		"ANIMA_POLICY_MODE", "explode",
		"ANIMA_POLICY_LEVEL", "loud",
		"ANIMA_POLICY_QUEUE_DEPTH", "9223372036854775808",
		"ANIMA_POLICY_TOKEN_FILE", empty,
		"OPENAI_API_KEY", "sk-visible",
		"OPENAI_API_KEY_FILE", "/run/secrets/key",
	))
	if err == nil {
		t.Fatal("got no error, want all the faults")
	}
	want := []string{
		`ANIMA_POLICY_REFRESH="30": want a duration with its unit, such as 250ms, 30s or 1h30m`,
		`ANIMA_POLICY_STRICT="maybe": want true or false`,
		`ANIMA_POLICY_MODE="explode": want one of queue, drop`,
		`ANIMA_POLICY_LEVEL="loud": slog: level string "loud": unknown name`,
		`ANIMA_POLICY_QUEUE_DEPTH="9223372036854775808": want a whole number of at most 64 bits`,
		`ANIMA_POLICY_TOKEN_FILE="` + empty + `": the file is empty: write the secret into it, or unset the variable`,
		`OPENAI_API_KEY and OPENAI_API_KEY_FILE are both set: unset one of them`,
		errNegative.Error(),
	}
	if d := cmp.Diff(want, strings.Split(err.Error(), "\n")); d != "" {
		t.Errorf("faults (-want +got):\n%s", d)
	}
	if got.Mode != "queue" || got.Refresh != 90*time.Second || got.Token.Reveal() != "built-in" {
		t.Errorf("faulty fields lost their defaults: %q, %v", got.Mode, got.Refresh)
	}
}

func TestLoadMissingSecretFile(t *testing.T) {
	t.Parallel()
	missing := filepath.Join(t.TempDir(), "absent")
	err := config.Load("policy", defaults(), env("ANIMA_POLICY_TOKEN_FILE", missing))
	if err == nil || !strings.Contains(err.Error(), "ANIMA_POLICY_TOKEN_FILE") || !strings.Contains(err.Error(), missing) {
		t.Errorf("got %v, want a fault that names the variable and %s", err, missing)
	}
}

func TestUnknown(t *testing.T) {
	t.Parallel()
	got := config.Unknown(config.Fields("policy", defaults()), []string{
		"PATH=/bin",
		"ANIMA_POLICY_MAX_COTS=5",
		"ANIMA_POLICY_MAX_COST=5",
		"ANIMA_POLICY_TOKEN_FILE=/x",
		"ANIMA_ENTIRELY_ELSEWHERE=1",
		"ANIMA_POLICY_MODE_=secret-looking",
		"OPENAI_API_KIE=1",
	})
	want := []string{
		"ANIMA_ENTIRELY_ELSEWHERE is not a setting",
		"ANIMA_POLICY_MAX_COTS is not a setting: did you mean ANIMA_POLICY_MAX_COST?",
		"ANIMA_POLICY_MODE_ is not a setting: did you mean ANIMA_POLICY_MODE?",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("unknown (-want +got):\n%s", d)
	}
}

func TestMarkdown(t *testing.T) {
	t.Parallel()
	var got bytes.Buffer
	err := config.Markdown(
		&got,
		config.Section{Title: "Shared", Intro: "Read by every service.", Fields: config.Fields("", &shared{Addr: ":9090"})},
		config.Section{Title: "policy", Fields: config.Fields("policy", defaults())},
	)
	if err != nil {
		t.Fatal(err)
	}
	golden := filepath.Join("testdata", "settings.golden.md")
	if *update {
		if err := os.WriteFile(golden, got.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), got.String()); d != "" {
		t.Errorf("%s differs; run with -update when that is meant (-want +got):\n%s", golden, d)
	}
	if strings.Contains(got.String(), "built-in") {
		t.Error("the default of a secret is in the documentation")
	}
}

package config_test

import (
	"flag"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/anima-run/anima/pkg/config"
)

// parse binds two structs to one command line, as a program with several services does.
func parse(t *testing.T, under config.Lookup, args ...string) (config.Lookup, string, error) {
	t.Helper()
	var usage strings.Builder
	fs := flag.NewFlagSet("policy", flag.ContinueOnError)
	fs.SetOutput(&usage)
	lookup := config.Bind(fs, "", &limits{Depth: 3}, under)
	lookup = config.Bind(fs, "policy", defaults(), lookup)
	err := fs.Parse(args)
	fs.PrintDefaults()
	return lookup, usage.String(), err
}

func TestFlagsOverrideEnvironment(t *testing.T) {
	t.Parallel()
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("from flag"), 0o600); err != nil {
		t.Fatal(err)
	}
	lookup, _, err := parse(t, env(
		"ANIMA_POLICY_MAX_COST", "5",
		"ANIMA_POLICY_REFRESH", "5s",
		"ANIMA_POLICY_MODE", "explode", // overridden, so it is not parsed
		"ANIMA_POLICY_TOKEN", "from env",
		"ANIMA_DEPTH", "4",
	), "-policy-max-cost=7", "-policy-strict", "-policy-mode", "drop", "-policy-token-file", token, "-policy-addr=", "-depth", "9")
	if err != nil {
		t.Fatal(err)
	}
	got := defaults()
	if err := config.Load("policy", got, lookup); err != nil {
		t.Fatal(err)
	}
	switch {
	case got.MaxCost != 7:
		t.Errorf("max cost = %d, want the flag's 7", got.MaxCost)
	case got.Refresh != 5*time.Second:
		t.Errorf("refresh = %v, want the environment's 5s", got.Refresh)
	case got.Queue.Depth != 10:
		t.Errorf("queue depth = %d, want the default 10", got.Queue.Depth)
	case got.Mode != "drop" || !got.Strict || got.Addr != "":
		t.Errorf("mode, strict, addr = %q, %v, %q, want those of the flags", got.Mode, got.Strict, got.Addr)
	case got.Token.Reveal() != "from flag":
		t.Errorf("token = %q, want the one in the flag's file", got.Token.Reveal())
	}
	var other limits
	if err := config.Load("", &other, lookup); err != nil || other.Depth != 9 {
		t.Errorf("depth = %d, %v, want 9", other.Depth, err)
	}
}

func TestFlagRefusesBadValue(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{
		{"-policy-max-cost=much"},
		{"-policy-mode=explode"},
		{"-policy-token=typed"}, // secrets are not accepted on a command line
		{"-openai-base-url=x"},  // an exact variable has no flag
	} {
		if _, _, err := parse(t, env(), args...); err == nil {
			t.Errorf("%v was accepted", args)
		}
	}
	_, usage, err := parse(t, env(), "-policy-max-cost=much")
	if err == nil || !strings.Contains(err.Error(), "want a whole number") {
		t.Errorf("got %v, want it to say what is accepted", err)
	}
	for _, want := range []string{"-policy-refresh", "(default 1m30s)", "(queue|drop)", "-policy-token-file file"} {
		if !strings.Contains(usage, want) {
			t.Errorf("usage does not show %q:\n%s", want, usage)
		}
	}
	if strings.Contains(usage, "built-in") {
		t.Errorf("usage shows the default of a secret:\n%s", usage)
	}
}

func TestBindLeavesStructAlone(t *testing.T) {
	t.Parallel()
	fs := flag.NewFlagSet("policy", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	cfg := defaults()
	config.Bind(fs, "policy", cfg, env())
	if err := fs.Parse([]string{"-policy-max-cost=7"}); err != nil {
		t.Fatal(err)
	}
	if cfg.MaxCost != 1_000_000 {
		t.Errorf("Bind changed the struct to %d before Load", cfg.MaxCost)
	}
}

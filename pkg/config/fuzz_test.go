package config_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/anima-run/anima/pkg/config"
)

// FuzzSetters checks that no text makes Load panic, that an error leaves the default
// unchanged and names the variable, and that an accepted value is the same after it is
// formatted and parsed again.
func FuzzSetters(f *testing.F) {
	for _, s := range []string{"", "0", "-1", "true", "1h30m", "9223372036854775807", "a, b,,", "drop", "debug+2", "010", "1e3", "1_0", "\x00", "|", "é"} {
		f.Add(s)
	}
	plain := reveal(defaults())
	f.Fuzz(func(t *testing.T, text string) {
		for _, field := range config.Fields("policy", defaults()) {
			cfg := defaults()
			err := config.Load("policy", cfg, env(field.Env, text))
			if err != nil {
				negative := field.Env == "ANIMA_POLICY_MAX_COST" && cfg.MaxCost < 0
				if !negative && !strings.HasPrefix(err.Error(), field.Env+"=") {
					t.Errorf("%s=%q: the fault %q does not name the variable", field.Env, text, err)
				}
				if d := cmp.Diff(plain, reveal(cfg)); d != "" && !negative {
					t.Errorf("%s=%q was refused but changed (-default +now):\n%s", field.Env, text, d)
				}
				continue
			}
			if field.Secret {
				continue // never formatted
			}
			var written string
			for _, again := range config.Fields("policy", cfg) {
				if again.Env == field.Env {
					written = again.Default
				}
			}
			reread := defaults()
			if err := config.Load("policy", reread, env(field.Env, written)); err != nil {
				t.Errorf("%s=%q is written as %q, which is refused: %v", field.Env, text, written, err)
			}
			if d := cmp.Diff(reveal(cfg), reveal(reread)); d != "" {
				t.Errorf("%s=%q is written as %q, which reads otherwise (-first +second):\n%s", field.Env, text, written, d)
			}
		}
	})
}

package config_test

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/anima-run/anima/pkg/config"
)

func TestSecretIsNeverPrinted(t *testing.T) {
	t.Parallel()
	const bare = "sk-live-1234"
	s := config.Secret(bare)
	inside := struct{ Key config.Secret }{s}

	var out strings.Builder
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%10s", "%t"} {
		fmt.Fprintf(&out, verb+"\n", s)
		fmt.Fprintf(&out, verb+"\n", inside)
		fmt.Fprintf(&out, verb+"\n", []config.Secret{s})
	}
	fmt.Fprintln(&out, s, &s, s.String(), s.GoString(), fmt.Errorf("with %w and %s", errNegative, s))
	for _, v := range []any{s, inside, map[string]config.Secret{"key": s}, &s} {
		data, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		out.Write(data)
	}
	for _, h := range []slog.Handler{slog.NewJSONHandler(&out, nil), slog.NewTextHandler(&out, nil)} {
		slog.New(h).Info("started", "key", s, "cfg", inside)
	}

	for _, leak := range []string{bare, "736b2d6c697665", "736B2D6C697665"} {
		if strings.Contains(out.String(), leak) {
			t.Errorf("%q leaked:\n%s", leak, out.String())
		}
	}
	if got := s.Reveal(); got != bare {
		t.Errorf("Reveal() = %q, want %q", got, bare)
	}
	if got := fmt.Sprint(config.Secret("")); got != "***" {
		t.Errorf("an empty secret prints %q, want ***", got)
	}
}

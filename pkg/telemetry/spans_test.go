package telemetry_test

import (
	"strings"
	"testing"

	"go.opentelemetry.io/otel/trace"

	"github.com/anima-run/anima/pkg/telemetry"
)

func TestChatStartsWithSamplerAttributes(t *testing.T) {
	t.Parallel()
	name, opts := telemetry.Chat("anthropic", "claude")
	cfg := trace.NewSpanStartConfig(opts...)
	words := []string{name, cfg.SpanKind().String()}
	for _, kv := range cfg.Attributes() {
		words = append(words, string(kv.Key)+"="+kv.Value.AsString())
	}
	const want = "chat claude client gen_ai.operation.name=chat gen_ai.provider.name=anthropic gen_ai.request.model=claude"
	if got := strings.Join(words, " "); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

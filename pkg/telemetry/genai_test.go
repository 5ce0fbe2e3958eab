package telemetry_test

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/attribute"
	semconv "go.opentelemetry.io/otel/semconv/v1.41.0"
	"go.opentelemetry.io/otel/semconv/v1.41.0/genaiconv"
	"go.opentelemetry.io/otel/trace"

	"github.com/anima-run/anima/pkg/telemetry"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// names returns every constant of genai.go, so that the golden contains all of them.
func names(t *testing.T) map[string]string {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "genai.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]string{}
	for _, decl := range file.Decls {
		group, ok := decl.(*ast.GenDecl)
		if !ok || group.Tok != token.CONST {
			continue
		}
		for _, spec := range group.Specs {
			v, ok := spec.(*ast.ValueSpec)
			if !ok || len(v.Values) != 1 {
				t.Fatalf("a constant of genai.go has no value of its own: %v", spec)
			}
			value := v.Values[0]
			if call, ok := value.(*ast.CallExpr); ok {
				value = call.Args[0]
			}
			text, ok := value.(*ast.BasicLit)
			if !ok {
				t.Fatalf("constant %s of genai.go is no literal", v.Names[0])
			}
			found[v.Names[0].Name] = strings.Trim(text.Value, `"`)
		}
	}
	return found
}

func TestNamesAreGolden(t *testing.T) {
	t.Parallel()
	var rows []string
	for name, value := range names(t) {
		rows = append(rows, fmt.Sprintf("%s %s", value, name))
	}
	slices.Sort(rows)
	got := strings.Join(rows, "\n") + "\n"
	golden := filepath.Join("testdata", "genai.golden.txt")
	if *update {
		if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), got); d != "" {
		t.Errorf("names changed: dashboards and alerts read them; run with -update when that is meant (-want +got):\n%s", d)
	}
}

func TestNamesAreThoseOfTheConventions(t *testing.T) {
	t.Parallel()
	known := map[string]bool{}
	for _, key := range []attribute.Key{
		semconv.GenAIOperationNameKey, semconv.GenAIProviderNameKey, semconv.GenAIAgentIDKey, semconv.GenAIAgentNameKey,
		semconv.GenAIAgentVersionKey, semconv.GenAIConversationIDKey, semconv.GenAIRequestModelKey,
		semconv.GenAIRequestMaxTokensKey, semconv.GenAIRequestTemperatureKey, semconv.GenAIRequestStreamKey,
		semconv.GenAIResponseModelKey, semconv.GenAIResponseIDKey, semconv.GenAIResponseFinishReasonsKey,
		semconv.GenAIResponseTimeToFirstChunkKey, semconv.GenAIUsageInputTokensKey, semconv.GenAIUsageOutputTokensKey,
		semconv.GenAIUsageCacheReadInputTokensKey, semconv.GenAIUsageCacheCreationInputTokensKey,
		semconv.GenAIUsageReasoningOutputTokensKey, semconv.GenAITokenTypeKey, semconv.GenAIToolNameKey,
		semconv.GenAIToolCallIDKey, semconv.GenAIToolTypeKey,
	} {
		known[string(key)] = true
	}
	for _, metric := range []interface{ Name() string }{
		genaiconv.ClientOperationDuration{},
		genaiconv.ClientTokenUsage{},
		genaiconv.ClientOperationTimeToFirstChunk{},
		genaiconv.ClientOperationTimePerOutputChunk{},
	} {
		known[metric.Name()] = true
	}
	for _, newer := range []string{ // unreleased, so no package defines them
		"gen_ai.usage.cache_write.input_tokens", "gen_ai.token.modality",
		"gen_ai.client.inference.duration", "gen_ai.client.inference.time_to_first_chunk",
		"gen_ai.client.inference.operation.input_tokens", "gen_ai.client.inference.operation.output_tokens",
		"gen_ai.client.inference.usage.input_tokens", "gen_ai.client.inference.usage.output_tokens",
		"gen_ai.client.inference.usage.cache_read.input_tokens", "gen_ai.client.inference.usage.cache_write.input_tokens",
		"gen_ai.client.inference.usage.reasoning.output_tokens", "gen_ai.execute_tool.duration", "gen_ai.workflow.duration",
	} {
		known[newer] = true
	}
	for name, value := range names(t) {
		if strings.HasPrefix(value, "gen_ai.") && !known[value] {
			t.Errorf("%s = %q is neither in semconv v1.41 nor in the conventions that followed it", name, value)
		}
	}
}

func TestSpansStartWithWhatSamplersNeed(t *testing.T) {
	t.Parallel()
	describe := func(name string, opts []trace.SpanStartOption) string {
		cfg := trace.NewSpanStartConfig(opts...)
		words := []string{name, cfg.SpanKind().String()}
		for _, kv := range cfg.Attributes() {
			words = append(words, string(kv.Key)+"="+kv.Value.AsString())
		}
		return strings.Join(words, " ")
	}
	for _, c := range []struct{ got, want string }{
		{
			describe(telemetry.InvokeAgent("lucky", "a1", "s7")),
			"invoke_agent lucky internal gen_ai.operation.name=invoke_agent gen_ai.agent.name=lucky " +
				"gen_ai.agent.id=a1 gen_ai.conversation.id=s7 automaton.agent.id=a1",
		},
		{
			describe(telemetry.Chat("anthropic", "claude")),
			"chat claude client gen_ai.operation.name=chat gen_ai.provider.name=anthropic gen_ai.request.model=claude",
		},
		{
			describe(telemetry.ExecuteTool("exec", "call_1")),
			"execute_tool exec internal gen_ai.operation.name=execute_tool gen_ai.tool.name=exec " +
				"gen_ai.tool.call.id=call_1 gen_ai.tool.type=function",
		},
	} {
		if c.got != c.want {
			t.Errorf("got  %s\nwant %s", c.got, c.want)
		}
	}
}

package openai_test

import (
	"io"
	"net/http"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/anima-run/anima/services/inference-router/internal/provider"
)

// pages returns a handler that answers each path with a body.
func pages(all map[string]string) http.Handler {
	mux := http.NewServeMux()
	for path, body := range all {
		mux.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, body) })
	}
	return mux
}

// TestLists checks the lists of models in the formats of the different servers.
func TestLists(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		pages map[string]string
		want  []provider.Listed
	}{
		"vLLM": {
			map[string]string{"/v1/models": `{"object":"list","data":[{"id":"Qwen/Qwen3-8B","object":"model","owned_by":"vllm","root":"Qwen/Qwen3-8B","parent":null,"max_model_len":40960,"permission":[{"id":"x"}]}]}`},
			[]provider.Listed{{ID: "Qwen/Qwen3-8B", ContextWindow: 40960}},
		},
		"OpenRouter": {
			map[string]string{"/v1/models": `{"data":[
				{"id":"a/one","context_length":200000,"pricing":{"prompt":"0.00000125","completion":"0.00001","request":"0","image":"0","input_cache_read":"0.000000125","input_cache_write":"0.0000015625","internal_reasoning":"0.00002"},"top_provider":{"context_length":128000,"max_completion_tokens":16384},"architecture":{"input_modalities":["text","image"],"output_modalities":["text"]},"supported_parameters":["tools","max_tokens"]},
				{"id":"a/free:free","context_length":8000,"pricing":{"prompt":"0","completion":"0"},"supported_parameters":["max_tokens"]},
				{"id":"openrouter/auto","context_length":2000000,"pricing":{"prompt":"-1","completion":"-1"}},
				{"id":"a/each","pricing":{"prompt":"0.000001","completion":"0.000001","request":"0.01"}},
				{"id":"a/odd","pricing":{"prompt":"0.000001","completion":"0.000001","request":"1e-2"}},
				{"id":"a/null","pricing":{"prompt":"0.000001","completion":"0.000001","request":null}},
				{"id":"a/fine","pricing":{"prompt":"0.0000000000001","completion":"0.000000075"}},
				{"id":"a/picture","pricing":{"prompt":"0","completion":"0"},"architecture":{"output_modalities":["image"]}}]}`},
			[]provider.Listed{
				{ID: "a/one", ContextWindow: 128000, MaxOutput: 16384, Vision: true, Priced: true, InputPrice: 1_250_000, OutputPrice: 10_000_000, CachedPrice: 125_000, WritePrice: 1_562_500, ReasonPrice: 20_000_000},
				{ID: "a/free:free", ContextWindow: 8000, Priced: true, NoTools: true},
				{ID: "openrouter/auto", ContextWindow: 2000000},
				{ID: "a/each"},
				{ID: "a/odd"},
				{ID: "a/null", Priced: true, InputPrice: 1_000_000, OutputPrice: 1_000_000},
				{ID: "a/fine", Priced: true, InputPrice: 1, OutputPrice: 75_000},
				{ID: "a/picture", Priced: true, NotChat: true},
			},
		},
		"Conway": {
			map[string]string{"/v1/models": `{"models":[
				{"id":"gpt-5.2","provider":"openai","available":true,"pricing":{"input_per_million":1.75,"output_per_million":14}},
				{"id":"claude","owned_by":"anthropic","pricing":{"input_per_1m_tokens_usd":"3","output_per_1m_tokens_usd":"15"}},
				{"id":"half","pricing":{"input_per_million":1}},
				{"id":"gone","available":false,"pricing":{"input_per_million":1,"output_per_million":1}}]}`},
			[]provider.Listed{
				{ID: "gpt-5.2", Priced: true, InputPrice: 1_750_000, OutputPrice: 14_000_000},
				{ID: "claude", Priced: true, InputPrice: 3_000_000, OutputPrice: 15_000_000},
				{ID: "half"},
			},
		},
		"Together": {
			map[string]string{"/v1/models": `[{"id":"meta-llama/Llama-3.3-70B-Instruct-Turbo","object":"model","type":"chat","context_length":131072,"pricing":{"hourly":0,"input":0.88,"output":0.88}},
				{"id":"BAAI/bge","type":"embedding"}]`},
			[]provider.Listed{{ID: "meta-llama/Llama-3.3-70B-Instruct-Turbo", ContextWindow: 131072}, {ID: "BAAI/bge", NotChat: true}},
		},
		"Ollama": {
			map[string]string{
				"/v1/models":     `{"object":"list","data":[{"id":"tiny:latest","object":"model","created":1,"owned_by":"library"}]}`,
				"GET /api/ps":    `{"models":[]}`,
				"POST /api/show": `{"parameters":"num_predict                    40\nnum_ctx                        32768","model_info":{"general.architecture":"llama","llama.context_length":65536},"capabilities":["completion","vision"]}`,
			},
			[]provider.Listed{{ID: "tiny:latest", ContextWindow: 32768, NoTools: true, Vision: true}},
		},
		"Ollama, loaded": {
			map[string]string{
				"/v1/models":     `{"data":[{"id":"me/tiny:latest","owned_by":"me"}]}`,
				"GET /api/ps":    `{"models":[{"name":"me/tiny:latest","context_length":4096}]}`,
				"POST /api/show": `{"model_info":{"llama.context_length":65536},"capabilities":["embedding"],"remote_host":"https://ollama.com:443"}`,
			},
			[]provider.Listed{{ID: "me/tiny:latest", ContextWindow: 4096, NoTools: true, NotChat: true, Remote: "https://ollama.com:443"}},
		},
		"LM Studio": {
			map[string]string{
				"/v1/models":     `{"data":[{"id":"qwen","owned_by":"organization_owner"},{"id":"vectors","owned_by":"organization_owner"}]}`,
				"/api/v0/models": `{"data":[{"id":"qwen","type":"vlm","max_context_length":131072,"loaded_context_length":8192},{"id":"vectors","type":"embeddings"}]}`,
			},
			[]provider.Listed{{ID: "qwen", ContextWindow: 8192, Vision: true}, {ID: "vectors", NotChat: true}},
		},
		"llama.cpp": {
			map[string]string{
				"/v1/models": `{"models":[],"object":"list","data":[{"id":"model.gguf","owned_by":"llamacpp","meta":{"n_ctx_train":131072}}]}`,
				"/props":     `{"default_generation_settings":{"n_ctx":16384},"modalities":{"vision":true,"audio":false}}`,
			},
			[]provider.Listed{{ID: "model.gguf", ContextWindow: 16384, Vision: true}},
		},
		"an addition of another type": {
			map[string]string{"/v1/models": `{"data":[{"id":"m","context_length":"many"},{"id":"m"},{"id":""},5]}`},
			[]provider.Listed{{ID: "m"}},
		},
		"Ollama, none": {map[string]string{"/v1/models": `{"object":"list","data":null}`}, []provider.Listed{}},
		"none":         {map[string]string{"/v1/models": `{"data":[]}`}, []provider.Listed{}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := connect(t, pages(c.pages)).Models(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestNotALists(t *testing.T) {
	t.Parallel()
	for _, body := range []string{"<h1>hi</h1>", "Ollama is running", `{"object":"list"}`, "null", "7"} {
		if _, err := connect(t, pages(map[string]string{"/v1/models": body})).Models(t.Context()); provider.KindOf(err) != provider.Failover {
			t.Errorf("%q: got %v, want %s", body, err, provider.Failover)
		}
	}
}

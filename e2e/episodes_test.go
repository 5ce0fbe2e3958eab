package e2e

import (
	"compress/gzip"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/anima-run/anima/services/inference-router/openaitest"
)

// episode is a behaviour of a provider and the expected result of one message to an
// agent.
type episode struct {
	name  string
	does  string // description for docs/providers.md
	part  part
	end   string // "answer: …", or "code reason: text of the error"
	cost  int64  // micro-USD in the ledger; estimated: counted from the texts
	calls int    // upstream calls
	after string // end of the next message; empty: "answer: fine"
}

// estimated stands for a cost that the router counted from the texts: greater than zero
// and at most the hold.
const estimated = -1

// twice is the cost of two complete answers: one with a call, one after its result.
const twice = 2 * goodCost

func acts(all ...play) part { return part{plays: all} }

func always(p play) part { return part{plays: []play{p}, forever: true} }

func fails(status int, message string) play {
	return func(x *exchange) { openaitest.WriteError(x.Writer, status, openaitest.Error{Message: message}) }
}

func failsLater(status int, after string) play {
	return func(x *exchange) {
		x.Writer.Header().Set("Retry-After", after)
		openaitest.WriteError(x.Writer, status, openaitest.Error{Message: "slow down"})
	}
}

func page(status int) play {
	return func(x *exchange) {
		x.Writer.Header().Set("Content-Type", "text/html")
		x.Writer.WriteHeader(status)
		_, _ = x.Writer.Write([]byte("<!doctype html><title>proxy</title>"))
	}
}

// calls answers with complete calls of a tool.
func calls(name string, arguments ...string) play {
	return func(x *exchange) {
		for i, a := range arguments {
			x.Call(i, fmt.Sprintf("call_%s_%d", name[:min(4, len(name))], i), name, a)
		}
		x.End("tool_calls")
	}
}

func ends(reason, text string) play {
	return func(x *exchange) {
		if text != "" {
			x.Text(text)
		}
		x.End(reason)
	}
}

func usage(in, out int64) play {
	return func(x *exchange) { x.Text("fine"); x.Finish("stop"); x.Usage(in, out); x.Done() }
}

// raw answers with the bytes of text.
func raw(text string) play { return func(x *exchange) { x.Raw(text) } }

const look = `{"path":"a.txt"}`

// episodes returns the episodes that run in one suite, each with its own model.
func episodes() []episode {
	const good = "answer: fine"
	c, three := int64(goodCost), 3*int64(goodCost)
	return append(toolEpisodes(), append(streamEpisodes(), []episode{
		{"plain", "answers", acts(), good, c, 1, ""},
		{"429 short", "429, Retry-After 1, then answers", acts(failsLater(429, "1")), good, c, 2, ""},
		{"500 twice", "500 twice, then answers", acts(fails(500, "oops"), fails(500, "oops")), good, c, 3, ""},
		{"500 forever", "500 always", always(fails(500, "oops")), "unavailable attempts_used: oops", 0, 4, "unavailable attempts_used: oops"},
		{"400", "400 always", always(fails(400, "this is wrong")), "invalid request_refused: this is wrong", 0, 1, "invalid request_refused: this is wrong"},
		{"400 history", "a call, then 400 about the history once", acts(calls("read_file", look), fails(400, "messages[3] is not valid")), good, twice, 3, ""},
		{"401", "401 always", always(fails(401, "wrong key")), "unavailable provider_auth: wrong key", 0, 1, "unavailable provider_auth: wrong key"},
		{"402", "402 always", always(fails(402, "no credit")), "unavailable provider_quota: no credit", 0, 1, "unavailable provider_quota: no credit"},
		{"403", "403 always", always(fails(403, "not for you")), "unavailable provider_auth: not for you", 0, 1, "unavailable provider_auth: not for you"},
		{"404 model", "404, model not found", always(fails(404, "model not found")), "unavailable no_model: model not found", 0, 1, "unavailable no_model: model not found"},
		{"404 page", "404 with a web page", always(page(404)), "unavailable provider_endpoint: ", 0, 1, "unavailable provider_endpoint: "},
		{"502 page", "502 with a web page, then answers", acts(page(502)), good, c, 2, ""},
		{"200 page", "200 with a web page", always(page(200)), "unavailable provider_endpoint: ", 0, 1, "unavailable provider_endpoint: "},
		{"empty body", "200 without a body, then answers", acts(func(x *exchange) { x.Writer.WriteHeader(200) }), good, estimated, 2, ""},
		{"redirect", "308 to another address", always(func(x *exchange) {
			x.Writer.Header().Set("Location", "https://elsewhere.example/v1/chat/completions")
			x.Writer.WriteHeader(http.StatusPermanentRedirect)
		}), "unavailable provider_endpoint: elsewhere.example", 0, 1, "unavailable provider_endpoint: elsewhere.example"},
		{"gzip", "answers compressed with gzip", acts(compressed), good, c, 1, ""},
		{"whole answer", "one JSON document instead of a stream", acts(func(x *exchange) { x.Whole("fine") }), good, c, 1, ""},
		{"vanishes", "404, and lists the model no more", acts(func(x *exchange) {
			x.Vanish()
			fails(404, "model not found")(x)
		}), "unavailable no_model: model not found", 0, 1, "unavailable no_model: no model can be used"},
		{"empty stop", "stop, without text or calls", acts(ends("stop", "")), "unavailable empty: ", c, 1, ""},
		{"length", "text cut at the output limit", acts(ends("length", "half of")), "denied length: ", c, 1, ""},
		{"content filter", "content_filter in the middle", acts(ends("content_filter", "half of")), "denied content_filter: ", c, 1, ""},
		{"refusal", "a refusal instead of content", acts(func(x *exchange) {
			x.Field("refusal", "I cannot help with that.")
			x.End("stop")
		}), "denied refusal: ", c, 1, ""},
		{"repetition", "the same sentence 2,000 times", acts(func(x *exchange) {
			for range 2000 {
				x.Text("I will look into it now and tell you. ")
			}
			x.End("stop")
		}), "unavailable repetition: ", estimated, 1, ""},
		{"no usage", "no usage", acts(func(x *exchange) { x.Text("fine"); x.Finish("stop"); x.Done() }), good, estimated, 1, ""},
		{"zero usage", "usage of zero", acts(usage(0, 0)), good, estimated, 1, ""},
		{"negative usage", "negative usage", acts(usage(-7, -7)), good, estimated, 1, ""},
		{"huge usage", "usage of a billion tokens", acts(usage(1_000_000_000, 1_000_000_000)), good, estimated, 1, ""},
		{"in turn", "500, a call, 500, then answers", acts(fails(500, "oops"), calls("read_file", look), fails(500, "oops")), good, twice, 4, ""},
		{"many calls", "2 turns with calls, then answers", acts(calls("read_file", look), calls("read_file", look)), good, three, 3, ""},
	}...)...)
}

func compressed(x *exchange) {
	h := x.Writer.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Content-Encoding", "gzip")
	z := gzip.NewWriter(x.Writer)
	_, _ = z.Write([]byte(sse(`{"choices":[{"index":0,"delta":{"content":"fine"},"finish_reason":"stop"}],"usage":{"prompt_tokens":1000,"completion_tokens":100}}`, "[DONE]")))
	_ = z.Close() // a client that disconnects fails the episode
}

// sse returns a stream of server-sent events with the given data.
func sse(events ...string) string {
	var b strings.Builder
	for _, e := range events {
		b.WriteString("data: " + e + "\n\n")
	}
	return b.String()
}

// toolEpisodes returns the episodes with tool calls. After a call, the model is called
// again with its result.
func toolEpisodes() []episode {
	const good = "answer: fine"
	parallel := make([]string, 14)
	for i := range parallel {
		parallel[i] = look
	}
	return []episode{
		{"bad JSON", "arguments that are not JSON", acts(calls("read_file", `{"path":`)), good, twice, 2, ""},
		{"array", "arguments that are an array", acts(calls("read_file", `["a.txt"]`)), good, twice, 2, ""},
		{"string", "arguments that are a string", acts(calls("read_file", `"a.txt"`)), good, twice, 2, ""},
		{"no arguments", "empty arguments", acts(calls("read_file", ``)), good, twice, 2, ""},
		{"unknown tool", "a call of a tool that is not offered", acts(calls("launch_rocket", `{}`)), good, twice, 2, ""},
		{"dotted name", "a tool name with dots and spaces", acts(calls("functions.list files", look)), good, twice, 2, ""},
		{"long name", "a tool name of 200 letters", acts(calls(strings.Repeat("x", 200), `{}`)), good, twice, 2, ""},
		{"14 calls", "14 calls at once", acts(calls("read_file", parallel...)), good, twice, 2, ""},
		{"one id", "two calls with one id", acts(func(x *exchange) {
			x.Call(0, "same", "read_file", look)
			x.Call(1, "same", "read_file", look)
			x.End("tool_calls")
		}), good, twice, 2, ""},
		{"no ids", "two calls without ids", acts(func(x *exchange) {
			x.Call(0, "", "read_file", look)
			x.Call(1, "", "read_file", look)
			x.End("tool_calls")
		}), good, twice, 2, ""},
		{"interleaved", "the pieces of two calls in turn", acts(func(x *exchange) {
			x.Call(0, "a", "read_file", `{"pa`)
			x.Call(1, "b", "read_file", `{"pat`)
			x.Call(0, "", "", `th":"a.txt"}`)
			x.Call(1, "", "", `h":"a.txt"}`)
			x.End("tool_calls")
		}), good, twice, 2, ""},
		{"cut call", "a call cut at the output limit: it is not executed, and the model is told", acts(func(x *exchange) {
			x.Call(0, "a", "write_file", `{"path":"half.txt","content":"ha`)
			x.End("length")
		}), good, twice, 2, ""},
		{"announced", "tool_calls, and no calls", acts(ends("tool_calls", "fine")), good, goodCost, 1, ""},
		{"stop with calls", "a call, ended with stop", acts(func(x *exchange) {
			x.Call(0, "a", "read_file", look)
			x.End("stop")
		}), good, twice, 2, ""},
		{"text and calls", "text before a call", acts(func(x *exchange) {
			x.Text("I look.")
			x.Call(0, "a", "read_file", look)
			x.End("tool_calls")
		}), good, twice, 2, ""},
	}
}

// streamEpisodes returns the episodes about the bytes of a stream.
func streamEpisodes() []episode {
	const good = "answer: fine"
	const c = goodCost
	const finish = `{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}],"usage":{"prompt_tokens":1000,"completion_tokens":100}}`
	piece := func(text string) string {
		quoted, _ := json.Marshal(text) // a string can always be encoded
		return `{"choices":[{"index":0,"delta":{"content":` + string(quoted) + `}}]}`
	}
	return []episode{
		{"cut once", "breaks in the middle, then answers", acts(func(x *exchange) { x.Text("half of"); x.Reset() }), good, estimated, 2, ""},
		{"cut always", "breaks in the middle, always", always(func(x *exchange) { x.Text("half of"); x.Reset() }), "unavailable attempts_used: ", estimated, 4, "unavailable attempts_used: "},
		{"no end mark", "no [DONE]", acts(raw(sse(piece("fine"), finish))), good, c, 1, ""},
		{"think tags", "reasoning in think tags", acts(raw(sse(piece("<thi"), piece("nk>hm, well</think>\n\nfi"), piece("ne"), finish, "[DONE]"))), good, c, 1, ""},
		{"reasoning apart", "reasoning_content before the text", acts(func(x *exchange) {
			x.Field("reasoning_content", "hm, well")
			x.Text("fine")
			x.End("stop")
		}), good, c, 1, ""},
		{"no roles", "chunks without a role or an id", acts(raw(sse(piece("fine"), finish, "[DONE]"))), good, c, 1, ""},
		{"CRLF and comments", "CRLF, comments and a byte order mark", acts(raw("\uFEFF: hello\r\n\r\n" + strings.ReplaceAll(sse(piece("fine"), finish, "[DONE]"), "\n", "\r\n"))), good, c, 1, ""},
		{"split characters", "characters split over packets", acts(func(x *exchange) {
			for _, b := range []byte(sse(piece("zażółć 日本 👩‍👧"), finish, "[DONE]")) {
				x.Raw(string([]byte{b}))
			}
		}), "answer: zażółć 日本 👩‍👧", c, 1, ""},
		{"1 MB", "an answer of 1 MB", acts(func(x *exchange) {
			for i := range 256 {
				x.Text(lines(i, 4096))
			}
			x.End("stop")
		}), "answer: 1 MB", c, 1, ""},
		{"20,000 deltas", "an answer in 20,000 pieces", acts(func(x *exchange) {
			var b strings.Builder
			for i := range 20_000 {
				b.WriteString(sse(piece(fmt.Sprint(i) + " ")))
			}
			x.Raw(b.String())
			x.End("stop")
		}), "answer: 20,000 deltas", c, 1, ""},
		{"error event", "an error as an event, then answers", acts(func(x *exchange) {
			x.Error(openaitest.Error{Message: "overloaded", Type: "server_error"})
		}), good, c, 2, ""},
	}
}

// lines returns n bytes of text without repetition.
func lines(seed, n int) string {
	var b strings.Builder
	for i := 0; b.Len() < n; i++ {
		fmt.Fprintf(&b, "line %d of part %d: %x\n", i, seed, (seed+1)*(i+7919)*2654435761)
	}
	return b.String()[:n]
}

// slowEpisodes returns the episodes that need short timeouts; see [TestProviders].
func slowEpisodes() []episode {
	const good = "answer: fine"
	return []episode{
		{"hangs", "no byte, ever; then answers", acts(func(x *exchange) { x.Hang() }), good, estimated, 2, ""},
		{"hangs in the middle", "stops in the middle, then answers", acts(func(x *exchange) { x.Text("half of"); x.Hang() }), good, estimated, 2, ""},
		{"slow headers", "headers, and no event; then answers", acts(func(x *exchange) { x.Raw(": wait\n\n"); x.Hang() }), good, estimated, 2, ""},
		{"a little slow", "answers after half a second", acts(func(x *exchange) {
			select {
			case <-time.After(500 * time.Millisecond):
			case <-x.HTTP.Context().Done():
			}
			goodAnswer("fine")(x)
		}), good, goodCost, 1, ""},
		{"429 long", "429, Retry-After 3600", always(failsLater(429, "3600")), "unavailable provider_error: slow down", 0, 1, "unavailable provider_error: status 429"},
	}
}

// lacking returns an episode with a server that lacks a part of the protocol for all its
// models.
func lacking(name, does string, refuses func(openaitest.Request) string) episode {
	lacks := func(x *exchange) {
		if why := refuses(x.Request); why != "" {
			fails(400, why)(x)
			return
		}
		goodAnswer("fine")(x)
	}
	return episode{name, does, always(lacks), "answer: fine", goodCost, 2, ""}
}

// uncounted sets the cost of an episode whose answers have no usage.
func uncounted(s episode) episode {
	s.cost = estimated
	return s
}

// lackingEpisodes returns the episodes that need their own server each, because the
// router stores the missing parts of the protocol per server, for all its models.
func lackingEpisodes() []episode {
	return []episode{
		uncounted(lacking("no stream_options", "400 to stream_options", func(r openaitest.Request) string {
			if r.StreamOptions {
				return "Unrecognized request argument supplied: stream_options"
			}
			return ""
		})),
		lacking("no streaming", "400 to stream", func(r openaitest.Request) string {
			if r.Stream {
				return "streaming is not supported by this server"
			}
			return ""
		}),
		lacking("no tools", "400 to tools", func(r openaitest.Request) string {
			if len(r.Tools) > 0 {
				return "this model does not support tools"
			}
			return ""
		}),
		lacking("max_completion_tokens only", "400 to max_tokens", func(r openaitest.Request) string {
			if r.TokenParam == "max_tokens" {
				return "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."
			}
			return ""
		}),
	}
}

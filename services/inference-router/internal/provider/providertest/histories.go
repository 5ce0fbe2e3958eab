package providertest

import (
	"strings"
	"testing"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/api/chat"

	"github.com/anima-run/anima/services/inference-router/internal/provider"
)

// History is a conversation that some servers refuse as it is.
type History struct {
	Name     string
	Messages []provider.Message
	NoTools  bool // the request offers no tools
}

// Histories returns conversations with the faults that models, cuts and crashes cause. An
// adapter must send each of them, after [chat.Normalize], in a form that its strictest
// server accepts.
func Histories() []History {
	system := func(text string) provider.Message { return provider.Message{Role: provider.System, Content: text} }
	user := func(text string) provider.Message { return provider.Message{Role: provider.User, Content: text} }
	says := func(text string, calls ...provider.ToolCall) provider.Message {
		return provider.Message{Role: provider.Assistant, Content: text, ToolCalls: calls}
	}
	call := func(id, arguments string) provider.ToolCall {
		return provider.ToolCall{ID: id, Name: "exec", Arguments: arguments}
	}
	named := func(id, name string) provider.ToolCall {
		return provider.ToolCall{ID: id, Name: name, Arguments: "{}"}
	}
	result := func(id, text string) provider.Message {
		return provider.Message{Role: provider.ToolRole, ToolCallID: id, Content: text}
	}
	long := strings.Repeat("x", 70)
	var all []History
	add := func(name string, messages ...provider.Message) {
		all = append(all, History{Name: name, Messages: messages})
	}
	// Roles and texts.
	add("one message", user("hi"))
	add("no system message, two of the user", user("a"), user("b"))
	add("two answers in sequence", user("a"), says("b"), says("c"), user("d"))
	add("the assistant first", says("hello"), user("hi"))
	add("the assistant last", user("hi"), says("hello"))
	add("only the assistant", says("hello"))
	add("only a system message", system("be brief"))
	add("several system messages", system("a"), system("b"), user("c"))
	add("a system message in the middle", user("a"), system("late"), says("b"), user("c"))
	add("a system message at the end", user("a"), says("b"), user("c"), system("late"))
	add("an unknown role", provider.Message{Role: "critic", Content: "hm"}, user("a"))
	add("the role developer", provider.Message{Role: "developer", Content: "be brief"}, user("a"))
	add("a blank message of the user", user(" \n"), user("a"))
	add("only a blank message", user(""))
	add("a blank answer", user("a"), says(""), user("b"))
	add("an answer of white space", user("a"), says(" \t\n"), user("b"))
	add("a blank system message", system("  "), user("a"))
	add("an answer that ends with white space", user("a"), says("b \n"), user("c"))
	add("characters that are escaped", user("<a> & \"b\" \\ \u2028 \u0000 日本 👩‍👩‍👧"), says("\t"), user("c"))
	add("invalid UTF-8", user("a\xff\xfeb"), says("c\xc3"), user("d"))
	// Calls and results.
	add("a call and its result", user("a"), says("", call("c1", `{"command":"ls"}`)), result("c1", "ok"))
	add("a call after text", user("a"), says("I look.", call("c1", `{}`)), result("c1", "ok"), user("b"))
	add("parallel calls", user("a"), says("", call("c1", `{}`), call("c2", `{}`), call("c3", `{}`)), result("c1", "1"), result("c2", "2"), result("c3", "3"))
	add("results in another order", user("a"), says("", call("c1", `{}`), call("c2", `{}`)), result("c2", "2"), result("c1", "1"))
	add("a result is missing", user("a"), says("", call("c1", `{}`), call("c2", `{}`)), result("c2", "2"), user("b"))
	add("all results are missing", user("a"), says("", call("c1", `{}`), call("c2", `{}`)), user("b"))
	add("the conversation ends with calls", user("a"), says("", call("c1", `{}`)))
	add("a result without a call", user("a"), result("c1", "lost"), user("b"))
	add("the history begins with a result", result("c1", "lost"), says("b"), user("c"))
	add("a result of an earlier call", user("a"), says("", call("c1", `{}`)), result("c1", "1"), says("b"), result("c1", "again"), user("c"))
	add("two results of one call", user("a"), says("", call("c1", `{}`)), result("c1", "1"), result("c1", "2"))
	add("an empty result", user("a"), says("", call("c1", `{}`)), result("c1", ""))
	add("a result of white space", user("a"), says("", call("c1", `{}`)), result("c1", " \n"), user("b"))
	add("the user between a call and its result", user("a"), says("", call("c1", `{}`)), user("wait"), result("c1", "1"))
	add("a system message between a call and its result", user("a"), says("", call("c1", `{}`)), system("late"), result("c1", "1"))
	add("rounds of calls", user("a"), says("", call("c1", `{}`)), result("c1", "1"), says("", call("c2", `{}`)), result("c2", "2"), says("done"), user("b"))
	add("two assistants with calls in sequence", user("a"), says("x", call("c1", `{}`)), says("y", call("c2", `{}`)), result("c1", "1"), result("c2", "2"))
	// Ids, names and arguments.
	add("an id twice in one message", user("a"), says("", call("c1", `{}`), call("c1", `{}`)), result("c1", "1"), result("c1", "2"))
	add("an id in two messages", user("a"), says("", call("c1", `{}`)), result("c1", "1"), says("", call("c1", `{}`)), result("c1", "2"))
	add("an empty id", user("a"), says("", call("", `{}`)), result("", "1"))
	add("an id with other characters", user("a"), says("", call("functions.exec:0", `{}`)), result("functions.exec:0", "1"))
	add("a long id", user("a"), says("", call(long, `{}`)), result(long, "1"))
	add("a name with other characters", user("a"), says("", named("c1", "read file!")), result("c1", "1"))
	add("an empty name", user("a"), says("", named("c1", "")), result("c1", "1"))
	add("a long name", user("a"), says("", named("c1", long)), result("c1", "1"))
	add("empty arguments", user("a"), says("", call("c1", "")), result("c1", "1"))
	add("arguments that are null", user("a"), says("", call("c1", "null")), result("c1", "1"))
	add("arguments that are an array", user("a"), says("", call("c1", `["ls"]`)), result("c1", "1"))
	add("arguments that are a string", user("a"), says("", call("c1", `"ls"`)), result("c1", "1"))
	add("arguments that are cut off", user("a"), says("", call("c1", `{"command":"l`)), result("c1", "1"))
	add("two objects as arguments", user("a"), says("", call("c1", `{}{}`)), result("c1", "1"))
	add("arguments with invalid UTF-8", user("a"), says("", call("c1", "{\"a\":\"\xff\"}")), result("c1", "1"))
	// Images.
	seen := func(text string, images ...api.Image) provider.Message {
		return provider.Message{Role: provider.User, Content: text, Images: images}
	}
	add("an image", seen("what is this?", Image(0)))
	add("an image without text", seen("", Image(0)))
	add("an image beside white space", seen(" \n", Image(1)), user("a"))
	add("images between texts", seen("one\ntwo\nthree", Image(3), Image(7), Image(13)))
	add("images in messages that are joined", seen("a", Image(1)), seen("b", Image(0), ImageURL(1)))
	add("an image after a result", user("a"), says("", call("c1", `{}`)), result("c1", "1"), seen("and this?", ImageURL(0)))
	add("an image between a call and its result", user("a"), says("", call("c1", `{}`)), seen("wait", Image(0)), result("c1", "1"))
	// Images in results.
	shows := func(id, text string, images ...api.Image) provider.Message {
		return provider.Message{Role: provider.ToolRole, ToolCallID: id, Content: text, Images: images}
	}
	add("a result with an image", user("a"), says("", call("c1", `{}`)), shows("c1", "a picture", Image(9)))
	add("a result that is an image", user("a"), says("", call("c1", `{}`)), shows("c1", "", ImageURL(0)), says("b"), user("c"))
	add("a result with an image beside white space", user("a"), says("", call("c1", `{}`)), shows("c1", " \n", Image(2)))
	add("results with images between texts", user("a"), says("", call("c1", `{}`), call("c2", `{}`), call("c3", `{}`)), shows("c1", "one\ntwo", Image(0), ImageURL(3)), result("c2", "2"), shows("c3", "", Image(0)), says("b"), user("c"))
	add("the user after a result with an image", user("a"), says("", call("c1", `{}`)), shows("c1", "", Image(0)), seen("and this?", ImageURL(9)))
	add("the user between a call and a result with an image", user("a"), says("", call("c1", `{}`)), user("wait"), shows("c1", "1", Image(1)))
	add("a result with an image is missing its call", user("a"), shows("c1", "lost", Image(0)), user("b"))
	add("results with images in another order", user("a"), says("", call("c1", `{}`), call("c2", `{}`)), shows("c2", "2", Image(1)), shows("c1", "1", Image(0)))
	add("rounds of results with images", user("a"), says("", call("c1", `{}`)), shows("c1", "", Image(0)), says("", call("c2", `{}`)), shows("c2", "", Image(0)))
	for _, h := range all {
		if hasCalls(h.Messages) {
			h.Name, h.NoTools = h.Name+", without tools", true
			all = append(all, h)
		}
	}
	return all
}

func hasCalls(messages []provider.Message) bool {
	for _, m := range messages {
		if m.Role == provider.ToolRole || len(m.ToolCalls) > 0 {
			return true
		}
	}
	return false
}

// Image returns a small image at a place of a message.
func Image(at int) api.Image {
	return api.Image{At: at, MediaType: "image/gif", Data: []byte("GIF89a\x01\x00\x01\x00\x00\x00\x00")}
}

// ImageURL returns an image at an address, at a place of a message.
func ImageURL(at int) api.Image { return api.Image{At: at, URL: "https://host.example/picture.png"} }

// Tools returns the tools that requests with a [History] offer.
func Tools() []api.Tool {
	return []api.Tool{{Name: "exec", Description: "run a command", Schema: []byte(`{"type":"object","properties":{"command":{"type":"string"}}}`)}}
}

// RunHistories checks that a strict server accepts every history, and that the
// conversation it received has every text and image of the original. start returns a provider at a
// server that refuses requests which the strictest one would refuse, and a function that
// returns the conversation of the last request.
func RunHistories(t *testing.T, start func(t *testing.T) (provider.Provider, func() []provider.Message)) {
	for _, h := range Histories() {
		t.Run(h.Name, func(t *testing.T) {
			t.Parallel()
			p, received := start(t)
			req := provider.Request{Model: "m", Messages: chat.Normalize(h.Messages, !h.NoTools)}
			if !h.NoTools {
				req.Tools = Tools()
			}
			if _, err := p.Complete(t.Context(), req, nil); err != nil {
				t.Fatalf("got %v, sent %+v", err, req.Messages)
			}
			var sent strings.Builder
			images := 0
			for _, m := range received() {
				images += len(m.Images)
				sent.WriteString(m.Content)
				for _, c := range m.ToolCalls {
					sent.WriteString(c.Arguments)
				}
			}
			for _, m := range h.Messages {
				images -= len(m.Images)
				// The number of replacement characters for invalid bytes may differ.
				text := strings.ToValidUTF8(strings.TrimSpace(m.Content), "")
				if !strings.Contains(strings.ReplaceAll(sent.String(), "\uFFFD", ""), text) {
					t.Errorf("the text %q is missing in %q", text, sent.String())
				}
			}
			if images != 0 {
				t.Errorf("the numbers of images sent and received differ by %d", images)
			}
		})
	}
}

package wire

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/api/chat"
)

// conversation returns a request as an agent sends it; tool is the name of its only tool.
func conversation(t testing.TB, tool string) string {
	t.Helper()
	messages := []api.ChatMessage{
		{Role: chat.System, Content: "Text in \"quotes\"\n\tis <data> & \\ no\u2028order\x01."},
		{Role: chat.User, Content: "Bonjour à tous 世界"},
		{Role: chat.Assistant, Content: "I look.", ToolCalls: []api.ToolCall{{ID: "c1", Name: tool, Arguments: `{"path":"a\"b"}`}, {ID: "c2", Name: tool, Arguments: "{}"}}},
		{Role: chat.ToolRole, Content: "nothing", ToolCallID: "c1"},
		{Role: chat.ToolRole, ToolCallID: "c2"},
	}
	tools, err := chat.EncodeTools([]api.Tool{{Name: tool, Description: "Reads ] a \"file\".", Schema: []byte(`{"type": "object", "enum": ["]", [1]]}`)}})
	if err != nil {
		t.Fatal(err)
	}
	return `{"messages":` + string(chat.Encode(messages)) + `,"tools":` + string(tools) +
		`,"model":"m","max_tokens":9,"stream":true,"stream_options":{"include_usage":true},"tool_choice":"auto"}`
}

// plainly decodes a request without a [Decoder].
func plainly(body string) (Request, error) {
	req, err := decode(body)
	if err != nil {
		return Request{}, unreadable(err)
	}
	if err := req.check(); err != nil {
		return Request{}, err
	}
	return req, nil
}

// FuzzDecoder checks that a decoder returns what encoding/json returns, also for a second
// request with a cached list of tools.
func FuzzDecoder(f *testing.F) {
	whole := conversation(f, "read")
	f.Add(whole)
	for _, change := range [][2]string{
		{`"model":"m"`, `"model":""`},
		{`"model":"m"`, `"model":1`},
		{`"model":"m"`, `"model":"m","messages":null`},
		{`"model":"m"`, `"model":"m","Messages":[{"role":"user"}]`},
		{`"model":"m"`, `"model":"m","TOOLS":[{}]`},
		{`"model":"m"`, `"model":"m","tools":null`},
		{`"type":"function","function":{"name":"read","description"`, `"type":"other","function":{"name":"read","description"`},
		{`"name":"read"`, `"name":""`},
		{`"name":"read","description"`, `"name":7,"description"`},
		{`"tools":[`, `"tools":[null,`},
		{`"tools":[`, `"tools":7,"other":[`},
		{`"tools":[`, `"tools":[],"x":[`},
		{`"content":"`, `"content":null,"x":"`},
		{`"content":"`, `"content":["`},
		{`"content":"`, `"content":"\ud83d\ude00`},
		{`"content":"`, `"content":"\ud83d`},
		{`"content":"`, `"content":"\u00e9\/\b\f\u0000\u002F`},
		{`"content":"`, `"content":"\x`},
		{`"content":"`, `"content":"\u12`},
		{`"content":"`, "\"content\":\"\xff"},
		{`"content":"`, "\"content\":\"\\n\xff"},
		{`"content":"`, "\"content\":\"\n"},
		{`"content":"`, "\"content\":\"\\n\n"},
		{`"content":"`, "\"content\":\"\\\n"},
		{`"tool_call_id":"c1"`, `"tool_call_id":"c1","role":"user"`},
		{`"id":"c1"`, `"id":"c1","index":0`},
		{`"messages":[`, `"messages":[],"x":[`},
		{`"messages":[`, `"messages": [`},
		{`"auto"}`, `"auto"} trailing`},
		{`"auto"}`, `"auto"}` + "\n"},
		{`"auto"}`, `"auto"`},
		{`"auto"}`, `"auto",}`},
	} {
		changed := strings.Replace(whole, change[0], change[1], 1)
		if changed == whole {
			f.Fatalf("the request has no %s", change[0])
		}
		f.Add(changed)
	}
	for i := range len(whole) {
		if i%7 == 0 {
			f.Add(whole[:i])
		}
	}
	f.Add(`{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"a"}]}]}`)
	f.Add(`{"messages":[{"role":"user","content":"a"}],"model":"m"}`)
	f.Add(`{"messages":[{"role":"user","content":"a"}],}`)
	f.Add(`{"messages":[{"role":"user","content":"a"}]}`)
	f.Fuzz(func(t *testing.T, body string) {
		want, wantErr := plainly(body)
		var d Decoder
		for range 2 {
			got, err := d.Decode(strings.NewReader(body), int64(len(body)))
			if fmt.Sprint(err) != fmt.Sprint(wantErr) {
				t.Fatalf("%q: got error %v, want %v", body, err, wantErr)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Fatalf("%q: (-want +got):\n%s", body, diff)
			}
		}
	})
}

// TestDecoderKnowsTools checks that a prompt encoded by package chat is read by the fast
// path if its list of tools is cached, and only then.
func TestDecoderKnowsTools(t *testing.T) {
	t.Parallel()
	var d Decoder
	body := conversation(t, "read")
	if _, unknown, ok := d.quick(body); ok || !strings.HasPrefix(unknown, `[{"type":"function"`) || !strings.HasSuffix(unknown, `}]`) {
		t.Errorf("new tools: got %q and %t, want the list", unknown, ok)
	}
	if _, err := d.Decode(strings.NewReader(body), 0); err != nil {
		t.Fatal(err)
	}
	if _, _, ok := d.quick(body); !ok {
		t.Error("tools that are known: got a request that cannot be read")
	}
	if _, unknown, ok := d.quick(conversation(t, "write")); ok || unknown == "" {
		t.Errorf("other tools: got %q and %t, want the list", unknown, ok)
	}
	nameless := conversation(t, "")
	for range 2 {
		if _, err := d.Decode(strings.NewReader(nameless), 0); err == nil {
			t.Error("a tool without a name: got no error")
		}
	}
}

// TestDecoderForgets checks that the cache of a decoder is bounded and contains the
// newest lists.
func TestDecoderForgets(t *testing.T) {
	t.Parallel()
	var d Decoder
	var wait sync.WaitGroup
	for worker := range 4 {
		wait.Go(func() {
			for i := range 3 * maxKits {
				tool := fmt.Sprintf("t%d-%d", i%(2*maxKits), worker)
				req, err := d.Decode(strings.NewReader(conversation(t, tool)), 0)
				if err != nil {
					t.Error(err)
				} else if got := req.Tools[0].Function.Name; got != tool {
					t.Errorf("got tool %s, want %s", got, tool)
				}
			}
		})
	}
	wait.Wait()
	if got := len(d.kits); got != maxKits {
		t.Errorf("got %d lists, want %d", got, maxKits)
	}
	last := conversation(t, "last")
	large := conversation(t, strings.Repeat("x", maxKit))
	for _, body := range []string{last, large} {
		if _, err := d.Decode(strings.NewReader(body), 0); err != nil {
			t.Fatal(err)
		}
	}
	if _, _, ok := d.quick(last); !ok {
		t.Error("the newest list is not known")
	}
	if _, _, ok := d.quick(large); ok {
		t.Errorf("a list of more than %d bytes is known", maxKit)
	}
}

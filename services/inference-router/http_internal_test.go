package router

import (
	"bufio"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/openai/openai-go/v3/packages/ssestream"

	"github.com/anima-run/anima/pkg/api"

	"github.com/anima-run/anima/services/inference-router/internal/surface"
)

// TestSilentStream checks that a stream without text gets comments, that the events after
// them are those of any other stream, and that a failure after them is an event.
func TestSilentStream(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		dialect   surface.Dialect
		first     string // in the first event
		end, fail string // in the last event
	}{
		"openai":    {surface.OpenAI{}, `"role":"assistant"`, "[DONE]", `"error"`},
		"responses": {surface.Responses{}, "response.created", "response.completed", "response.failed"},
		"anthropic": {surface.Anthropic{}, "message_start", "message_stop", `"error"`},
	} {
		for _, err := range []error{nil, api.Errorf(api.Unavailable, "it broke")} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				commented := make(chan struct{})
				srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
					out := newHTTPStream(c.dialect.Stream(w, surface.Head{ID: "1", Model: "m"}), func() { t.Error("the call was canceled") }, time.Millisecond)
					defer out.stop()
					<-commented
					out.end(api.Completion{Model: "m", Text: "yes", Finish: api.FinishStop}, err, func(error) { t.Error("the failure has a status of its own") })
				}))
				t.Cleanup(srv.Close)
				res, failed := http.Get(srv.URL)
				if failed != nil {
					t.Fatal(failed)
				}
				t.Cleanup(func() { _ = res.Body.Close() }) // it was only read
				in := bufio.NewReader(res.Body)
				for range 3 {
					if line, err := in.ReadString('\n'); err != nil || line != ":\n" || !strings.HasPrefix(res.Header.Get("Content-Type"), "text/event-stream") {
						t.Fatalf("got %q, %v, %v; want a comment of a stream", line, err, res.Header)
					}
				}
				close(commented)
				var got []string
				stream := ssestream.NewDecoder(&http.Response{Header: res.Header, Body: io.NopCloser(in)})
				for stream.Next() {
					got = append(got, stream.Event().Type+string(stream.Event().Data))
				}
				last := c.end
				if err != nil {
					last = c.fail
				}
				if len(got) == 0 || err == nil && !strings.Contains(got[0], c.first) || !strings.Contains(got[len(got)-1], last) {
					t.Errorf("got the events %q; want the first with %s and the last with %s", got, c.first, last)
				}
			})
		}
	}
}

package mcp

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/anima-run/anima/pkg/config"
	"github.com/anima-run/anima/pkg/safehttp"
)

// script is a transport and its connection, whose messages are given.
type script struct {
	sdk.Connection

	messages []jsonrpc.Message
}

func (s *script) Connect(context.Context) (sdk.Connection, error) { return s, nil }

func (s *script) Read(context.Context) (jsonrpc.Message, error) {
	if len(s.messages) == 0 {
		return nil, io.EOF
	}
	m := s.messages[0]
	s.messages = s.messages[1:]
	return m, nil
}

func TestUnusedNotificationsAreDropped(t *testing.T) {
	t.Parallel()
	s := &script{}
	for range 1_000 {
		s.messages = append(s.messages, &jsonrpc.Request{Method: "notifications/progress"}, &jsonrpc.Request{Method: methodChanged})
	}
	s.messages = append(s.messages, &jsonrpc.Response{}, &jsonrpc.Request{Method: "unknown"})
	c, err := bounded{s, &atomic.Bool{}}.Connect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for {
		m, err := c.Read(t.Context())
		if err != nil {
			break
		}
		if r, request := m.(*jsonrpc.Request); request {
			got = append(got, r.Method)
		} else {
			got = append(got, "an answer")
		}
	}
	if want := []string{methodChanged, "an answer"}; !slices.Equal(got, want) {
		t.Errorf("delivered %q, want %q", got, want)
	}
}

// TestMissingParameters tests that a notification without its parameters does not end the
// process: the library executes its handlers in goroutines of its own.
func TestMissingParameters(t *testing.T) {
	t.Parallel()
	near, far := sdk.NewInMemoryTransports()
	server, err := far.Connect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var l link
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = l.client().Connect(t.Context(), near, nil) // the server does not answer
	}()
	for _, method := range []string{
		"cancelled", "tools/list_changed", "prompts/list_changed", "resources/list_changed", "resources/updated", "message", "progress",
		"elicitation/complete", "subscriptions/acknowledged", "unknown",
	} {
		if err := server.Write(t.Context(), &jsonrpc.Request{Method: "notifications/" + method}); err != nil {
			t.Fatal(err)
		}
	}
	for _, method := range []string{"roots/list", "sampling/createMessage", "elicitation/create", "completion/complete", "unknown", "ping"} {
		id, err := jsonrpc.MakeID(method)
		if err != nil {
			t.Fatal(err)
		}
		if err := server.Write(t.Context(), &jsonrpc.Request{ID: id, Method: method}); err != nil {
			t.Fatal(err)
		}
		for {
			m, err := server.Read(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if r, answer := m.(*jsonrpc.Response); answer && r.ID == id {
				if (r.Error == nil) != (method == "ping") {
					t.Errorf("%s was answered with the error %v", method, r.Error)
				}
				break
			}
		}
	}
	if !l.stale.Load() {
		t.Error("the change of the list was not noticed")
	}
	if err := server.Close(); err != nil {
		t.Error(err)
	}
	<-ended
}

// TestLongStreamEnds tests that a server at a URL cannot send without end.
func TestLongStreamEnds(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for part := make([]byte, 1<<20); ; {
			if _, err := w.Write(part); err != nil {
				return
			}
		}
	}))
	t.Cleanup(server.Close)
	w, err := dial(Server{URL: config.Secret(server.URL)}, safehttp.Options{AllowPrivate: true}, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	defer w.cut()
	res, err := w.(*address).client.Get(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	if n, err := io.Copy(io.Discard, res.Body); err == nil || n > maxStream || n < maxStream-1<<20 {
		t.Errorf("read %d bytes, %v; want an error after %d", n, err, maxStream)
	}
}

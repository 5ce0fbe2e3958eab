package e2e

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/valyala/fasthttp"
)

// gatewayRole is the variable that turns the test program into a server of
// TestGatewayCost: a provider, or one of the two floors, which forward requests to the
// address in gatewayTo and do nothing else.
const (
	gatewayRole = "ANIMA_E2E_GATEWAY"
	gatewayTo   = "ANIMA_E2E_GATEWAY_TO"
)

// serveGateway serves a role on a free port, whose address it prints. It returns only
// errors.
func serveGateway(role string) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println("http://" + l.Addr().String())
	switch role {
	case "provider":
		return serve(l, http.HandlerFunc(answerAtOnce))
	case "nethttp":
		to, err := url.Parse(os.Getenv(gatewayTo))
		if err != nil {
			return err
		}
		proxy := httputil.NewSingleHostReverseProxy(to)
		proxy.FlushInterval = -1
		proxy.Transport = &http.Transport{MaxIdleConns: 2048, MaxIdleConnsPerHost: 1024}
		return serve(l, proxy)
	case "fasthttp":
		to := &fasthttp.HostClient{Addr: strings.TrimPrefix(os.Getenv(gatewayTo), "http://"), MaxConns: 2048, StreamResponseBody: true}
		return (&fasthttp.Server{Handler: func(c *fasthttp.RequestCtx) {
			if err := to.Do(&c.Request, &c.Response); err != nil {
				c.Error(err.Error(), http.StatusBadGateway)
			}
		}}).Serve(l)
	}
	return fmt.Errorf("%s=%q is no role", gatewayRole, role)
}

func serve(l net.Listener, h http.Handler) error {
	return (&http.Server{Handler: h, ReadHeaderTimeout: time.Minute}).Serve(l)
}

// Answers of the provider: a short one, and 32 tokens of which each is a chunk.
const (
	gatewayAnswer = `{"id":"c","object":"chat.completion","created":1,"model":"bench","choices":[{"index":0,"message":{"role":"assistant","content":"a short answer of the model"},"finish_reason":"stop"}],"usage":{"prompt_tokens":50,"completion_tokens":7,"total_tokens":57}}`
	gatewayChunk  = `data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"bench","choices":[{"index":0,"delta":{"content":"word "},"finish_reason":null}]}` + "\n\n"
	gatewayEnd    = `data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"bench","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}` + "\n\n" +
		`data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"bench","choices":[],"usage":{"prompt_tokens":50,"completion_tokens":32,"total_tokens":82}}` + "\n\ndata: [DONE]\n\n"
	gatewayTokens = 32
)

// answerAtOnce is the provider. The answer of the model "open" stays open after its first
// token until its client disconnects.
func answerAtOnce(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	switch {
	case r.URL.Path == "/v1/models":
		_, _ = io.WriteString(w, `{"object":"list","data":[{"id":"bench","object":"model"},{"id":"open","object":"model"}]}`)
	case err != nil || r.URL.Path != "/v1/chat/completions":
		w.WriteHeader(http.StatusNotFound)
	case !bytes.Contains(body, []byte(`"stream":true`)):
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, gatewayAnswer)
	default:
		out := http.NewResponseController(w)
		w.Header().Set("Content-Type", "text/event-stream")
		for range gatewayTokens {
			_, _ = io.WriteString(w, gatewayChunk)
			_ = out.Flush()
			if bytes.Contains(body, []byte(`"model":"open"`)) {
				<-r.Context().Done()
				return
			}
		}
		_, _ = io.WriteString(w, gatewayEnd)
	}
}

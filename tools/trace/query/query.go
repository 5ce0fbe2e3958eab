// Package query reads traces from a Jaeger through its API /api/v3, which answers in
// OTLP's JSON and preserves both the parent and the links of a span. It must not use the
// older API, which merges the two. It changes nothing in Jaeger and does not evaluate
// traces.
package query

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// ErrNotFound means that Jaeger has no such trace, or does not have it yet.
var ErrNotFound = errors.New("no such trace in Jaeger")

// largest is the maximum size of an answer in bytes.
const largest = 512 << 20

// Client reads from one Jaeger. Its methods may be called concurrently.
type Client struct {
	Base string       // such as http://127.0.0.1:16686, without /api
	HTTP *http.Client // default http.DefaultClient
}

// Trace is one trace as Jaeger has it, with the spans in the order of their start times.
type Trace struct {
	ID    string // 32 hex digits
	Spans []Span
}

// Span is one span of a trace.
type Span struct {
	TraceID, ID string
	Parent      string // empty for a root
	Service     string
	Name        string
	Kind        Kind
	Start, End  time.Time
	Attributes  map[string]string // lists are encoded as JSON
	Links       []Link
	Events      []Event
	Failed      bool   // its status is an error
	Reason      string // of the error
}

// Link is a link to another span.
type Link struct{ TraceID, SpanID string }

// Event is an event at a time within a span.
type Event struct {
	Name string
	At   time.Time
}

// Kind is the kind of a span, with the numbers of OTLP.
type Kind int

// Kinds of spans.
const (
	Unspecified Kind = iota
	Internal
	Server
	ClientKind
	Producer
	Consumer
)

// Duration returns the duration of the span, which is never negative.
func (s Span) Duration() time.Duration { return max(0, s.End.Sub(s.Start)) }

// Roots returns the spans without a parent.
func (t Trace) Roots() []Span {
	var roots []Span
	for _, s := range t.Spans {
		if s.Parent == "" {
			roots = append(roots, s)
		}
	}
	return roots
}

// Services returns the names of the services with spans in the trace, sorted.
func (t Trace) Services() []string {
	var all []string
	for _, s := range t.Spans {
		if !slices.Contains(all, s.Service) {
			all = append(all, s.Service)
		}
	}
	slices.Sort(all)
	return all
}

// TurnTrace returns the id of a turn's trace. It is derived from the turn's id, as by
// pkg/telemetry.DeriveIDs("turn", id), so that the trace of a turn is found without a
// search.
func TurnTrace(turn string) string { return hex.EncodeToString(turnSum(turn)[:16]) }

// TurnRoot returns the id of the root span of a turn's trace.
func TurnRoot(turn string) string { return hex.EncodeToString(turnSum(turn)[16:24]) }

func turnSum(turn string) []byte {
	h := sha256.New()
	for _, part := range []string{"turn", turn} {
		var size [8]byte
		binary.BigEndian.PutUint64(size[:], uint64(len(part)))
		h.Write(size[:])
		h.Write([]byte(part))
	}
	return h.Sum(nil)
}

// Trace returns one trace. The error is [ErrNotFound] if there is none.
func (c Client) Trace(ctx context.Context, id string) (Trace, error) {
	if raw, err := hex.DecodeString(id); err != nil || len(raw) != 16 {
		return Trace{}, fmt.Errorf("trace id %q: want 32 hex digits", id)
	}
	all, err := c.traces(ctx, "/api/v3/traces/"+id, nil)
	if err != nil {
		return Trace{}, fmt.Errorf("trace %s: %w", id, err)
	}
	for _, t := range all {
		if t.ID == strings.ToLower(id) {
			return t, nil
		}
	}
	return Trace{}, fmt.Errorf("trace %s: %w", id, ErrNotFound)
}

// Services returns the names of the services that Jaeger has spans of.
func (c Client) Services(ctx context.Context) ([]string, error) {
	var v struct{ Services []string }
	if err := c.get(ctx, "/api/v3/services", nil, func(r io.Reader) error { return json.NewDecoder(r).Decode(&v) }); err != nil && !errors.Is(err, ErrNotFound) {
		return nil, fmt.Errorf("services: %w", err)
	}
	slices.Sort(v.Services)
	return v.Services, nil
}

// page is the maximum number of traces in one answer.
const page = 200

// Since returns all traces in which the service has a span that started between the two
// times. Jaeger has no paging: if an answer is full, Since requests the two halves of the
// period.
func (c Client) Since(ctx context.Context, service string, from, to time.Time) ([]Trace, error) {
	found := map[string]Trace{}
	if err := c.since(ctx, service, from, to, found); err != nil {
		return nil, fmt.Errorf("traces of %s: %w", service, err)
	}
	return slices.SortedFunc(maps.Values(found), func(a, b Trace) int { return a.Spans[0].Start.Compare(b.Spans[0].Start) }), nil
}

func (c Client) since(ctx context.Context, service string, from, to time.Time, found map[string]Trace) error {
	q := url.Values{
		"query.service_name": {service}, "query.num_traces": {strconv.Itoa(page)},
		"query.start_time_min": {from.UTC().Format(time.RFC3339Nano)}, "query.start_time_max": {to.UTC().Format(time.RFC3339Nano)},
	}
	all, err := c.traces(ctx, "/api/v3/traces", q)
	if errors.Is(err, ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, t := range all {
		found[t.ID] = t
	}
	if len(all) < page {
		return nil
	}
	half := from.Add(to.Sub(from) / 2)
	if to.Sub(from) < time.Millisecond {
		return fmt.Errorf("more than %d traces began in a millisecond; ask for them one by one", page)
	}
	return errors.Join(c.since(ctx, service, from, half, found), c.since(ctx, service, half, to, found))
}

func (c Client) traces(ctx context.Context, path string, q url.Values) ([]Trace, error) {
	var all []Trace
	err := c.get(ctx, path, q, func(r io.Reader) (err error) { all, err = Decode(r); return err })
	return all, err
}

func (c Client) get(ctx context.Context, path string, q url.Values, read func(io.Reader) error) error {
	u := strings.TrimSuffix(c.Base, "/") + path
	if q == nil {
		q = url.Values{}
	}
	if path != "/api/v3/services" {
		// Without raw_traces Jaeger adjusts the spans for display.
		q.Set("raw_traces", "true")
		q.Set("query.raw_traces", "true")
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u+"?"+q.Encode(), nil)
	if err != nil {
		return err
	}
	res, err := cmp.Or(c.HTTP, http.DefaultClient).Do(req)
	if err != nil {
		return fmt.Errorf("%w; check that Jaeger is running there", err)
	}
	defer res.Body.Close() // only read from
	switch res.StatusCode {
	case http.StatusOK:
		return read(io.LimitReader(res.Body, largest))
	case http.StatusNotFound:
		// Jaeger answers in JSON; a page of another program means that the URL is wrong.
		if body, err := io.ReadAll(io.LimitReader(res.Body, 1<<10)); err == nil && strings.Contains(string(body), "httpCode") {
			return ErrNotFound
		}
		return fmt.Errorf("%s: not found, and the server is not Jaeger; want the URL of Jaeger's API, such as http://127.0.0.1:16686", u)
	default:
		body, err := io.ReadAll(io.LimitReader(res.Body, 1<<10))
		return errors.Join(fmt.Errorf("%s: %s: %s", u, res.Status, strings.TrimSpace(string(body))), err)
	}
}

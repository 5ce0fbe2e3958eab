// Package kube accesses the lab's API server with plain HTTP and the administrator's
// certificate: it reads objects and follows lists as they change. It must not depend on
// the types of Kubernetes; the caller defines types with the fields that it needs.
package kube

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
)

// Client is a client of one API server.
type Client struct {
	server string
	http   *http.Client
}

// New returns a client for server, whose form is https://ADDRESS:PORT.
func New(server string, h *http.Client) *Client { return &Client{server: server, http: h} }

// HTTPClient returns a client that presents the certificate and key of a user, and
// accepts servers whose certificate ca has signed. dial may be nil.
func HTTPClient(ca, cert, key string, dial func(ctx context.Context, network, addr string) (net.Conn, error)) (*http.Client, error) {
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		return nil, err
	}
	raw, err := os.ReadFile(ca)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(raw) {
		return nil, fmt.Errorf("%s holds no certificate", ca)
	}
	return &http.Client{Transport: &http.Transport{
		DialContext:       dial,
		TLSClientConfig:   &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12},
		ForceAttemptHTTP2: true,
		// Pings detect a server that has disappeared without closing the connection;
		// otherwise a watch would wait without limit.
		HTTP2: &http.HTTP2Config{SendPingTimeout: 10 * time.Second, PingTimeout: 5 * time.Second},
	}}, nil
}

// Get decodes the answer to GET path into out, which may be nil. A status other than 200
// is an error with the beginning of the answer.
func (c *Client) Get(ctx context.Context, path string, out any) error {
	body, err := c.open(ctx, path)
	if err != nil {
		return err
	}
	defer func() { _ = body.Close() }()
	if out == nil {
		_, err = io.Copy(io.Discard, body)
		return err
	}
	return json.NewDecoder(body).Decode(out)
}

// Text returns the answer to GET path unchanged, such as a pod's log.
func (c *Client) Text(ctx context.Context, path string) (string, error) {
	body, err := c.open(ctx, path)
	if err != nil {
		return "", err
	}
	defer func() { _ = body.Close() }()
	text, err := io.ReadAll(body)
	return string(text), err
}

// Lines calls f for each line of the answer to GET path, until the answer or ctx ends.
// With follow=true a pod's log ends with the pod.
func (c *Client) Lines(ctx context.Context, path string, f func(string)) error {
	body, err := c.open(ctx, path)
	if err != nil {
		return err
	}
	defer func() { _ = body.Close() }()
	lines := bufio.NewScanner(body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		f(lines.Text())
	}
	return lines.Err()
}

func (c *Client) open(ctx context.Context, path string) (io.ReadCloser, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.server+path, nil)
	if err != nil {
		return nil, err
	}
	res, err := c.http.Do(req)
	if err != nil {
		return nil, err
	}
	if res.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(res.Body, 300))
		_ = res.Body.Close()
		return nil, &StatusError{Path: path, Code: res.StatusCode, Text: string(text)}
	}
	return res.Body, nil
}

// StatusError is the error for a status other than 200.
type StatusError struct {
	Path string
	Code int
	Text string
}

// Error returns the path, the status and the text of the answer.
func (e *StatusError) Error() string {
	return fmt.Sprintf("GET %s: status %d: %s", e.Path, e.Code, strings.TrimSpace(e.Text))
}

// Object is an object in a Store. Its JSON form is one item of a list.
type Object interface {
	Key() string // identifies the object over all of its versions
}

// Store is a copy of one list of the API server that follows its changes. The zero value
// is not usable; see NewStore. Its methods may be called concurrently.
type Store[T Object] struct {
	changed func()
	mu      sync.Mutex
	items   map[string]T
	synced  bool
}

// NewStore returns an empty store. It calls changed after every change, from the
// goroutine of Follow.
func NewStore[T Object](changed func()) *Store[T] {
	return &Store[T]{changed: changed, items: map[string]T{}}
}

// Items returns the objects in the order of their keys, and whether the list has been
// read at least once.
func (s *Store[T]) Items() ([]T, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]T, 0, len(s.items))
	for _, k := range slices.Sorted(maps.Keys(s.items)) {
		out = append(out, s.items[k])
	}
	return out, s.synced
}

// Follow updates the store with the list at path until ctx ends. While the server cannot
// be reached, the store keeps its content. failed is called with each error.
func (s *Store[T]) Follow(ctx context.Context, c *Client, path string, failed func(error)) {
	for ctx.Err() == nil {
		if err := s.follow(ctx, c, path); err != nil && ctx.Err() == nil {
			failed(fmt.Errorf("follow %s: %w", path, err))
		}
		select {
		case <-ctx.Done():
		case <-time.After(300 * time.Millisecond):
		}
	}
}

func (s *Store[T]) follow(ctx context.Context, c *Client, path string) error {
	var list struct {
		Metadata struct{ ResourceVersion string }
		Items    []T
	}
	if err := c.Get(ctx, path, &list); err != nil {
		return err
	}
	all := make(map[string]T, len(list.Items))
	for _, it := range list.Items {
		all[it.Key()] = it
	}
	s.change(func() { s.items, s.synced = all, true })
	body, err := c.open(ctx, path+"?watch=1&timeoutSeconds=600&resourceVersion="+list.Metadata.ResourceVersion)
	if err != nil {
		return err
	}
	defer func() { _ = body.Close() }()
	for dec := json.NewDecoder(body); ; {
		var ev struct {
			Type   string
			Object json.RawMessage
		}
		if err := dec.Decode(&ev); errors.Is(err, io.EOF) {
			return nil // the server ends a watch after a timeout; read the list again
		} else if err != nil {
			return err
		}
		if ev.Type == "ERROR" {
			return fmt.Errorf("the watch ended: %.200s", ev.Object)
		}
		var it T
		if err := json.Unmarshal(ev.Object, &it); err != nil {
			return err
		}
		s.change(func() {
			if ev.Type == "DELETED" {
				delete(s.items, it.Key())
			} else {
				s.items[it.Key()] = it
			}
		})
	}
}

func (s *Store[T]) change(f func()) {
	s.mu.Lock()
	f()
	s.mu.Unlock()
	s.changed()
}

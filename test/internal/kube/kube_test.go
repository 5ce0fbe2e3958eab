package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"reflect"
	"testing"
)

type thing struct {
	Metadata struct{ Name string }
	Size     int
}

func (t thing) Key() string { return t.Metadata.Name }

func item(name string, size int) string {
	return fmt.Sprintf(`{"metadata":{"name":%q},"size":%d}`, name, size)
}

func TestStoreFollows(t *testing.T) {
	t.Parallel()
	events := make(chan string)
	lists := make(chan string, 2)
	lists <- `{"metadata":{"resourceVersion":"7"},"items":[` + item("a", 1) + `,` + item("b", 2) + `]}`
	lists <- `{"metadata":{"resourceVersion":"9"},"items":[` + item("z", 9) + `]}`
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("watch") == "" {
			select {
			case l := <-lists:
				_, _ = fmt.Fprint(w, l)
			case <-r.Context().Done():
			}
			return
		}
		if v := r.URL.Query().Get("resourceVersion"); v != "7" && v != "9" {
			t.Errorf("watch from version %q", v)
		}
		w.(http.Flusher).Flush()
		for {
			select {
			case e := <-events:
				if e == "" {
					return
				}
				_, _ = fmt.Fprintln(w, e)
				w.(http.Flusher).Flush()
			case <-r.Context().Done():
				return
			}
		}
	}))
	defer s.Close()
	changed := make(chan struct{}, 16)
	st := NewStore[thing](func() { changed <- struct{}{} })
	if _, ok := st.Items(); ok {
		t.Error("an empty store reports that it has the list")
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		st.Follow(ctx, New(s.URL, s.Client()), "/things", func(err error) { t.Log(err) })
	}()
	sizes := func() map[string]int {
		<-changed
		items, ok := st.Items()
		if !ok {
			t.Error("the list was read, and the store denies it")
		}
		out := map[string]int{}
		for _, it := range items {
			out[it.Key()] = it.Size
		}
		return out
	}
	check := func(what string, want map[string]int) {
		t.Helper()
		if got := sizes(); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got %v, want %v", what, got, want)
		}
	}
	check("list", map[string]int{"a": 1, "b": 2})
	events <- `{"type":"MODIFIED","object":` + item("a", 3) + `}`
	check("modified", map[string]int{"a": 3, "b": 2})
	events <- `{"type":"ADDED","object":` + item("c", 4) + `}`
	check("added", map[string]int{"a": 3, "b": 2, "c": 4})
	events <- `{"type":"DELETED","object":` + item("b", 2) + `}`
	check("deleted", map[string]int{"a": 3, "c": 4})
	// The server no longer has the version, so the list is read again.
	events <- `{"type":"ERROR","object":{"code":410}}`
	check("read again", map[string]int{"z": 9})
	cancel()
	s.CloseClientConnections()
	<-ended
}

func TestGetTellsWhatTheServerSays(t *testing.T) {
	t.Parallel()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/ok" {
			_ = json.NewEncoder(w).Encode(map[string]int{"size": 5})
			return
		}
		http.Error(w, "no such thing", http.StatusNotFound)
	}))
	defer s.Close()
	c := New(s.URL, s.Client())
	var got thing
	if err := c.Get(t.Context(), "/ok", &got); err != nil || got.Size != 5 {
		t.Errorf("got %+v %v, want size 5", got, err)
	}
	var st *StatusError
	if err := c.Get(t.Context(), "/none", nil); !errors.As(err, &st) || st.Code != http.StatusNotFound || st.Text != "no such thing\n" {
		t.Errorf("got %v, want status 404 with its text", err)
	}
}

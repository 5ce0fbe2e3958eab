package providertest

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/anima-run/anima/services/inference-router/internal/provider"
)

func refusals(t *testing.T, open Open) {
	for name, c := range map[string]struct {
		fault Fault
		want  provider.Kind
		after time.Duration
	}{
		"rate limit":        {fault: Fault{Status: 429, RetryAfter: "7"}, want: provider.RateLimited, after: 7 * time.Second},
		"rate limit, bare":  {fault: Fault{Status: 429}, want: provider.RateLimited},
		"server error":      {fault: Fault{Status: 500}, want: provider.RetrySame},
		"bad gateway":       {fault: Fault{Status: 502}, want: provider.Failover},
		"overloaded":        {fault: Fault{Status: 503, RetryAfter: "1"}, want: provider.RetrySame, after: time.Second},
		"no such model":     {fault: Fault{Status: 404, Message: "the model m-1 does not exist"}, want: provider.NoModel},
		"no such path":      {fault: Fault{Status: 404}, want: provider.Endpoint},
		"no money":          {fault: Fault{Status: 402}, want: provider.Quota},
		"bad request":       {fault: Fault{Status: 400}, want: provider.Fatal},
		"wrong key":         {fault: Fault{Status: 401}, want: provider.Auth},
		"prompt too long":   {fault: Fault{Status: 400, ContextTooLong: true}, want: provider.ContextTooLong},
		"key in the answer": {fault: Fault{Status: 401, Message: "key " + Key + " is wrong"}, want: provider.Auth},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, s := open(t)
			fault := c.fault
			if fault.Message == "" {
				fault.Message = "no"
			}
			s.Next(func(a *Answer) { a.Fail(fault) })
			res, err := p.Complete(t.Context(), Ask("hi"), refuse(t))
			check(t, err, c.want, fault.Status)
			if e := (*provider.Error)(nil); errors.As(err, &e) && e.RetryAfter != c.after {
				t.Errorf("retry after: got %s, want %s", e.RetryAfter, c.after)
			}
			nothing(t, res)
			once(t, s)
		})
	}

	t.Run("a proxy's page", func(t *testing.T) {
		t.Parallel()
		p, s := open(t)
		s.Next(func(a *Answer) { a.Page(502, "<h1>Bad Gateway</h1>") })
		res, err := p.Complete(t.Context(), Ask("hi"), refuse(t))
		check(t, err, provider.Failover, 502)
		nothing(t, res)
		once(t, s)
	})

	t.Run("an empty prompt is not sent", func(t *testing.T) {
		t.Parallel()
		p, s := open(t)
		_, err := p.Complete(t.Context(), provider.Request{Model: "m-1"}, nil)
		check(t, err, provider.Fatal, 0)
		if got, _ := s.Requests(); len(got) != 0 {
			t.Errorf("got %d calls, want none", len(got))
		}
	})
}

func broken(t *testing.T, open Open) {
	for name, c := range map[string]struct {
		play func(*Answer)
		want provider.Kind
		text string // the partial text
	}{
		"reset in the middle":    {func(a *Answer) { a.Text("half"); a.Reset() }, provider.Failover, "half"},
		"ended without a reason": {func(a *Answer) { a.Text("half") }, provider.Failover, "half"},
		"done without a reason":  {func(a *Answer) { a.Text("half"); a.Done() }, provider.Failover, "half"},
		"nothing in it":          {func(a *Answer) { a.Empty(); a.Done() }, provider.Failover, ""},
		"not the protocol":       {func(a *Answer) { a.Text("half"); a.Raw("data: {\"choices\": [{\n\n"); a.Hold() }, provider.Failover, "half"},
		"a page":                 {func(a *Answer) { a.Page(200, "<h1>Welcome</h1>") }, provider.Endpoint, ""},
		"a fault in the stream": {func(a *Answer) {
			a.Text("half")
			a.FailInStream(Fault{Status: 503, Message: "overloaded " + Key})
		}, provider.RetrySame, "half"},
		"a call cut off": {func(a *Answer) { a.Text("half"); a.Call(0, "c1", "exec", `{"comm`); a.Reset() }, provider.Failover, "half"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, s := open(t)
			s.Next(c.play)
			res, err := p.Complete(t.Context(), Ask("hi"), nil)
			check(t, err, c.want, 0)
			if res.Text != c.text || res.Finish != "" {
				t.Errorf("what had arrived: got %+v, want text %q", res, c.text)
			}
			if !res.Usage.Estimated || res.Usage.Input == 0 {
				t.Errorf("usage: got %+v, want an estimate, the provider bills this", res.Usage)
			}
			once(t, s)
		})
	}

	t.Run("before any answer", func(t *testing.T) {
		t.Parallel()
		p, s := open(t)
		s.Next(func(a *Answer) { a.Reset() })
		res, err := p.Complete(t.Context(), Ask("hi"), refuse(t))
		check(t, err, provider.Failover, 0)
		nothing(t, res)
		once(t, s)
	})

	t.Run("after the reason it is whole", func(t *testing.T) {
		t.Parallel()
		p, s := open(t)
		s.Next(func(a *Answer) { a.Text("all"); a.Finish(provider.FinishStop); a.Reset() })
		res, err := p.Complete(t.Context(), Ask("hi"), nil)
		if err != nil || res.Text != "all" || !res.Usage.Estimated {
			t.Errorf("got %+v, %v; want the whole answer with estimated usage", res, err)
		}
	})
}

func stopping(t *testing.T, open Open) {
	t.Run("at the deadline", func(t *testing.T) {
		t.Parallel()
		p, s := open(t)
		s.Next(func(a *Answer) { a.Text("half"); a.Hold() })
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		_, err := p.Complete(ctx, Ask("hi"), nil)
		check(t, err, provider.Canceled, 0)
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v, want context.DeadlineExceeded in the chain", err)
		}
	})

	t.Run("when the caller cancels", func(t *testing.T) {
		t.Parallel()
		p, s := open(t)
		s.Next(func(a *Answer) { a.Text("half"); a.Hold() })
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		res, err := p.Complete(ctx, Ask("hi"), func(string) error { cancel(); return nil })
		check(t, err, provider.Canceled, 0)
		if !errors.Is(err, context.Canceled) {
			t.Errorf("got %v, want context.Canceled in the chain", err)
		}
		if res.Text != "half" || !res.Usage.Estimated || res.Usage.Output == 0 {
			t.Errorf("what had arrived: got %+v", res)
		}
		left(t, s)
	})

	t.Run("when the reader refuses", func(t *testing.T) {
		t.Parallel()
		p, s := open(t)
		s.Next(func(a *Answer) { a.Text("half"); a.Hold() })
		full := errors.New("the reader is full")
		res, err := p.Complete(t.Context(), Ask("hi"), func(string) error { return full })
		check(t, err, provider.Canceled, 0)
		if !errors.Is(err, full) || res.Text != "half" {
			t.Errorf("got %+v, %v; want the reader's error in the chain", res, err)
		}
		left(t, s)
	})
}

// left waits until the server sees that the client has disconnected: it may stop working.
func left(t *testing.T, s *Script) {
	t.Helper()
	select {
	case <-s.Gone():
	case <-t.Context().Done():
		t.Error("the connection to the provider stayed open")
	}
}

// once checks that the adapter made one call: retries belong to the router.
func once(t *testing.T, s *Script) {
	t.Helper()
	if got, _ := s.Requests(); len(got) != 1 {
		t.Errorf("got %d calls, want 1", len(got))
	}
}

func nothing(t *testing.T, res provider.Response) {
	t.Helper()
	if res.Text != "" || res.ToolCalls != nil || res.Usage != (provider.Usage{}) {
		t.Errorf("got %+v, want nothing", res)
	}
}

func refuse(t *testing.T) func(string) error {
	return func(d string) error {
		t.Errorf("got delta %q of a refused call", d)
		return nil
	}
}

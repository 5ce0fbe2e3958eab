package loop

import (
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"
	"github.com/anima-run/anima/pkg/host"
	"github.com/anima-run/anima/pkg/wait"
)

// httpEvents streams a session's events. The id of an event is its sequence in the
// stream, so a client that reconnects with Last-Event-ID misses none. If several events
// have the same sequence, only the last has the id: a client that was disconnected
// between them receives all of them again. An id that the stream has not reached is
// refused: a stream that was restored from a backup has other events. Live events are not stored and have no id.
func (h *handlers) httpEvents(w http.ResponseWriter, r *http.Request) {
	session := r.PathValue("id")
	if _, err := h.store.Session(r.Context(), session); err != nil {
		host.WriteError(w, 0, err)
		return
	}
	var after uint64
	if last := r.Header.Get("Last-Event-ID"); last != "" {
		n, err := strconv.ParseUint(last, 10, 63)
		if err != nil {
			host.WriteError(w, 0, &api.Error{Code: api.Invalid, Message: "Last-Event-ID " + strconv.Quote(last) + " is not the id of an event", Next: "send the id of the last event you have, or none"})
			return
		}
		after = n
		// Without an answer of NATS the stream begins anyway: Events waits for NATS.
		if err := h.bus.CheckAfter(r.Context(), after, bus.SessionEvents(session)...); api.CodeOf(err) == api.Invalid {
			host.WriteError(w, 0, err)
			return
		}
	}
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-store")
	out := &eventWriter{w: w, flush: http.NewResponseController(w)}
	ctx, cancel := host.UntilStop(r.Context())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	for name, live := range map[string]api.Message{"stream:delta": api.StreamDelta{Session: session}, "loop:thinking": api.Thinking{Session: session}} {
		wg.Go(func() {
			defer cancel()
			err := h.bus.Subscribe(ctx, live.Subject().String(), func() {}, func(data []byte) {
				if out.write("", name, data) != nil {
					cancel()
				}
			})
			if err != nil && ctx.Err() == nil {
				h.log.WarnContext(ctx, "event stream ended", "err", err)
			}
		})
	}
	// Comments keep the connection of proxies open, and detect a disconnect.
	wg.Go(func() {
		wait.Every(ctx, 15*time.Second, func() {
			if out.write("", "", nil) != nil {
				cancel()
			}
		})
	})
	if out.write("", "", nil) != nil {
		return
	}
	err := h.bus.Events(ctx, after, func(m bus.Stored) error {
		id := strconv.FormatUint(m.Sequence, 10)
		if m.More {
			id = ""
		}
		name := strings.Replace(strings.Split(m.Subject, ".")[3], "_", ":", 1) // loop_start becomes loop:start (docs/reference/loop.md, Events)
		return out.write(id, name, m.Data)
	}, bus.SessionEvents(session)...)
	if err != nil && ctx.Err() == nil {
		h.log.WarnContext(ctx, "event stream ended", "err", err)
	}
}

type eventWriter struct {
	mu    sync.Mutex
	w     io.Writer
	flush *http.ResponseController
}

// write sends one event, or a comment if name is "".
func (e *eventWriter) write(id, name string, data []byte) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	text := ":\n\n"
	if name != "" {
		text = "event: " + name + "\ndata: " + string(data) + "\n\n" // JSON on one line
	}
	if id != "" {
		text = "id: " + id + "\n" + text
	}
	if _, err := io.WriteString(e.w, text); err != nil {
		return err
	}
	if err := e.flush.Flush(); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return err
	}
	return nil
}

package drill

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

// ears hear what the services say of errors while a load runs. A pod that is
// replaced takes its log with it, so it is read while it is written.
type ears struct {
	stop context.CancelFunc
	wg   sync.WaitGroup
	mu   sync.Mutex
	said []string // the first ones
}

const maxSaid = 200

// listen begins to hear.
func (w *world) listen(ctx context.Context) *ears {
	ctx, stop := context.WithCancel(ctx)
	e := &ears{stop: stop}
	since := time.Now().UTC().Format(time.RFC3339)
	e.wg.Go(func() {
		heard := map[string]bool{}
		for ctx.Err() == nil {
			pods, err := w.pods(ctx, "app.kubernetes.io/part-of=anima")
			if err != nil {
				pods = nil // the next time, perhaps
			}
			for _, p := range pods {
				name := p.Metadata.Labels["app.kubernetes.io/name"]
				if heard[p.Metadata.UID] || p.Status.Phase != "Running" || !slices.Contains(six, name) {
					continue
				}
				heard[p.Metadata.UID] = true
				e.wg.Go(func() {
					path := fmt.Sprintf("/api/v1/namespaces/%s/pods/%s/log?follow=true&sinceTime=%s", namespace, p.Metadata.Name, since)
					_ = w.API.Lines(ctx, path, func(line string) { e.hear(p.Metadata.Name, line) }) // a pod that goes ends its log
				})
			}
			sleep(ctx, time.Second)
		}
	})
	return e
}

func (e *ears) hear(pod, line string) {
	if !strings.Contains(line, `"level":"ERROR"`) && !strings.HasPrefix(line, "panic:") && !strings.HasPrefix(line, "fatal error:") {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.said) < maxSaid {
		e.said = append(e.said, pod+" "+line)
	}
}

// close ends it and returns what was heard.
func (e *ears) close() []string {
	e.stop()
	e.wg.Wait()
	return e.said
}

package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

// ears collects the errors in the logs of the services while a load runs. The log of a
// replaced pod is deleted with it, so the logs are followed.
type ears struct {
	stop context.CancelFunc
	wg   sync.WaitGroup
	mu   sync.Mutex
	said []string // the first ones
}

const maxSaid = 200

// listen starts to follow the logs.
func (w *world) listen(ctx context.Context) *ears {
	ctx, stop := context.WithCancel(ctx)
	e := &ears{stop: stop}
	since := time.Now().UTC().Format(time.RFC3339)
	e.wg.Go(func() {
		heard := map[string]bool{}
		for ctx.Err() == nil {
			pods, err := w.pods(ctx, "app.kubernetes.io/part-of=anima")
			if err != nil {
				pods = nil // retried in the next round
			}
			for _, p := range pods {
				name := p.Metadata.Labels["app.kubernetes.io/name"]
				if heard[p.Metadata.UID] || p.Status.Phase != "Running" || !slices.Contains(six, name) {
					continue
				}
				heard[p.Metadata.UID] = true
				e.wg.Go(func() {
					path := fmt.Sprintf("/api/v1/namespaces/%s/pods/%s/log?follow=true&sinceTime=%s", namespace, p.Metadata.Name, since)
					_ = w.api.Lines(ctx, path, func(line string) { e.hear(p.Metadata.Name, line) }) // the log ends with its pod
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

// close stops following the logs and returns the errors.
func (e *ears) close() []string {
	e.stop()
	e.wg.Wait()
	return e.said
}

package goal

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/anima-run/anima/pkg/api"

	"github.com/anima-run/anima/services/loop/internal/engine"
)

// todoTokens is the largest size of the list in a prompt, in tokens: a quarter of its
// text's length in bytes (docs/reference/goals.md, To-do list).
const todoTokens = 2000

// Todo renders the active goals, oldest first, with their tasks. The list is the last
// part of the prompt. If it exceeds [todoTokens], the oldest goals are left out, except
// the last one. Without an active goal the result is "".
func Todo(goals []State) string {
	var parts []string
	for i := range goals {
		if goals[i].Status == api.GoalActive {
			parts = append(parts, todoOf(&goals[i]))
		}
	}
	if len(parts) == 0 {
		return ""
	}
	const head = "# Goals that are worked on beside you\n"
	for {
		text := head + strings.Join(parts, "")
		if len(parts) == 1 || (len(text)+3)/4 <= todoTokens {
			return text
		}
		parts = parts[1:]
	}
}

func todoOf(s *State) string {
	var b strings.Builder
	estimate := api.Micros(0)
	if p := s.plan(); p != nil {
		estimate = p.Cost
	}
	fmt.Fprintf(&b, "\n## %s (%s, %s)\nbudget %s, spent %s\n", line(s.Title, 120), s.ID, s.Phase(), estimate, s.Spent())
	if s.Reason != "" {
		fmt.Fprintf(&b, "waits: %s\n", line(s.Reason, 200))
	}
	for _, t := range s.current() {
		switch t.Status {
		case api.TaskCompleted:
			fmt.Fprintf(&b, "- [x] %s: completed by %s\n", line(t.Title, 120), t.Assignee)
		case api.TaskRunning:
			fmt.Fprintf(&b, "- [~] %s: running, %s\n", line(t.Title, 120), t.Assignee)
		case api.TaskFailed, api.TaskCancelled:
			fmt.Fprintf(&b, "- [!] %s: %s, %s\n", line(t.Title, 120), t.Status, line(t.Error, 120))
		case api.TaskBlocked:
			fmt.Fprintf(&b, "- [ ] %s: blocked\n", line(t.Title, 120))
		case api.TaskPending, api.TaskAssigned:
			fmt.Fprintf(&b, "- [ ] %s: pending\n", line(t.Title, 120))
		}
	}
	return b.String()
}

// line returns s on one line, cut to n characters, so that s cannot imitate another line
// of the list.
func line(s string, n int) string {
	r := []rune(strings.Join(strings.Fields(s), " "))
	if len(r) <= n {
		return string(r)
	}
	return string(r[:n-1]) + "…"
}

// Source adds the list of goals to every prompt of an agent. It is safe for concurrent
// use.
type Source struct {
	Store Store

	mu   sync.Mutex
	kept map[string]todo // by agent
}

// todo is the list of an agent at a revision of its goals.
type todo struct{ revision, text string }

// maxKept is the number of lists at which the cache is cleared.
const maxKept = 1000

// Layer implements engine.Source. It reads the goals only if their revision has changed,
// and never if the revision says that none is active.
func (s *Source) Layer(ctx context.Context, a engine.Agent) (engine.Layer, error) {
	l := engine.Layer{Name: "todo", Budget: todoTokens, Last: true}
	if a.Revisions.Known {
		if a.Revisions.Goal == "" {
			return l, nil
		}
		s.mu.Lock()
		k := s.kept[a.ID]
		s.mu.Unlock()
		if k.revision == a.Revisions.Goal {
			l.Text = k.text
			return l, nil
		}
	}
	goals, err := s.Store.Goals(ctx, Query{Agent: a.ID, Status: api.GoalActive, Limit: 10})
	if err != nil {
		return engine.Layer{}, err
	}
	slices.Reverse(goals) // the oldest first
	l.Text = Todo(goals)
	if a.Revisions.Known { // a later change has another revision
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.kept == nil || len(s.kept) >= maxKept {
			s.kept = map[string]todo{}
		}
		s.kept[a.ID] = todo{a.Revisions.Goal, l.Text}
	}
	return l, nil
}

// Status describes a goal in one line.
func Status(s *State) string {
	p := s.Progress()
	out := fmt.Sprintf("%s %q: %s", s.ID, line(s.Title, 80), s.Phase())
	if p.Total > 0 {
		out += fmt.Sprintf(", %d of %d tasks completed", p.Completed, p.Total)
		for _, n := range []struct {
			n    int
			what string
		}{{p.Running, "running"}, {p.Pending, "pending"}, {p.Blocked, "blocked"}, {p.Failed, "failed"}} {
			if n.n > 0 {
				out += fmt.Sprintf(", %d %s", n.n, n.what)
			}
		}
	}
	out += ", spent " + s.Spent().String()
	if s.Version > 1 {
		out += fmt.Sprintf(", plan %d", s.Version)
	}
	if s.Reason != "" {
		out += "; " + line(s.Reason, 200)
	}
	return out
}

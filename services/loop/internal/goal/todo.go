package goal

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/anima-run/anima/pkg/api"

	"github.com/anima-run/anima/services/loop/internal/turn"
)

// todoTokens is what the list may take of a prompt, by the length of its text over
// four (spec-core-5 §8.9).
const todoTokens = 2000

// Todo renders the active goals, oldest first, with their tasks: the last thing that
// a model reads before it answers. Where the list grows too long the oldest goals
// are left out; one always stays. "" when there is no goal.
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

// line is s on one line, cut to n characters: nothing in it can look like a line of
// the list that it stands in.
func line(s string, n int) string {
	r := []rune(strings.Join(strings.Fields(s), " "))
	if len(r) <= n {
		return string(r)
	}
	return string(r[:n-1]) + "…"
}

// Source puts the list into every prompt of the agent. It is safe for concurrent use.
type Source struct {
	Store Store

	mu   sync.Mutex
	kept map[string]todo // by agent
}

// todo is the list of an agent at a revision of its goals.
type todo struct{ revision, text string }

// maxKept bounds the lists that are kept.
const maxKept = 1000

// Layer implements turn.Source. The goals are not read again while their revision is the
// same, and not at all if it says that none is active.
func (s *Source) Layer(ctx context.Context, a turn.Agent) (turn.Layer, error) {
	l := turn.Layer{Name: "todo", Budget: todoTokens, Last: true}
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
		return turn.Layer{}, err
	}
	slices.Reverse(goals) // the oldest first
	l.Text = Todo(goals)
	if a.Revisions.Known { // what has changed since has another revision
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.kept == nil || len(s.kept) >= maxKept {
			s.kept = map[string]todo{}
		}
		s.kept[a.ID] = todo{a.Revisions.Goal, l.Text}
	}
	return l, nil
}

// Status is one line on a goal, for people and prompts.
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

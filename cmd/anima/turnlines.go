package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"
)

// printTurns prints a line for each stored turn and each ended run of all agents, until ctx
// ends. The output is informational: errors are logged and not returned.
func (s *suite) printTurns(ctx context.Context, w io.Writer) {
	watched := []api.Subject{api.LoopPersist{}.Subject(), api.LoopEnd{}.Subject()}
	after, err := s.bus.LastEvents(ctx, watched...)
	if err != nil {
		s.log.Warn("last events not read, no turn lines are printed", "err", err)
		return
	}
	err = s.bus.Events(ctx, after, func(m bus.Stored) error {
		if text := s.turnLine(ctx, m); text != "" {
			fmt.Fprintln(w, text)
		}
		return nil
	}, watched...)
	if err != nil && ctx.Err() == nil {
		s.log.Warn("reading events failed, no further turn lines are printed", "err", err)
	}
}

// turnLine returns the line for an event; "" means none.
func (s *suite) turnLine(ctx context.Context, m bus.Stored) string {
	e, err := eventOf(m)
	if err != nil {
		return ""
	}
	var text string
	switch e.name {
	case "loop_persist":
		err = showAs(e, func(p api.LoopPersist) {
			if t, err := callFor[api.Turn](ctx, s.bus, api.GetTurn{Turn: p.Turn}); err == nil {
				text = lineOfTurn(t)
			}
		})
	case "loop_end":
		err = showAs(e, func(end api.LoopEnd) { text = lineOfEnd(end) })
	}
	if err != nil {
		return ""
	}
	return text
}

// lineOfTurn formats a turn: agent, input, tools, cost, tokens, duration and how it
// ended.
func lineOfTurn(t api.Turn) string {
	why := fmt.Sprintf("turn %d", t.Number)
	if t.Input != "" {
		why += " by " + string(t.By.Kind) + ` "` + line(t.Input, 40) + `"`
	}
	var tools []string
	for _, k := range t.Calls {
		tool := plain(k.Tool)
		if k.Outcome != api.OutcomeOK {
			tool += " " + string(k.Outcome)
		}
		tools = append(tools, tool)
	}
	took := time.Duration(t.EndedAt-t.StartedAt) * time.Microsecond
	return fmt.Sprintf("%s  %s  %s  %s  %s  %d tokens  %s  %s",
		clockTime(t.EndedAt), t.Agent, why, cmp.Or(strings.Join(tools, ", "), "no tools"), t.Cost, t.InputTokens+t.OutputTokens, took.Round(time.Millisecond), plain(t.Finish))
}

func lineOfEnd(m api.LoopEnd) string {
	how := "run ended"
	switch {
	case m.Outcome == api.OutcomeMerged:
		return ""
	case m.Outcome == api.OutcomeDropped || m.Outcome == api.OutcomeExpired:
		how = "message " + string(m.Outcome)
	case !m.Success:
		how = "run FAILED (" + line(m.Error, 80) + ")"
	}
	took := time.Duration(m.Duration) * time.Millisecond
	return fmt.Sprintf("%s  %s  %s  %d turns  %s  %s  %s",
		clockTime(m.At), m.Agent, how, m.Turns, m.Cost, took, line(m.Response, 60))
}

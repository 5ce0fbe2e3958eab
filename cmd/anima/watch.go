package main

import (
	"context"
	"fmt"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"
)

type sessionWatchCmd struct {
	Session string `arg:"" help:"The session, or an agent: its main session."`
	All     bool   `help:"Start with the session's first event; default is the beginning of its last run."`
	After   uint64 `help:"Only events after this sequence number."`
}

func (c sessionWatchCmd) Run(ctx context.Context, a *app) error {
	b, err := a.connect()
	if err != nil {
		return err
	}
	w := a.watcher(a.Out)
	w.view.echo = true
	if w.session, err = sessionOf(ctx, b, c.Session); err != nil {
		return err
	}
	if c.After == 0 && !c.All {
		if w.after, err = beforeLastRun(ctx, b, w.session); err != nil {
			return err
		}
	}
	a.disconnect() // the watcher opens its own connections
	w.after = max(w.after, c.After)
	if !a.json() && isTerminal(a.Out) {
		fmt.Fprintf(a.Err, "session %s; ctrl-c exits\n", w.session)
	}
	if err := w.follow(ctx); ctx.Err() == nil {
		return err
	}
	return nil
}

// sessionOf returns the id of the session with this id, or of the main session of the
// agent with this name.
func sessionOf(ctx context.Context, b *bus.Bus, name string) (string, error) {
	s, err := callFor[api.Session](ctx, b, api.GetSession{Session: name})
	if api.CodeOf(err) != api.NotFound {
		return s.ID, err
	}
	g, agentErr := callFor[api.Agent](ctx, b, api.GetAgent{Agent: name})
	if api.CodeOf(agentErr) == api.NotFound {
		return "", failure(api.NotFound, "there is no session and no agent "+name, "anima session list and anima agent list show the existing ones")
	}
	return g.Session, agentErr
}

// beforeLastRun returns the sequence after which the session's last run begins. It
// returns 0 if that is not known or there was no run.
func beforeLastRun(ctx context.Context, b *bus.Bus, session string) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	first, err := firstOfLastRun(ctx, b, session)
	if api.CodeOf(err) == api.NotFound {
		first, err = b.Last(ctx, api.LoopStart{Session: session}.Subject()) // of the previous release
	}
	if api.CodeOf(err) == api.NotFound {
		return 0, nil
	}
	return max(first.Sequence, 1) - 1, err
}

// firstOfLastRun returns the entry of the session's journal that holds the LoopStart of
// the last run. It goes backwards from the last entry to the first entry of each epoch.
// Errors: NotFound.
func firstOfLastRun(ctx context.Context, b *bus.Bus, session string) (bus.Stored, error) {
	journal := api.Journal{Session: session}.Subject()
	m, err := b.Last(ctx, journal)
	for err == nil {
		var e api.Journal
		if err := api.Decode(m.Data, &e); err != nil {
			return m, err
		}
		if e.Form == 0 {
			break
		}
		if m, err = b.Next(ctx, journal, e.Epoch); err != nil {
			break
		}
		if began, err := bus.Expand(m, api.LoopStart{}.Subject()); err != nil || len(began) > 0 {
			return m, err
		}
		if err := api.Decode(m.Data, &e); err != nil {
			return m, err
		}
		if e.Last == 0 {
			break
		}
		m, err = b.Next(ctx, journal, e.Last) // last entry of the previous owner
	}
	if err == nil {
		err = api.Errorf(api.NotFound, "session %s has no run", session)
	}
	return m, err
}

package loop

import (
	"context"
	"fmt"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"
	"github.com/anima-run/anima/pkg/host"
	"github.com/anima-run/anima/pkg/sqldb"

	"github.com/anima-run/anima/services/loop/internal/sqlstore"
)

// examine reports runs that have begun, have not ended and are in no queue: no replica
// will end them.
func examine(ctx context.Context, db *sqldb.DB, b *bus.Bus, now time.Time) ([]host.Finding, error) {
	store := sqlstore.New(db, "")
	begun, err := store.Unfinished(ctx, now.Add(-time.Minute).UnixMicro()) // the queue's stream may not show a younger run yet
	if err != nil {
		return nil, err
	}
	var lost []string
	for _, cmd := range begun {
		if gone, err := isLost(ctx, cmd, b.Next, store.Over); err != nil {
			return nil, err
		} else if gone {
			lost = append(lost, cmd.Run)
		}
	}
	if len(lost) == 0 {
		return []host.Finding{{Check: "loop", Level: host.LevelOK, Text: fmt.Sprintf("%d runs in progress for a minute or longer, each of them in its queue", len(begun))}}, nil
	}
	return []host.Finding{{
		Check: "loop", Level: host.LevelFault, Text: fmt.Sprintf("%d runs have begun and wait in no queue, the first is %s", len(lost), lost[0]),
		Next: "they will not end by themselves; restore all stores from one backup",
	}}, nil
}

// isLost reports whether a run that had not ended is in no queue and has not ended
// since.
func isLost(
	ctx context.Context, cmd api.Run, next func(context.Context, api.Subject, uint64) (bus.Stored, error), over func(context.Context, string) (bool, error),
) (bool, error) {
	for after := uint64(0); ; {
		waiting, err := next(ctx, cmd.Subject(), after+1)
		if api.CodeOf(err) == api.NotFound {
			ended, err := over(ctx, cmd.Run)
			return !ended, err
		}
		if err != nil {
			return false, err
		}
		var w api.Run
		if err := api.Decode(waiting.Data, &w); err != nil {
			return false, err
		}
		if w.Run == cmd.Run {
			return false, nil
		}
		after = waiting.Sequence
	}
}

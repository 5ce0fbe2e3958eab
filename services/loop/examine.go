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

// examine finds runs that have begun, not ended, and wait in no queue: no replica will
// end them.
func examine(ctx context.Context, db *sqldb.DB, b *bus.Bus, now time.Time) ([]host.Finding, error) {
	begun, err := sqlstore.New(db, "").Unfinished(ctx)
	if err != nil {
		return nil, err
	}
	var lost []string
	for _, cmd := range begun {
		if now.Sub(time.UnixMicro(cmd.AcceptedAt)) < time.Minute {
			continue // it may end between the two looks
		}
		waiting, err := b.Next(ctx, cmd.Subject(), 1)
		for err == nil {
			var w api.Run
			if err = api.Decode(waiting.Data, &w); err != nil || w.Run == cmd.Run {
				break
			}
			waiting, err = b.Next(ctx, cmd.Subject(), waiting.Sequence+1)
		}
		if api.CodeOf(err) == api.NotFound {
			lost = append(lost, cmd.Run)
		} else if err != nil {
			return nil, err
		}
	}
	if len(lost) == 0 {
		return []host.Finding{{Check: "loop", Level: host.LevelOK, Text: fmt.Sprintf("%d runs under way, each of them in its queue", len(begun))}}, nil
	}
	return []host.Finding{{
		Check: "loop", Level: host.LevelFault, Text: fmt.Sprintf("%d runs have begun and wait in no queue, the first is %s", len(lost), lost[0]),
		Next: "they will not end by themselves; restore all stores from one backup",
	}}, nil
}

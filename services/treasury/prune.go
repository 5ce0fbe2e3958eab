package treasury

import (
	"context"
	"log/slog"
	"time"

	"github.com/anima-run/anima/pkg/wait"
	"github.com/anima-run/anima/services/treasury/internal/x402"
)

const (
	pruneEvery = time.Hour
	pruneTime  = time.Minute // limit of a round; the next one goes on

	// leastKept is the least time for which payments are kept. An authorization is accepted
	// for up to [x402.MaxWindow], and a caller may ask for the result of its payment later.
	leastKept = 24 * x402.MaxWindow
)

// pruner removes, each hour, the payments that ended long ago, with the answers that were
// bought and sold. The ledger keeps what they have paid. A round that fails, or is lost with
// its process, is made up for by the next one.
type pruner struct {
	store interface {
		PrunePayments(ctx context.Context, before int64) (int64, error)
	}
	kept time.Duration
	now  func() time.Time
	log  *slog.Logger
}

func (p *pruner) run(ctx context.Context) error {
	wait.Every(ctx, pruneEvery, func() { p.round(ctx) })
	return nil
}

func (p *pruner) round(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, pruneTime)
	defer cancel()
	n, err := p.store.PrunePayments(ctx, p.now().Add(-p.kept).UnixMicro())
	if err != nil {
		p.log.WarnContext(ctx, "ended payments not removed, retrying", "err", err)
	}
	if n > 0 {
		p.log.InfoContext(ctx, "ended payments removed", "count", n)
	}
}

package treasury

import (
	"context"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"
	"github.com/anima-run/anima/pkg/outbox"
	"github.com/anima-run/anima/pkg/sqldb"

	"github.com/anima-run/anima/services/treasury/internal/ledger"
)

// announce adds the events of tier changes to the outbox, in the transaction that makes
// the changes. The transactions themselves are published by the [feed]. Each event
// belongs to the trace of the request that caused it, although a group of requests shares
// the commit. The message ids contain the hash of the transaction, so they are unique
// over all ledgers.
func announce(ctx context.Context, tx *sqldb.Tx, c ledger.Changes) error {
	for _, tc := range c.Tiers {
		m := api.TierChanged{Agent: tc.Agent, From: tc.From, To: tc.To, Balance: tc.Balance, EntrySeq: tc.Seq, At: tc.At}
		if err := outbox.Add(bus.WithTraceParent(ctx, tc.Parent), tx, "tier_changed/"+tc.Agent+"/"+tc.Cause.String(), m); err != nil {
			return err
		}
	}
	return nil
}

// postedStream implements [ledgerStream] on the bus.
type postedStream struct{ bus *bus.Bus }

func (s postedStream) Append(ctx context.Context, id string, m api.PostedBatch, last uint64) (uint64, error) {
	return s.bus.Append(ctx, id, m, last)
}

func (s postedStream) Last(ctx context.Context) (m api.PostedBatch, seq uint64, err error) {
	stored, err := s.bus.Last(ctx, m.Subject())
	if err != nil {
		return m, 0, err
	}
	return m, stored.Sequence, api.Decode(stored.Data, &m)
}

func posted(t *ledger.Transaction) api.Posted {
	m := api.Posted{
		Seq: t.Seq, ID: t.ID, Kind: string(t.Kind), Agent: t.Agent, Memo: t.Memo, Turn: t.Turn, Trace: t.Trace, At: t.At,
		Previous: t.Previous.String(), Hash: t.Hash.String(), Postings: make([]api.Posting, len(t.Lines)),
	}
	for i, l := range t.Lines {
		m.Postings[i] = api.Posting{Account: l.Account, Amount: l.Amount}
	}
	return m
}

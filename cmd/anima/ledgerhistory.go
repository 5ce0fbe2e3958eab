package main

import (
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"
)

// past parses a time before now: RFC 3339, a day (its first moment in UTC), or a duration
// such as 36h or 7d, which means so long ago. It returns Unix microseconds, 0 for "".
func past(text string, now time.Time) (int64, error) {
	if text == "" {
		return 0, nil
	}
	if d, err := time.ParseDuration(text); err == nil && d > 0 {
		return now.Add(-d).UnixMicro(), nil
	}
	if days, ok := strings.CutSuffix(text, "d"); ok {
		if n, err := strconv.Atoi(days); err == nil && n > 0 && n < 10_000 {
			return now.AddDate(0, 0, -n).UnixMicro(), nil
		}
	}
	for _, form := range []string{time.RFC3339, time.DateOnly} {
		if t, err := time.Parse(form, text); err == nil && t.UnixMicro() > 0 {
			return t.UnixMicro(), nil
		}
	}
	return 0, failure(api.Invalid, fmt.Sprintf("%q is not a time", text), "write it like 2026-11-21T08:00:00Z, 2026-11-21 or 36h (so long ago)")
}

// balanceAt prints the balances of agents at a point of the ledger's history.
func (c ledgerBalanceCmd) balanceAt(ctx context.Context, a *app, names []string) error {
	at, err := past(c.At, time.Now())
	if err != nil {
		return err
	}
	balances := []api.BalanceAt{}
	for _, n := range names {
		v, err := ask[api.BalanceAt](ctx, a, api.GetBalanceAt{Agent: n, Seq: c.Seq, At: at})
		if err != nil {
			return err
		}
		balances = append(balances, v)
	}
	return a.print(balances, func(w io.Writer) {
		table(w, "AGENT\tAVAILABLE\tHELD\tTIER\tUSDC\tUSDC HELD\tSEQ\tTIME", balances, api.Page{}, func(b api.BalanceAt) []any {
			return []any{b.Agent, b.Available, b.Held, b.Tier, b.USDC, b.USDCHeld, b.Seq, when(b.At)}
		})
	})
}

type ledgerExportCmd struct {
	Agent  string `help:"Only the transactions of this agent." predictor:"agent"`
	Since  string `help:"Only transactions at this time or later: 2026-11-21T08:00:00Z, 2026-11-21, or 36h (so long ago)." placeholder:"TIME"`
	Until  string `help:"Only transactions before this time." placeholder:"TIME"`
	Format string `help:"csv has a row for each line of a transaction, json a transaction on each line of an array; default is csv, with -o json on standard output json." enum:"csv,json," default:""`
	File   string `short:"f" help:"Write to this file, which is replaced when the export is complete." placeholder:"FILE" type:"path"`
}

// ledgerExported is the output of ledger export to a file.
type ledgerExported struct {
	Transactions int    `json:"transactions"`
	File         string `json:"file"`
}

func (c ledgerExportCmd) Run(ctx context.Context, a *app) error {
	now := time.Now()
	since, errSince := past(c.Since, now)
	until, errUntil := past(c.Until, now)
	if err := errors.Join(errSince, errUntil); err != nil {
		return err
	}
	req := api.ExportLedger{Agent: strings.ToLower(c.Agent), Since: since, Until: until, Limit: 200}
	if c.Format == "" && c.File == "" && a.json() {
		c.Format = outputJSON
	}
	if req.Agent != "" { // a misspelt name must not look like an agent without transactions, nor replace a file
		if _, err := ask[api.Balance](ctx, a, api.GetBalance{Agent: req.Agent}); err != nil {
			return err
		}
	}
	if c.File == "" {
		_, err := c.write(ctx, a, req, a.Out, func(int) {})
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(c.File), "."+filepath.Base(c.File)+"-*")
	if err != nil {
		return failure(api.Invalid, "the export cannot be written: "+err.Error(), "name a file in a folder that you may write")
	}
	defer func() { _ = os.Remove(f.Name()) }() // it has another name after the export
	p := newProgress(a)
	n, err := c.write(ctx, a, req, f, func(n int) { p.waiting(fmt.Sprintf("%d transactions", n)) })
	p.clear()
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), c.File); err != nil {
		return failure(api.Invalid, "the export cannot be written: "+err.Error(), "name a file in a folder that you may write")
	}
	return a.print(ledgerExported{n, c.File}, func(w io.Writer) { fmt.Fprintf(w, "%d transactions in %s\n", n, c.File) })
}

// write writes the export page by page, so that it needs the memory of one page, and
// returns the number of transactions. It calls tell with their number after each page.
func (c ledgerExportCmd) write(ctx context.Context, a *app, req api.ExportLedger, w io.Writer, tell func(int)) (n int, err error) {
	var to exporter = &csvExport{csv.NewWriter(w)}
	if c.Format == outputJSON {
		to = &jsonExport{w: w}
	}
	if err := to.begin(); err != nil {
		return 0, err
	}
	for {
		page, err := ask[api.LedgerPage](ctx, a, req)
		if err != nil {
			return n, err
		}
		for i := range page.Entries {
			if err := to.entry(&page.Entries[i]); err != nil {
				return n, err
			}
		}
		n += len(page.Entries)
		tell(n)
		if page.Next == 0 {
			return n, to.end()
		}
		req.After = page.Next
	}
}

// exporter writes transactions in a format.
type exporter interface {
	begin() error
	entry(e *api.LedgerEntry) error
	end() error
}

type csvExport struct{ w *csv.Writer }

func (x *csvExport) begin() error {
	return x.w.Write([]string{
		"seq", "time", "id", "kind", "agent", "account", "asset", "amount_micros", "balance_micros", "memo", "turn", "trace", "hash",
	})
}

func (x *csvExport) entry(e *api.LedgerEntry) error {
	for _, l := range e.Lines {
		asset := "credits"
		if l.Asset != api.Credits {
			asset = string(l.Asset)
		}
		err := x.w.Write([]string{
			strconv.FormatInt(e.Seq, 10), time.UnixMicro(e.At).UTC().Format(time.RFC3339Nano), e.ID, e.Kind, e.Agent, l.Account, asset,
			strconv.FormatInt(int64(l.Amount), 10), strconv.FormatInt(int64(l.Balance), 10), e.Memo, e.Turn, e.Trace, e.Hash,
		})
		if err != nil {
			return err
		}
	}
	x.w.Flush()
	return x.w.Error()
}

func (x *csvExport) end() error {
	x.w.Flush()
	return x.w.Error()
}

// jsonExport writes an array with a transaction on each line.
type jsonExport struct {
	w    io.Writer
	some bool
}

func (x *jsonExport) begin() error {
	_, err := io.WriteString(x.w, "[")
	return err
}

func (x *jsonExport) entry(e *api.LedgerEntry) error {
	data, err := api.Encode(e)
	if err != nil {
		return err
	}
	separator := "\n"
	if x.some {
		separator = ",\n"
	}
	x.some = true
	_, err = x.w.Write(append([]byte(separator), data...))
	return err
}

func (x *jsonExport) end() error {
	_, err := io.WriteString(x.w, "\n]\n")
	return err
}

type ledgerVerifyCmd struct{}

func (ledgerVerifyCmd) Run(ctx context.Context, a *app) error {
	b, err := a.connect()
	if err != nil {
		return err
	}
	v, err := verifyLedger(ctx, b, func(p api.VerifyProgress) {
		if !a.json() {
			fmt.Fprintf(a.Err, "%d of %d transactions verified\n", p.Done, p.All)
		}
	})
	if err != nil {
		return err
	}
	err = a.print(v, func(w io.Writer) {
		fmt.Fprintf(w, "%d transactions on %d accounts, %d active holds\nhead %s\n", v.Transactions, v.Accounts, v.ActiveHolds, v.Head)
		for _, f := range v.Faults {
			fmt.Fprintln(w, "fault:", f)
		}
	})
	if err == nil && !v.OK {
		err = failure(api.Internal, "the ledger is inconsistent", "stop treasury and restore the last backup that verifies")
	}
	return err
}

// Bounds of a verification.
const (
	verifyLimit = time.Hour   // at 30,000 transactions per second, more than 10^8
	tellEvery   = time.Second // between two reports of the progress
)

// verifyLedger verifies the ledger and reports the progress from time to time.
func verifyLedger(ctx context.Context, b *bus.Bus, tell func(api.VerifyProgress)) (api.LedgerReport, error) {
	told := time.Now()
	return streamed[api.VerifyProgress, api.LedgerReport](ctx, b, api.VerifyLedgerV2{}, verifyLimit, func(p api.VerifyProgress) {
		if now := time.Now(); now.Sub(told) >= tellEvery {
			told = now
			tell(p)
		}
	})
}

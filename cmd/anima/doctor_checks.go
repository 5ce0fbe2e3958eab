package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"
	"github.com/anima-run/anima/pkg/disk"
	"github.com/anima-run/anima/pkg/host"
	"github.com/anima-run/anima/pkg/wait"
	"github.com/anima-run/anima/services/treasury"
)

// folder checks the disk of a data folder and the modes of the secret files in it.
func (d *doctor) folder(dir string, cfg host.Config) {
	d.disk(dir, cfg.DiskReserve)
	if err := disk.Write(dir, needed); err != nil {
		d.fault("disk", "free space, or let this user write there", "the data folder cannot be written: %v", err)
	} else {
		d.ok("disk", "the data folder can be written")
	}
	open := false
	names := []string{".", "token", "installation", endpointFile, providerFile, "nats", "loop/mcp"}
	for _, s := range services() {
		names = append(names, s.Name)
	}
	for _, name := range names {
		path := filepath.Join(dir, name)
		info, err := os.Stat(path)
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			d.fault("secrets", "let this user read it", "%v", err)
		case info.Mode().Perm()&0o077 != 0:
			open = true
			report := d.fault
			if name == "." {
				report = d.warn // secret files have their own modes
			}
			report("secrets", "chmod go= "+shellQuote(path), "%s can be used by other users of this machine: its mode is %04o", path, info.Mode().Perm())
		}
	}
	if !open {
		d.ok("secrets", "only this user can read the token, the keys, the databases and the streams")
	}
}

// disk compares the free space with the reserve. mib is the setting ANIMA_DISK_RESERVE.
func (d *doctor) disk(dir string, mib int64) {
	if mib > 0 {
		mib *= disk.MiB
	}
	var s disk.Space
	r, err := disk.NewReserve(dir, mib)
	if err == nil {
		s, err = r.Space()
	}
	if err != nil {
		d.fault("disk", "name a folder that can be used with --data", "%v", err)
		return
	}
	const text = "%d of %d MiB are free, %d are kept in reserve"
	figures := []any{s.Free / disk.MiB, s.Total / disk.MiB, r.Bytes() / disk.MiB}
	switch {
	case r.Check() != nil:
		d.fault("disk", "free space on it or enlarge it; with less than the reserve nothing is accepted", text, figures...)
	case s.Free < 2*r.Bytes():
		d.warn("disk", "free space on it soon", text, figures...)
	default:
		d.ok("disk", text, figures...)
	}
}

// clockWarns is the difference between two clocks above which the doctor warns.
const clockWarns = 5 * time.Second

// streams checks streams, consumers and the server's clock.
func (d *doctor) streams(ctx context.Context, b *bus.Bus) {
	d.show.waiting("streams and consumers")
	faults, server, err := b.Unexpected(ctx)
	if err != nil {
		d.fault("streams", "check that NATS is up", "%v", err)
		return
	}
	for _, f := range faults {
		d.fault("streams", "restart the services, which create what is missing; if messages are missing, restore all stores from one backup", "%s", f)
	}
	if len(faults) == 0 {
		d.ok("streams", "all streams and consumers exist as defined, and no event is missing between others")
	}
	now := time.Now()
	switch off := now.Sub(server).Abs(); {
	case now.Year() < 2026:
		d.fault("clock", "set the machine's clock", "the clock of this machine shows %s", now.UTC().Format(time.RFC3339))
	case !server.IsZero() && off > clockWarns:
		d.warn("clock", "synchronize both machines with a time server: leases and budgets depend on the time",
			"the clocks of NATS and of this machine are %s apart", off.Round(time.Second))
	default:
		d.ok("clock", "the clocks agree")
	}
}

// lockWarns is how long a lock may be past its expiry before the doctor warns. An expired
// lock is replaced by the next run of its session.
const lockWarns = 10 * time.Minute

// locks counts the session locks and those that are past their expiry.
func (d *doctor) locks(ctx context.Context, b *bus.Bus) {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	held, over := 0, 0
	all := errors.New("all were read")
	watching, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	bucket, err := bus.OpenBucket[api.Lock](ctx, b)
	if err == nil {
		err = bucket.Watch(watching, api.LockKey("*"), func() { stop(all) }, func(e bus.Entry[api.Lock]) error {
			switch late := time.Since(time.UnixMicro(e.Value.Expires)); {
			case e.Deleted:
			case late > lockWarns:
				over++
			default:
				held++
			}
			return nil
		})
	}
	switch {
	case !errors.Is(context.Cause(watching), all):
		d.fault("locks", "check that NATS is up", "%v", err)
	case over > 0:
		d.warn("locks", "nothing: the next run of the session replaces the lock", "%d session locks are past their expiry", over)
	default:
		d.ok("locks", "%d sessions are locked, no lock is past its expiry", held)
	}
}

// models checks that the router has models that can be used.
func (d *doctor) models(ctx context.Context, b *bus.Bus) {
	d.show.waiting("models")
	all, err := callFor[api.Models](ctx, b, api.ListModels{})
	usable := 0
	var vanished []string
	for _, m := range all.Models {
		if m.Usable {
			usable++
		}
		if m.Vanished != 0 {
			vanished = append(vanished, m.ID)
		}
	}
	switch {
	case err != nil:
		d.fault("models", "check the router's log", "%v", err)
	case usable == 0:
		d.fault("models", "anima model list shows why", "none of %d models can be used", len(all.Models))
	case len(vanished) > 0:
		d.warn("models", "choose other models, then anima model remove MODEL", "%d models vanished from the lists of their providers: %s", len(vanished), strings.Join(vanished[:min(3, len(vanished))], ", "))
	default:
		d.ok("models", "%d of %d models can be used", usable, len(all.Models))
	}
}

// ledger verifies the hash chain and the postings of the ledger: directly in its database
// if cfg is given, otherwise by a request to treasury.
func (d *doctor) ledger(ctx context.Context, b *bus.Bus, cfg *host.Config) {
	began := time.Now()
	var progress atomic.Pointer[api.VerifyProgress]
	show := func() {
		text := "the ledger, " + time.Since(began).Round(time.Second).String()
		if p := progress.Load(); p != nil {
			text += fmt.Sprintf(", %d of %d transactions", p.Done, p.All)
		}
		d.show.waiting(text)
	}
	show()
	showing, stop := context.WithCancel(ctx)
	var clock sync.WaitGroup
	clock.Go(func() { wait.Every(showing, time.Second, show) })
	report, err := verified(ctx, b, cfg, func(p api.VerifyProgress) { progress.Store(&p) })
	stop()
	clock.Wait()
	switch {
	case err != nil:
		d.fault("ledger", "check treasury's log", "%v", err)
	case !report.OK:
		for _, f := range report.Faults {
			d.fault("ledger", "stop treasury and restore all stores from the last backup that verifies", "%s", f)
		}
	default:
		d.ok("ledger", "%d transactions on %d accounts are right", report.Transactions, report.Accounts)
	}
}

func verified(ctx context.Context, b *bus.Bus, cfg *host.Config, tell func(api.VerifyProgress)) (api.LedgerReport, error) {
	if cfg == nil {
		return verifyLedger(ctx, b, tell)
	}
	db, err := treasury.Service.Database(ctx, *cfg)
	if err != nil {
		return api.LedgerReport{}, err
	}
	r, err := treasury.Verify(ctx, db, func(done, all int64) error {
		tell(api.VerifyProgress{Done: done, All: all})
		return nil
	})
	return r, errors.Join(err, db.Close())
}

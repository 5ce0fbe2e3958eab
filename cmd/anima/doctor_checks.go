package main

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"
	"github.com/anima-run/anima/pkg/disk"
	"github.com/anima-run/anima/pkg/host"
	"github.com/anima-run/anima/services/treasury"
)

// folder checks the disk of a data folder and the modes of the secret files in it.
func (d *doctor) folder(dir string, cfg host.Config) {
	mib := cfg.DiskReserve
	if mib > 0 {
		mib *= disk.MiB
	}
	var s disk.Space
	r, err := disk.NewReserve(dir, mib)
	if err == nil {
		s, err = r.Space()
	}
	if err != nil {
		d.add("disk", host.LevelFault, "name a folder that can be used with --data", "%v", err)
	} else {
		level, next := host.LevelOK, ""
		switch full := r.Check(); {
		case full != nil:
			level, next = host.LevelFault, "free space on it or enlarge it; with less than the reserve nothing is accepted"
		case s.Free < 2*r.Bytes():
			level, next = host.LevelWarn, "free space on it soon"
		}
		d.add("disk", level, next, "%d of %d MiB are free, %d are kept in reserve", s.Free/disk.MiB, s.Total/disk.MiB, r.Bytes()/disk.MiB)
	}
	if err := disk.Write(dir, 64<<10); err != nil {
		d.add("disk", host.LevelFault, "free space, or let this user write there", "the data folder cannot be written: %v", err)
	} else {
		d.add("disk", host.LevelOK, "", "the data folder can be written")
	}
	open := 0
	names := []string{".", "token", "installation", endpointFile, providerFile, "nats", "loop/mcp"}
	for _, s := range services() {
		names = append(names, s.Name)
	}
	for _, name := range names {
		info, err := os.Stat(filepath.Join(dir, name))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		} else if err != nil {
			d.add("secrets", host.LevelFault, "let this user read it", "%v", err)
			continue
		}
		if info.Mode().Perm()&0o077 != 0 {
			open++
			level := host.LevelFault
			if name == "." {
				level = host.LevelWarn // secret files have their own modes
			}
			d.add("secrets", level, "chmod go= "+shellQuote(filepath.Join(dir, name)), "%s can be used by other users of this machine: its mode is %04o", filepath.Join(dir, name), info.Mode().Perm())
		}
	}
	if open == 0 {
		d.add("secrets", host.LevelOK, "", "only this user can read the token, the keys, the databases and the streams")
	}
}

// clockWarns is the difference between two clocks above which the doctor warns.
const clockWarns = 5 * time.Second

// streams checks streams, consumers and the server's clock.
func (d *doctor) streams(ctx context.Context, b *bus.Bus) {
	d.show.waiting("streams and consumers")
	faults, server, err := b.Unexpected(ctx)
	if err != nil {
		d.add("streams", host.LevelFault, "check that NATS is up", "%v", err)
		return
	}
	for _, f := range faults {
		d.add("streams", host.LevelFault, "restart the services, which make what is missing; if messages are missing, restore all stores from one backup", "%s", f)
	}
	if len(faults) == 0 {
		d.add("streams", host.LevelOK, "", "all streams and consumers are there as they are made, and no event is missing between others")
	}
	now := time.Now()
	switch off := now.Sub(server).Abs(); {
	case now.Year() < 2026:
		d.add("clock", host.LevelFault, "set the machine's clock", "this machine says that it is %s", now.UTC().Format(time.RFC3339))
	case !server.IsZero() && off > clockWarns:
		d.add("clock", host.LevelWarn, "let both machines follow a time server: leases and budgets are times", "the clock of NATS and this one are %s apart", off.Round(time.Second))
	default:
		d.add("clock", host.LevelOK, "", "the clocks agree")
	}
}

// lockWarns is how long a lock may be past its expiry before the doctor warns. An expired
// lock is replaced by the next run of its session.
const lockWarns = 10 * time.Minute

// locks counts the session locks and those that are past their expiry.
func (d *doctor) locks(ctx context.Context, b *bus.Bus) {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	bucket, err := bus.OpenBucket[api.Lock](ctx, b)
	if err != nil {
		d.add("locks", host.LevelFault, "check that NATS is up", "%v", err)
		return
	}
	held, over := 0, 0
	all := errors.New("all were seen")
	watching, seen := context.WithCancelCause(ctx)
	defer seen(nil)
	err = bucket.Watch(watching, api.LockKey("*"), func() { seen(all) }, func(e bus.Entry[api.Lock]) error {
		switch late := time.Since(time.UnixMicro(e.Value.Expires)); {
		case e.Deleted:
		case late > lockWarns:
			over++
		default:
			held++
		}
		return nil
	})
	switch {
	case !errors.Is(context.Cause(watching), all):
		d.add("locks", host.LevelFault, "check that NATS is up", "%v", err)
	case over > 0:
		d.add("locks", host.LevelWarn, "nothing: the next run of the session takes it over", "%d session locks are past their time", over)
	default:
		d.add("locks", host.LevelOK, "", "%d sessions are locked, none past its time", held)
	}
}

// models checks that the router has models that can be used.
func (d *doctor) models(ctx context.Context, b *bus.Bus) {
	d.show.waiting("models")
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	all, err := bus.Call[api.Models](ctx, b, api.ListModels{})
	if err != nil {
		d.add("models", host.LevelFault, "look at the router's log", "%v", err)
		return
	}
	usable := 0
	for _, m := range all.Models {
		if m.Usable {
			usable++
		}
	}
	if usable == 0 {
		d.add("models", host.LevelFault, "anima model list says why", "none of %d models can be used", len(all.Models))
		return
	}
	d.add("models", host.LevelOK, "", "%d of %d models can be used", usable, len(all.Models))
}

// ledger verifies the hash chain and the postings of the ledger: directly in its database
// if cfg is given, otherwise by a request to treasury, which must answer within the
// request's timeout.
func (d *doctor) ledger(ctx context.Context, b *bus.Bus, cfg *host.Config) {
	began := time.Now()
	var report api.LedgerReport
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		report, err = verified(ctx, b, cfg)
	}()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for waiting := true; waiting; {
		d.show.waiting("the ledger, " + time.Since(began).Round(time.Second).String())
		select {
		case <-done:
			waiting = false
		case <-tick.C:
		}
	}
	const next = "stop treasury and restore all stores from the last backup that verifies"
	switch {
	case err != nil:
		d.add("ledger", host.LevelFault, "look at treasury's log; a large ledger is walked where its database is", "%v", err)
	case !report.OK:
		for _, f := range report.Faults {
			d.add("ledger", host.LevelFault, next, "%s", f)
		}
	default:
		d.add("ledger", host.LevelOK, "", "%d transactions on %d accounts are right", report.Transactions, report.Accounts)
	}
}

func verified(ctx context.Context, b *bus.Bus, cfg *host.Config) (api.LedgerReport, error) {
	if cfg == nil {
		return bus.Call[api.LedgerReport](ctx, b, api.VerifyLedger{})
	}
	db, err := treasury.Service.Database(ctx, *cfg)
	if err != nil {
		return api.LedgerReport{}, err
	}
	r, err := treasury.Verify(ctx, db)
	return r, errors.Join(err, db.Close())
}

func trimmed(id []byte) string { return strings.TrimSpace(string(id)) }

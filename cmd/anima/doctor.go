package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"
	"github.com/anima-run/anima/pkg/disk"
	"github.com/anima-run/anima/pkg/embednats"
	"github.com/anima-run/anima/pkg/host"
	"github.com/anima-run/anima/services/treasury"
)

type doctorCmd struct {
	Ops []string `help:"Ops addresses of services that run alone, such as http://127.0.0.1:9090." placeholder:"URL"`
}

// doctor collects the findings of the checks.
type doctor struct {
	app      *app
	show     *progress
	findings []host.Finding
}

func (d *doctor) ok(check, format string, args ...any) {
	d.add(host.Finding{Check: check, Level: host.LevelOK, Text: fmt.Sprintf(format, args...)})
}

func (d *doctor) warn(check, next, format string, args ...any) {
	d.add(host.Finding{Check: check, Level: host.LevelWarn, Text: fmt.Sprintf(format, args...), Next: next})
}

func (d *doctor) fault(check, next, format string, args ...any) {
	d.add(host.Finding{Check: check, Level: host.LevelFault, Text: fmt.Sprintf(format, args...), Next: next})
}

func (d *doctor) add(all ...host.Finding) {
	d.findings = append(d.findings, all...)
	if d.app.json() {
		return
	}
	for _, f := range all {
		d.show.line("%-7s  %s: %s", f.Level, plain(f.Check), plain(f.Text))
		if f.Next != "" && f.Level != host.LevelOK {
			d.show.line("         → %s", d.app.named(plain(f.Next)))
		}
	}
}

// Run makes all checks and prints the findings. It fails if one of them is a fault.
func (c doctorCmd) Run(ctx context.Context, a *app) error {
	d := &doctor{app: a, show: newProgress(a), findings: []host.Finding{}}
	err := c.diagnose(ctx, a, d)
	d.show.clear()
	if err = cmp.Or(err, ctx.Err()); err != nil { // an interrupted check has found no fault
		return err
	}
	if a.json() {
		if err := writeJSON(a.Out, d.findings); err != nil {
			return err
		}
	}
	faults := 0
	for _, f := range d.findings {
		if f.Level == host.LevelFault {
			faults++
		}
	}
	if faults > 0 {
		return failure(api.Internal, fmt.Sprintf("%d of %d checks found a fault", faults, len(d.findings)), "follow the advice of each fault")
	}
	return nil
}

func (c doctorCmd) diagnose(ctx context.Context, a *app, d *doctor) error {
	if _, named, _ := a.dialing(); named { // connect returns its error
		b, err := a.connect()
		if err != nil {
			return err
		}
		d.running(ctx, b, c.Ops)
		d.ledger(ctx, b, nil)
		return nil
	}
	dir, err := a.dataDir()
	if err != nil {
		return err
	}
	if _, err := os.Stat(dir); err != nil {
		return failure(api.NotFound, "there is no data folder: "+err.Error(), "name it with --data")
	}
	cfg, _, err := settings(upLookup(a.Lookup, map[string]string{"ANIMA_DATA": dir}, lookupIn(nil)))
	if err != nil {
		return err
	}
	cfg.Data = dir
	d.folder(dir, cfg)
	b, err := a.connect()
	if err == nil {
		ep, err := a.endpoint()
		if err != nil {
			return err
		}
		d.running(ctx, b, append(c.Ops, ep.Ops))
		at := &cfg
		if _, err := os.Stat(treasuryFile(dir)); err != nil && cfg.DatabaseURL.Reveal() == "" {
			at = nil // the databases are where only the environment of anima up says: treasury verifies it
		}
		d.ledger(ctx, b, at)
		return nil
	}
	if api.CodeOf(err) != api.Unavailable { // other errors mean that an anima may be running
		d.fault("anima", "correct that and run the command again", "the connection failed: %v", err)
		return nil
	}
	return d.stopped(ctx, dir, cfg, err)
}

// treasuryFile returns the path of treasury's SQLite database.
func treasuryFile(dir string) string {
	return filepath.Join(dir, treasury.Service.Name, treasury.Service.Name+".db")
}

// opening is the number of bytes that must be free to check a data folder: nats-server and
// SQLite write files beside the streams and the databases when they open them.
const opening = disk.MiB

// stopped checks a data folder that no running anima uses. failed is the error of the
// connection: the lock of the streams shows whether an anima runs that refused it.
func (d *doctor) stopped(ctx context.Context, dir string, cfg host.Config, failed error) error {
	if err := disk.Write(dir, opening); errors.Is(err, syscall.ENOSPC) {
		d.ok("anima", "none was reached on %s", dir)
		d.fault("stores", "free space on the disk, then run the command again", "the streams and databases are not checked, because the disk has no space to open them: %v", err)
		return nil
	}
	at := filepath.Join(dir, "nats")
	_, missing := os.Stat(at)
	var server *embednats.Server
	var err error
	if missing == nil {
		server, err = embednats.Start(ctx, embednats.Options{Dir: at})
	}
	if errors.Is(err, embednats.ErrInUse) {
		d.fault("anima", "correct that, or wait until the process has started or ended, and run the command again",
			"a process uses %s, but it was not reached: %s", dir, api.Wire(failed).Message)
		return nil
	}
	d.ok("anima", "none is running on %s: the folder itself is checked", dir)
	if missing != nil {
		d.fault("nats", "restore all stores from one backup", "the folder of the streams is missing: %v", missing)
		return nil
	}
	if err != nil {
		d.fault("nats", "stop what uses the folder; if nothing does, restore a backup", "%v", err)
		return nil
	}
	defer server.Shutdown()
	conn, err := bus.Dial(bus.DialOptions{InProcess: server.InProcess(), Name: bus.Operator})
	if err != nil {
		return err
	}
	defer conn.Close()
	b, err := bus.New(conn, bus.Options{Service: bus.Operator})
	if err != nil {
		return err
	}
	defer b.Close()
	d.streams(ctx, b)
	d.locks(ctx, b)
	id, err := os.ReadFile(filepath.Join(dir, "installation"))
	if err != nil {
		d.fault("installation", "put the file back: every database and stream has its id", "%v", err)
	}
	for _, s := range services() {
		d.show.waiting("the database of " + s.Name)
		db, err := s.Database(ctx, cfg)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			d.fault(s.Name, "restore all stores from one backup, or start with anima up --accept-loss", "its database is missing: %v", err)
		case err != nil:
			d.fault(s.Name, "check the database; if it cannot be read, restore all stores from one backup", "%v", err)
		default:
			d.add(s.Examine(ctx, db, b, strings.TrimSpace(string(id)), cfg.Sync, time.Now(), false)...)
			if err := db.Close(); err != nil {
				d.warn(s.Name, "", "its database was not closed: %v", err)
			}
		}
	}
	d.ledger(ctx, b, &cfg)
	return nil
}

// running checks running services over NATS and their ops ports.
func (d *doctor) running(ctx context.Context, b *bus.Bus, ops []string) {
	d.streams(ctx, b)
	d.locks(ctx, b)
	d.models(ctx, b)
	for _, url := range ops {
		if url == "" {
			d.warn("ready", "set ANIMA_OPS_ADDR", "it has no ops port, so its stores are not checked")
			continue
		}
		d.show.waiting("waiting for " + url + " to check its stores")
		findings, err := diagnosed(ctx, url)
		if err != nil {
			d.fault("ready", "check the address, and that the service runs", "%v", err)
		}
		d.add(findings...)
	}
}

// diagnosed requests the findings of a process about its own stores.
func diagnosed(ctx context.Context, url string) ([]host.Finding, error) {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/diagnose", nil)
	if err != nil {
		return nil, err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = res.Body.Close() }() // read only
	if res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s/diagnose: %s", url, res.Status)
	}
	var v struct {
		Findings []host.Finding `json:"findings"`
	}
	if err := json.NewDecoder(io.LimitReader(res.Body, 8<<20)).Decode(&v); err != nil {
		return nil, fmt.Errorf("%s/diagnose: %w", url, err)
	}
	return v.Findings, nil
}

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"
	"github.com/anima-run/anima/pkg/embednats"
	"github.com/anima-run/anima/pkg/host"
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

func (d *doctor) add(check, level, next, format string, args ...any) {
	d.addAll(host.Finding{Check: check, Level: level, Text: fmt.Sprintf(format, args...), Next: next})
}

func (d *doctor) addAll(all ...host.Finding) {
	for _, f := range all {
		d.findings = append(d.findings, f)
		if d.app.cli.Output == outputJSON {
			continue
		}
		d.show.line("%-7s  %s: %s", f.Level, plain(f.Check), plain(f.Text))
		if f.Next != "" && f.Level != host.LevelOK {
			d.show.line("         → %s", plain(f.Next))
		}
	}
}

// Run makes all checks and prints the findings. It fails if one of them is a fault.
func (c doctorCmd) Run(ctx context.Context, a *app) error {
	d := &doctor{app: a, show: newProgress(a), findings: []host.Finding{}}
	if err := c.diagnose(ctx, a, d); err != nil {
		return err
	}
	d.show.clear()
	faults := 0
	for _, f := range d.findings {
		if f.Level == host.LevelFault {
			faults++
		}
	}
	if a.cli.Output == outputJSON {
		if err := a.print(d.findings, func(io.Writer) {}); err != nil {
			return err
		}
	}
	if faults > 0 {
		return &api.Error{Code: api.Internal, Message: fmt.Sprintf("%d of %d checks found a fault", faults, len(d.findings)), Next: "follow the advice of each fault"}
	}
	return nil
}

func (c doctorCmd) diagnose(ctx context.Context, a *app, d *doctor) error {
	if _, named, _ := a.dialing(); named { // a.bus returns its error
		b, done, err := a.bus()
		if err != nil {
			return err
		}
		defer done()
		d.running(ctx, b, c.Ops)
		d.ledger(ctx, b, nil)
		return nil
	}
	dir, err := a.dataDir()
	if err != nil {
		return err
	}
	if _, err := os.Stat(dir); err != nil {
		return &api.Error{Code: api.NotFound, Message: "there is no data folder: " + err.Error(), Next: "name it with --data"}
	}
	cfg, _, err := settings(upLookup(a.Lookup, map[string]string{"ANIMA_DATA": dir}, lookupIn(nil)))
	if err != nil {
		return err
	}
	cfg.Data = dir
	d.folder(dir, cfg)
	b, done, err := a.bus()
	if err == nil {
		defer done()
		var ep endpoint
		data, err := os.ReadFile(filepath.Join(dir, endpointFile))
		if err = errors.Join(err, json.Unmarshal(data, &ep)); err != nil {
			return err
		}
		d.running(ctx, b, append(c.Ops, ep.Ops))
		d.ledger(ctx, b, &cfg)
		return nil
	}
	if api.CodeOf(err) != api.Unavailable { // other errors mean that an anima may be running
		d.add("anima", host.LevelFault, "mend that and look again", "it cannot be asked: %v", err)
		return nil
	}
	return d.stopped(ctx, dir, cfg)
}

// stopped checks a data folder that no running anima uses.
func (d *doctor) stopped(ctx context.Context, dir string, cfg host.Config) error {
	d.add("anima", host.LevelOK, "", "none is running on %s: the folder itself is looked at", dir)
	at := filepath.Join(dir, "nats")
	if _, err := os.Stat(at); err != nil {
		d.add("nats", host.LevelFault, "restore all stores from one backup", "the folder of the streams is missing: %v", err)
		return nil
	}
	server, err := embednats.Start(ctx, embednats.Options{Dir: at})
	if err != nil {
		d.add("nats", host.LevelFault, "stop what uses the folder; if nothing does, restore a backup", "%v", err)
		return nil
	}
	defer server.Shutdown()
	conn, err := bus.Dial(bus.Dialing{InProcess: server.InProcess(), Name: bus.Operator})
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
		d.add("installation", host.LevelFault, "put the file back: every database and stream names its id", "%v", err)
	}
	for _, s := range services() {
		d.show.waiting("the database of " + s.Name)
		db, err := s.Database(ctx, cfg)
		if errors.Is(err, fs.ErrNotExist) {
			d.add(s.Name, host.LevelFault, "restore all stores from one backup, or start with anima up --accept-loss", "its database is missing: %v", err)
			continue
		} else if err != nil {
			d.add(s.Name, host.LevelFault, "look at the database; if it cannot be read, restore all stores from one backup", "%v", err)
			continue
		}
		d.addAll(s.Examine(ctx, db, b, trimmed(id), cfg.Sync, time.Now(), false)...)
		if err := db.Close(); err != nil {
			d.add(s.Name, host.LevelWarn, "", "its database was not closed: %v", err)
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
			d.add("ready", host.LevelWarn, "set ANIMA_OPS_ADDR", "it has no ops port, so its stores are not looked at")
			continue
		}
		d.show.waiting("waiting for " + url + " to check its stores")
		findings, err := diagnosed(ctx, url)
		if err != nil {
			d.add("ready", host.LevelFault, "check the address, and that the service runs", "%v", err)
		}
		d.addAll(findings...)
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

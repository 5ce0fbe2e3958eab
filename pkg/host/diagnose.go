package host

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/anima-run/anima/pkg/bus"
	"github.com/anima-run/anima/pkg/sqldb"
)

// Levels of findings. anima doctor exits with an error only for faults.
const (
	LevelOK    = "ok"
	LevelWarn  = "warning"
	LevelFault = "fault"
)

// Finding is the result of one check of anima doctor.
type Finding struct {
	Check string `json:"check"`
	Level string `json:"level"`
	Text  string `json:"text"`
	Next  string `json:"next,omitempty"` // what the operator should do; "" if nothing
}

// Examiner examines what is specific to a service. It must not change anything.
type Examiner func(ctx context.Context, db *sqldb.DB, b *bus.Bus, now time.Time) ([]Finding, error)

// Examining returns a copy of the service with an examiner.
func (s Service) Examining(f Examiner) Service {
	s.examine = f
	return s
}

const (
	backlogWarns  = 1000             // messages in an outbox
	markWarns     = time.Minute      // age of the mark of a running service
	examineBounds = 30 * time.Second // time limit of the examination of one service
)

// Examine compares a service's database with its mark in NATS, and checks its outbox and
// losses. If running is true, a mark older than markWarns is a fault. It changes nothing.
func (s Service) Examine(ctx context.Context, db *sqldb.DB, b *bus.Bus, installation, sync string, now time.Time, running bool) []Finding {
	ctx, cancel := context.WithTimeout(ctx, examineBounds)
	defer cancel()
	var out []Finding
	add := func(level, next, format string, args ...any) {
		out = append(out, Finding{Check: s.Name, Level: level, Text: fmt.Sprintf(format, args...), Next: next})
	}
	failed := func(what string, err error) {
		add(LevelFault, "look at the database; if it cannot be read, restore all stores from one backup", "%s: %v", what, err)
	}
	own, other, states, err := readStores(ctx, s.Name, db, b)
	faults := Disagreements(s.Name, own, other, states, installation, bootID(), sync)
	switch {
	case err != nil:
		failed("its mark cannot be compared", err)
	case len(faults) > 0:
		for _, f := range faults {
			add(LevelFault, "restore all stores from one backup, or accept the loss: anima up --accept-loss", "%s", f)
		}
	case own.ID == "":
		add(LevelWarn, "start the service once with this release, so that it writes a mark", "its database has no mark, so a loss would not be detected")
	case running && now.Sub(time.UnixMicro(own.At)) > markWarns:
		add(LevelFault, "look at /readyz and its log", "its last mark is of %s: writes fail", at(own.At))
	case time.UnixMicro(own.At).After(now.Add(markWarns)):
		add(LevelFault, "set the machine's clock", "its last mark is of %s, which is in the future: the clock went back", at(own.At))
	default:
		add(LevelOK, "", "database and streams agree, mark %d of %s", own.Seq, at(own.At))
	}
	var backlog int64
	switch err := db.QueryRowContext(ctx, "select count(*) from outbox").Scan(&backlog); {
	case err != nil:
		failed("its outbox cannot be read", err)
	case backlog > backlogWarns:
		add(LevelWarn, "look for \"outbox relay failed\" in its log", "%d messages wait in its outbox", backlog)
	default:
		add(LevelOK, "", "%d messages wait in its outbox", backlog)
	}
	losses, err := sqldb.Losses(ctx, db)
	if err != nil && own.ID != "" {
		failed("its accepted losses cannot be read", err)
	}
	for _, l := range losses {
		add(LevelOK, "", "accepted at %s: %s", at(l.At), l.Fault)
	}
	if s.examine != nil {
		more, err := s.examine(ctx, db, b, now)
		if err != nil {
			failed("its own examination failed", err)
		}
		out = append(out, more...)
	}
	return out
}

// diagnosis is the response of the ops port to anima doctor.
type diagnosis struct {
	Findings []Finding `json:"findings"`
}

// diagnose returns a handler that examines the services of the process whose database is
// open, for one request at a time: an examination may read whole tables, and the ops port
// requires no token.
func diagnose(p Process, st *status) http.HandlerFunc {
	turn := make(chan struct{}, 1)
	return func(w http.ResponseWriter, r *http.Request) {
		select {
		case turn <- struct{}{}:
			defer func() { <-turn }()
		case <-r.Context().Done():
			return
		}
		d := diagnosis{Findings: []Finding{}}
		unready := slices.DeleteFunc(st.lines(), func(line string) bool { return strings.HasSuffix(line, ": ready") })
		for _, f := range append(unready, p.faults(st)...) {
			d.Findings = append(d.Findings, Finding{Check: "ready", Level: LevelFault, Text: f, Next: "see the log for the cause"})
		}
		for _, examine := range st.examiners() {
			d.Findings = append(d.Findings, examine(r.Context())...)
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(d) // fails only if the client has disconnected
	}
}

func (s *status) examiners() []func(context.Context) []Finding {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []func(context.Context) []Finding
	for _, name := range slices.Sorted(maps.Keys(s.examine)) {
		all = append(all, s.examine[name])
	}
	return all
}

func (s *status) examined(service string, f func(context.Context) []Finding) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.examine[service] = f
}

// Database opens the database of a service that is not running, for inspection. The
// database is in the data folder or at a Postgres URL. It returns fs.ErrNotExist if the
// file does not exist.
func (s Service) Database(ctx context.Context, cfg Config) (*sqldb.DB, error) {
	e := &Env{Data: dataOf(cfg, s), service: s, cfg: cfg, status: newStatus(nil)}
	if cfg.DatabaseURL.Reveal() == "" {
		if _, err := os.Stat(e.file()); err != nil { // opening would create it
			return nil, err
		}
	}
	return sqldb.Open(ctx, e.url(), sqldb.Options{Schema: strings.ReplaceAll(s.Name, "-", "_"), MaxConns: 2})
}

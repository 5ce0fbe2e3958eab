package host

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"
	"github.com/anima-run/anima/pkg/sqldb"
)

// Each store carries the installation's id and records how far others are
// (docs/adr/0012): a database how far its service's streams are, the coordination bucket
// how far each database is. So one that is missing, empty or an older copy shows at the
// start.

const (
	// markEvery is how old a mark may be, and how often writes are tried.
	markEvery = 5 * time.Second
	// markAgain is how soon a write that failed is tried again.
	markAgain = time.Second
	// settling is longer than what a power cut may take with Sync interval.
	settling = 5 * time.Minute
	// catchUp is how long a leader of a cluster may be behind what was acknowledged.
	catchUp = 20 * time.Second
	// acceptFor is how long a value of ANIMA_ACCEPT_LOSS holds.
	acceptFor = time.Hour
)

// heights are the last sequences of streams at a time.
type heights struct {
	At      int64             `json:"at"` // Unix microseconds
	Streams map[string]uint64 `json:"streams"`
	Mark    int64             `json:"mark,omitempty"` // the database's own sequence then
}

// knowledge is what a database records of the streams. A power cut may take what is
// younger than settling, so Settled is older than that; Next becomes it.
type knowledge struct {
	Boot    string  `json:"boot"` // of the machine that wrote it; "" where it is not known
	Latest  heights `json:"latest"`
	Next    heights `json:"next"`
	Settled heights `json:"settled"`
}

func (k knowledge) with(h heights, boot string) knowledge {
	k.Boot, k.Latest = boot, h
	switch {
	case k.Next.At == 0:
		k.Next = h
	case h.At-k.Next.At >= settling.Microseconds():
		k.Settled, k.Next = k.Next, h
	}
	return k
}

// marks keeps one service's mark.
type marks struct {
	service string
	owner   api.Owner
	bus     *bus.Bus
	db      *sqldb.DB
	status  *status
	now     func() time.Time
	cfg     Config
	boot    string
	known   knowledge
}

// ownerOf finds the owner of a service; ok is false for one that has no contracts.
func ownerOf(service string) (o api.Owner, ok bool) {
	for _, o := range api.Owners() {
		if o.Service() == service {
			return o, true
		}
	}
	return "", false
}

// check compares a database with its mark in NATS, and the streams with what the
// database records of them. A loss is an error, or recorded if the operator has accepted it;
// then the marks begin anew.
func (e *Env) check(ctx context.Context, db *sqldb.DB) (*marks, error) {
	owner, ok := ownerOf(e.service.Name)
	if !ok {
		return nil, nil
	}
	m := &marks{
		service: e.service.Name, owner: owner, bus: e.Bus, db: db, status: e.status, now: e.Now, cfg: e.cfg, boot: bootID(),
	}
	var faults []string
	var seen int64
	for begin := time.Now(); ; {
		var err error
		if faults, seen, err = m.compare(ctx); err != nil {
			return nil, fmt.Errorf("compare the stores: %w", err)
		}
		// In a cluster the one that answers may be behind for a moment.
		if len(faults) == 0 || e.cfg.Installation != "" || time.Since(begin) > catchUp {
			break
		}
		e.status.set(m.service, "its stores do not agree; looking again")
		if err := wait(ctx, time.Second); err != nil {
			return nil, err
		}
	}
	if len(faults) > 0 {
		if !e.cfg.accepts(e.Now()) {
			return nil, lost(m.service, faults, e.Now())
		}
		for _, f := range faults {
			e.Log.Warn("loss accepted", "fault", f)
		}
		if err := sqldb.AddLosses(ctx, db, e.Now().UnixMicro(), faults); err != nil {
			return nil, err
		}
		if err := e.Bus.Adopt(ctx); err != nil {
			return nil, err
		}
		m.known = knowledge{}
	}
	err := m.write(ctx, seen+1)
	if errors.Is(err, errOlder) { // the leader that answered did not have the mark then
		return e.check(ctx, db)
	}
	return m, err
}

// errOlder is that NATS has a mark which the database lacks.
var errOlder = errors.New("the database is an older copy than NATS knows")

// lost is the refusal to start.
func lost(service string, faults []string, now time.Time) error {
	return &api.Error{
		Code: api.Conflict, Message: "the stores of " + service + " do not agree; it was not started: " + strings.Join(faults, "; "),
		Next: "restore all stores from one backup, then start again; or accept the loss, which is recorded: anima up --accept-loss, or ANIMA_ACCEPT_LOSS=" +
			now.UTC().Format(time.RFC3339) + " for a service alone. anima doctor shows every store",
	}
}

// accepts says whether the operator has accepted losses, for now.
func (c *Config) accepts(now time.Time) bool {
	t, err := time.Parse(time.RFC3339, c.AcceptLoss)
	return err == nil && now.Sub(t).Abs() < acceptFor
}

// compare returns what does not agree, and the sequence of the database's mark in
// NATS. It decides on what it finds; what a leader of a cluster does not find it
// may only not have yet, which the caller gives time.
func (m *marks) compare(ctx context.Context) (faults []string, seen int64, err error) {
	own, err := sqldb.ReadMark(ctx, m.db)
	has := err == nil
	if err != nil && !errors.Is(err, sqldb.ErrNotFound) {
		return nil, 0, err
	}
	other, err := m.bus.GetMark(ctx, m.service)
	if err != nil && api.CodeOf(err) != api.NotFound {
		return nil, 0, err
	}
	states, err := m.bus.StreamHeights(ctx, bus.StreamNames(m.owner))
	if err != nil {
		return nil, 0, err
	}
	if has {
		if err := json.Unmarshal([]byte(own.Known), &m.known); err != nil {
			return nil, 0, fmt.Errorf("mark of the database: %w", err)
		}
	}
	return Disagreements(m.service, own, other, states, m.bus.Installation(), m.boot, m.cfg.Sync), other.Seq, nil
}

// Disagreements lists what the mark of a service's database, the mark that NATS keeps
// of it and the service's streams tell against each other. A zero mark is one that
// is not there. boot is this machine's, sync as in [Config].
func Disagreements(service string, own sqldb.Mark, other api.StoreMark, states []bus.StreamHeight, id, boot, sync string) []string {
	var faults []string
	add := func(format string, args ...any) { faults = append(faults, fmt.Sprintf(format, args...)) }
	var known knowledge
	if own.Known != "" {
		if err := json.Unmarshal([]byte(own.Known), &known); err != nil {
			add("the mark of the database of %s cannot be read: %v", service, err)
		}
	}
	// A machine that was started again may have lost the last minutes.
	cut := func(was string) bool { return sync == SyncInterval && (was == "" || was != boot) }
	expected := other.Seq
	if cut(other.Boot) {
		expected = other.Settled
	}
	switch {
	case own.ID == "" && expected > 0:
		add("the database of %s is empty or was made anew: NATS knows it with mark %d of %s", service, other.Seq, at(other.At))
	case own.ID != "" && own.ID != id:
		add("the database of %s belongs to installation %s, and this is %s; the id of a data folder is in its file installation", service, own.ID, id)
	case own.Seq < expected:
		add("the database of %s is an older copy: its mark is %d of %s, and NATS knows mark %d of %s", service, own.Seq, at(own.At), other.Seq, at(other.At))
	}
	want := known.Latest
	if cut(known.Boot) {
		want = known.Settled
	}
	for _, s := range states {
		switch last := want.Streams[s.Name]; {
		case s.Installation != "" && s.Installation != id:
			add("the stream %s belongs to installation %s, and this is %s; the id of a data folder is in its file installation", s.Name, s.Installation, id)
		case s.Last == 0 && last > 0:
			add("the stream %s is missing or empty: %s knew it with %d messages at %s", s.Name, service, last, at(want.At))
		case s.Last < last:
			add("the stream %s is an older copy or cut off: it ends at %d, and %s knew %d at %s", s.Name, s.Last, service, last, at(want.At))
		}
	}
	return faults
}

func at(micros int64) string { return time.UnixMicro(micros).UTC().Format(time.RFC3339) }

// write makes the next mark: in the database first, so that NATS never has a mark
// that the database lacks. Each is a write, whose end readiness shows.
func (m *marks) write(ctx context.Context, atLeast int64) error {
	ctx, cancel := context.WithTimeout(ctx, 2*markEvery)
	defer cancel()
	states, err := m.bus.StreamHeights(ctx, bus.StreamNames(m.owner))
	if err != nil {
		m.status.wrote(m.service, "NATS", err)
		return err
	}
	h := heights{At: m.now().UnixMicro(), Streams: map[string]uint64{}}
	for _, s := range states {
		h.Streams[s.Name] = s.Last
	}
	// The sequence that this write will have at least; a replica may make it larger.
	if was, err := sqldb.ReadMark(ctx, m.db); err == nil {
		h.Mark = max(was.Seq+1, atLeast)
	} else {
		h.Mark = atLeast
	}
	known := m.known.with(h, m.boot)
	text, err := json.Marshal(known)
	if err != nil {
		return err
	}
	seq, err := sqldb.WriteMark(ctx, m.db, m.bus.Installation(), string(text), h.At, atLeast)
	m.status.wrote(m.service, "the database", err)
	if err != nil {
		return err
	}
	m.known = known
	mine := api.StoreMark{Installation: m.bus.Installation(), Seq: seq, At: h.At, Boot: m.boot, Settled: known.Settled.Mark}
	kept, err := m.bus.PutMark(ctx, m.service, mine)
	m.status.wrote(m.service, "NATS", err)
	if err != nil || kept == mine {
		return err
	}
	// A replica has stored a later mark, and the database, which gives each number once,
	// has it too.
	now, err := sqldb.ReadMark(ctx, m.db)
	if err == nil && (kept.Seq == seq || kept.Seq > now.Seq) {
		err = fmt.Errorf("%w: its mark is %d, and NATS has %d of %s", errOlder, now.Seq, kept.Seq, at(kept.At))
		m.status.wrote(m.service, "the database", err)
	}
	return err
}

// keep makes marks until ctx ends, and one then.
func (m *marks) keep(ctx context.Context) error {
	for every := markEvery; ; {
		if wait(ctx, every) != nil {
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), markAgain)
			defer cancel()
			_ = m.write(last, 0) // the one before stands
			return nil
		}
		every = markEvery
		if err := m.write(ctx, 0); err != nil {
			every = markAgain
		}
	}
}

// bootID tells the starts of this machine apart; "" where it is not known.
func bootID() string {
	data, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(data))
}

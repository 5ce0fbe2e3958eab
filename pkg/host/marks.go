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
	"github.com/anima-run/anima/pkg/wait"
)

// Each store holds the installation's id and records the positions of other stores
// (docs/adr/0012): a database records the last sequences of its service's streams, the
// coordination bucket records the sequence of each database's mark. So a store that is
// missing, empty or restored from an older copy is detected at the start.

const (
	// markEvery is the interval between marks, and so between the test writes of a store.
	markEvery = 5 * time.Second
	// markAgain is the delay before a failed write is retried.
	markAgain = time.Second
	// settling is longer than the time whose writes a power failure may lose with Sync
	// interval.
	settling = 5 * time.Minute
	// catchUp is how long the leader of a stream in a cluster may lag behind the
	// acknowledged messages.
	catchUp = 20 * time.Second
	// acceptFor is how far from now the time in ANIMA_ACCEPT_LOSS may be.
	acceptFor = time.Hour
)

// heights holds the last sequences of streams at a time.
type heights struct {
	At      int64             `json:"at"` // Unix microseconds
	Streams map[string]uint64 `json:"streams"`
	Mark    int64             `json:"mark,omitempty"` // the sequence of the database's mark at that time
}

// knowledge is what a database records of the streams. A power failure may lose the
// writes of the last settling, so Settled is older than that; Next replaces it when it is
// old enough.
type knowledge struct {
	Boot    string  `json:"boot"` // boot id of the machine that wrote it; "" if unknown
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

// marks writes the mark of one service.
type marks struct {
	env     *Env
	service string
	owner   api.Owner
	db      *sqldb.DB
	boot    string
	known   knowledge
	seen    map[string]uint64 // the last sequences of the streams, as this process has seen them
}

// check compares a database with its mark in NATS, and the streams with the database's
// record of them. If they disagree, it returns an error, unless the operator has accepted
// the loss: then it records the loss and starts new marks.
func (e *Env) check(ctx context.Context, db *sqldb.DB) (*marks, error) {
	owner, ok := bus.OwnerOf(e.service.Name)
	if !ok {
		return nil, nil
	}
	m := &marks{env: e, service: e.service.Name, owner: owner, db: db, boot: bootID(), seen: map[string]uint64{}}
	var faults []string
	var seen int64
	for begin := time.Now(); ; {
		var err error
		if faults, seen, err = m.compare(ctx); err != nil {
			return nil, fmt.Errorf("compare the stores: %w", err)
		}
		// The server of a cluster that answers may lag behind: compare again for catchUp.
		if len(faults) == 0 || e.cfg.Installation != "" || time.Since(begin) > catchUp {
			break
		}
		e.status.set(m.service, "its stores do not agree, retrying")
		if err := wait.For(ctx, time.Second); err != nil {
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
	if errors.Is(err, errOlder) { // the leader that answered before did not have the mark yet
		return e.check(ctx, db)
	}
	return m, err
}

// errOlder means that NATS has a mark that the database lacks.
var errOlder = errors.New("the database is an older copy")

// lost returns the error with which a service refuses to start.
func lost(service string, faults []string, now time.Time) error {
	return &api.Error{
		Code: api.Conflict, Message: "the stores of " + service + " do not agree; it was not started: " + strings.Join(faults, "; "),
		Next: "restore all stores from one backup, then start again; or accept the loss, which is recorded: anima up --accept-loss, or ANIMA_ACCEPT_LOSS=" +
			now.UTC().Format(time.RFC3339) + " for a service alone. anima doctor shows every store",
	}
}

// accepts reports whether the operator has accepted losses at about this time.
func (c *Config) accepts(now time.Time) bool {
	t, err := time.Parse(time.RFC3339, c.AcceptLoss)
	return err == nil && now.Sub(t).Abs() < acceptFor
}

// compare returns the disagreements, and the sequence of the database's mark in NATS. A
// leader of a cluster may lag behind, so that the result may be wrong for a moment; the
// caller retries.
func (m *marks) compare(ctx context.Context) (faults []string, seen int64, err error) {
	own, other, states, err := readStores(ctx, m.service, m.db, m.env.Bus)
	if err != nil {
		return nil, 0, err
	}
	if own.Known != "" {
		if err := json.Unmarshal([]byte(own.Known), &m.known); err != nil {
			return nil, 0, fmt.Errorf("mark of the database: %w", err)
		}
	}
	return Disagreements(m.service, own, other, states, m.env.Bus.Installation(), m.boot, m.env.cfg.Sync), other.Seq, nil
}

// readStores returns what the stores of a service record of each other. A mark that does
// not exist is zero.
func readStores(ctx context.Context, service string, db *sqldb.DB, b *bus.Bus) (own sqldb.Mark, other api.StoreMark, states []bus.StreamHeight, err error) {
	owner, ok := bus.OwnerOf(service)
	if !ok {
		return own, other, nil, fmt.Errorf("%s has no contracts", service)
	}
	// Read the database after NATS: a running service writes its mark to the database
	// first, so the mark in NATS is never newer.
	if other, err = b.GetMark(ctx, service); err != nil && api.CodeOf(err) != api.NotFound {
		return own, other, nil, err
	}
	has, err := sqldb.HasMark(ctx, db)
	if err == nil && has {
		own, err = sqldb.ReadMark(ctx, db)
	}
	if err != nil {
		return own, other, nil, err
	}
	states, err = b.StreamHeights(ctx, bus.StreamNames(owner))
	return own, other, states, err
}

// ofDatabase begins the faults of a database in [Disagreements].
const ofDatabase = "the database of "

// LostDatabase reports whether a fault of [Disagreements] says that rows of the service's own
// database may be missing: it is empty, another one or an older copy.
func LostDatabase(fault string) bool { return strings.HasPrefix(fault, ofDatabase) }

// Disagreements lists the contradictions between the mark in a service's database, the
// copy of the mark in NATS, and the service's streams. A zero mark means that there is
// none. boot is the boot id of this machine, sync is as in [Config].
func Disagreements(service string, own sqldb.Mark, other api.StoreMark, states []bus.StreamHeight, id, boot, sync string) []string {
	var faults []string
	add := func(format string, args ...any) { faults = append(faults, fmt.Sprintf(format, args...)) }
	var known knowledge
	if own.Known != "" {
		if err := json.Unmarshal([]byte(own.Known), &known); err != nil {
			add("the mark of the database of %s cannot be read: %v", service, err)
		}
	}
	// With Sync interval a reboot may have lost the writes of the last minutes.
	cut := func(was string) bool { return sync == SyncInterval && (was == "" || was != boot) }
	expected := other.Seq
	if cut(other.Boot) {
		expected = other.Settled
	}
	switch {
	case own.ID == "" && expected > 0:
		add(ofDatabase+"%s is empty or was recreated: NATS has its mark %d of %s", service, other.Seq, at(other.At))
	case own.ID != "" && own.ID != id:
		add(ofDatabase+"%s belongs to installation %s, and this is %s; the id of a data folder is in its file installation", service, own.ID, id)
	case own.Seq < expected:
		add(ofDatabase+"%s is an older copy: its mark is %d of %s, and NATS has mark %d of %s", service, own.Seq, at(own.At), other.Seq, at(other.At))
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
			add("the stream %s is missing or empty: %s recorded %d messages at %s", s.Name, service, last, at(want.At))
		case s.Last < last:
			add("the stream %s is an older copy or cut off: it ends at %d, and %s recorded %d at %s", s.Name, s.Last, service, last, at(want.At))
		}
	}
	return faults
}

func at(micros int64) string { return time.UnixMicro(micros).UTC().Format(time.RFC3339) }

// write writes the next mark: to the database first, so that NATS never has a mark that
// the database lacks. The result of each write is shown by readiness.
func (m *marks) write(ctx context.Context, atLeast int64) error {
	ctx, cancel := context.WithTimeout(ctx, 2*markEvery)
	defer cancel()
	states, err := m.env.Bus.StreamHeights(ctx, bus.StreamNames(m.owner))
	if err == nil {
		err = m.see(states)
	}
	if err != nil {
		m.env.status.wrote(m.service, "NATS", err)
		return err
	}
	h := heights{At: m.env.Now().UnixMicro(), Streams: map[string]uint64{}}
	for _, s := range states {
		h.Streams[s.Name] = s.Last
	}
	// The lowest sequence that this write may get; a concurrent replica may make it
	// larger.
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
	seq, err := sqldb.WriteMark(ctx, m.db, m.env.Bus.Installation(), string(text), h.At, atLeast)
	m.env.status.wrote(m.service, "the database", err)
	if err != nil {
		return err
	}
	m.known = known
	mine := api.StoreMark{Installation: m.env.Bus.Installation(), Seq: seq, At: h.At, Boot: m.boot, Settled: known.Settled.Mark}
	kept, err := m.env.Bus.PutMark(ctx, m.service, mine)
	m.env.status.wrote(m.service, "NATS", err)
	if err != nil || kept == mine {
		return err
	}
	// A replica has stored a later mark. The database must have it too, because it issues
	// each sequence once.
	now, err := sqldb.ReadMark(ctx, m.db)
	if err == nil && (kept.Seq == seq || kept.Seq > now.Seq) {
		err = fmt.Errorf("%w: its mark is %d, and NATS has %d of %s", errOlder, now.Seq, kept.Seq, at(kept.At))
		m.env.status.wrote(m.service, "the database", err)
	}
	return err
}

// see returns an error if a stream ends before a sequence that this process has seen. A
// mark would replace what the database records of the stream, so that the next start could
// not detect the loss. A leader of a cluster may only lag behind: then a later call
// succeeds.
func (m *marks) see(states []bus.StreamHeight) error {
	for _, s := range states {
		if was := m.seen[s.Name]; s.Last < was {
			return fmt.Errorf("the stream %s is missing or cut off: it ends at %d, and had %d; restart the service to see every loss", s.Name, s.Last, was)
		}
	}
	for _, s := range states {
		m.seen[s.Name] = s.Last
	}
	return nil
}

// keep writes marks until ctx ends, and a last one after that.
func (m *marks) keep(ctx context.Context) error {
	for every := markEvery; ; {
		if wait.For(ctx, every) != nil {
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), markAgain)
			defer cancel()
			_ = m.write(last, 0) // on failure the previous mark remains valid
			return nil
		}
		every = markEvery
		if err := m.write(ctx, 0); err != nil {
			every = markAgain
		}
	}
}

// bootID returns an id that changes with each boot of this machine; "" if unknown.
func bootID() string {
	data, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(data))
}

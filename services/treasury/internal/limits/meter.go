package limits

import (
	"slices"
	"time"

	"github.com/anima-run/anima/pkg/api"
)

// Meter holds the payments of the last day, for rolling windows. Its values are not
// modified: a method returns a new value. The zero value is empty.
//
// Up to maxExact payments are entries of their own, and a window ends exactly. Beyond
// that, payments of the same class are merged: those of the last hour by the minute,
// older ones by the half hour. A merged entry leaves a window with its latest payment, so
// a window never counts less than was paid in it, and at most a minute (a day: half an
// hour) more.
type Meter struct {
	entries  []entry
	transfer int64 // time of the latest transfer, Unix µs; 0: none
	latest   int64 // time of the latest payment, Unix µs; entries a day before it may be dropped
}

// entry is the sum of payments of one class that were made after the previous entry of the
// class, and at or before until. Entries are sorted by until.
type entry struct {
	until int64 // Unix µs
	class Class
	Sum
}

const (
	maxExact = 64 // keeps a row of the accounts within a page of SQLite
	fine     = int64(time.Minute / time.Microsecond)
	coarse   = 30 * fine
	hour     = 60 * fine
	day      = 24 * hour
)

// Add adds a payment that is made now, and drops entries that are older than a day: by
// now, because the clock of another replica, or this one before, may have been ahead.
func (m Meter) Add(now int64, c Class, amount api.Micros) Meter {
	m.latest = max(m.latest, now)
	entries := make([]entry, 0, len(m.entries)+1)
	for _, e := range m.entries {
		if e.until > now-day {
			entries = append(entries, e)
		}
	}
	m.entries = entries
	i := m.find(now, c)
	if i < 0 {
		m.entries = append(m.entries, entry{until: now, class: c})
		i = len(m.entries) - 1
		for ; i > 0 && m.entries[i-1].until > now; i-- { // of another class: the clock of another replica is ahead
			m.entries[i-1], m.entries[i] = m.entries[i], m.entries[i-1]
		}
	}
	m.entries[i].Amount += amount
	m.entries[i].Payments++
	if c&^classPeer == classTransfer {
		m.transfer = max(m.transfer, now)
	}
	if len(m.entries) > maxExact {
		m.merge(now)
	}
	return m
}

// Take subtracts a part of a payment that was counted at the time at; see [Tally.Take].
func (m Meter) Take(at int64, c Class, amount api.Micros, paid bool) Meter {
	i := m.find(at, c)
	if i < 0 || at <= m.latest-day && m.entries[i].until != at { // it may be dropped already, and the entry that is found is of later payments
		return m
	}
	m.entries = slices.Clone(m.entries)
	e := &m.entries[i]
	if e.take(amount, paid); e.Sum == (Sum{}) {
		m.entries = slices.Delete(m.entries, i, i+1)
	}
	return m
}

// find returns the index of the entry that a payment of the class made at a time belongs
// to, and -1 if there is none. The rule is the same for Add and for Take, also after the
// entry was merged, and after the clock was set back: the earliest entry that ends at the
// time or later.
func (m *Meter) find(at int64, c Class) int {
	return slices.IndexFunc(m.entries, func(e entry) bool { return e.class == c && e.until >= at })
}

// merge merges each entry into the next one of its class in the same cell of time.
func (m *Meter) merge(now int64) {
	cell := func(e *entry) int64 {
		if e.until > now-hour-fine {
			return e.until / fine
		}
		return -1 - e.until/coarse // not equal to a fine cell
	}
	kept := m.entries[:0]
	for i := range m.entries {
		e := m.entries[i]
		j := slices.IndexFunc(m.entries[i+1:], func(next entry) bool { return next.class == e.class })
		if j >= 0 && cell(&e) == cell(&m.entries[i+1+j]) {
			to := &m.entries[i+1+j]
			to.Amount += e.Amount
			to.Payments += e.Payments
			continue
		}
		kept = append(kept, e)
	}
	m.entries = kept
}

// Within returns the sums of the payments within the last d, by class. A payment that is
// exactly d old is outside.
func (m *Meter) Within(now int64, d time.Duration) Tally {
	var t Tally
	for i := range m.entries {
		if e := &m.entries[i]; e.until > now-d.Microseconds() {
			t.Sums[e.class].Amount += e.Amount
			t.Sums[e.class].Payments += e.Payments
		}
	}
	return t
}

// frees returns the time until payments of a category with this sum have left the window,
// and 0 if they have left it now.
func (m *Meter) frees(now int64, d time.Duration, category string, excess Sum) time.Duration {
	if excess.Amount <= 0 && excess.Payments <= 0 {
		return 0
	}
	for i := range m.entries {
		e := &m.entries[i]
		if e.until <= now-d.Microseconds() || !e.class.in(category) {
			continue
		}
		excess.Amount -= e.Amount
		excess.Payments -= e.Payments
		if excess.Amount <= 0 && excess.Payments <= 0 {
			return time.Duration(e.until+d.Microseconds()-now) * time.Microsecond
		}
	}
	return 0
}

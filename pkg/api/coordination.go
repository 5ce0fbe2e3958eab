package api

import "strings"

// Coordination is the one bucket: session locks, wakes and leases (design §3). A lock
// or lease holds until its own Expires. The TTL of its key only removes what is over:
// a server that was killed may bring a key back, and without its TTL (docs/adr/0010).
const Coordination = "coordination"

// LockKey is the key of a session's lock.
func LockKey(session string) string { return "lock." + session }

// Lock says who runs a session. Epoch grows with every owner and fences the
// ones before.
type Lock struct {
	Run     string `json:"run"`
	Owner   string `json:"owner"`
	Epoch   uint64 `json:"epoch"`
	Expires int64  `json:"expires"` // Unix microseconds; the lock is free from then on
}

// Free reports whether self may take the lock over at a time, in Unix microseconds:
// it has expired, or its owner is a [Predecessor] of self.
func (l Lock) Free(self string, now int64) bool {
	return l.Expires <= now || Predecessor(self, l.Owner)
}

// OwnerName is the owner of a lock or lease: an instance, which is the name of one
// run of a process, and the installation whose data folder that process alone uses.
// The installation is empty where several processes share a NATS server.
func OwnerName(installation, instance string) string {
	if installation == "" {
		return instance
	}
	return installation + "/" + instance
}

// Predecessor reports whether owner is an earlier instance of the installation that
// self belongs to. An installation has one instance at a time, so a predecessor has
// ended, and what it holds is free. It is false if self has no installation.
func Predecessor(self, owner string) bool {
	mine, _, ok := strings.Cut(self, "/")
	theirs, _, _ := strings.Cut(owner, "/")
	return ok && mine == theirs && self != owner
}

// WakeKey is the key of a wake: created once per cause, deleted when loop has
// turned it into a run.
func WakeKey(agent, cause string) string { return "wake." + agent + "." + cause }

// WakeKeys matches every wake of every agent.
const WakeKeys = "wake.*.*"

// Wake asks that an agent be woken.
type Wake struct {
	Agent  string    `json:"agent"`
	Cause  string    `json:"cause"` // a [ValidKey]: "alarm", "cron-<name>-<minute>", "inbox-<id>", …
	Reason string    `json:"reason"`
	By     Principal `json:"by"`
	At     int64     `json:"at"`
	Trace  string    `json:"trace,omitempty"` // traceparent of who asked, for the woken turn to link to
}

// LeaseKey is the key of a lease on a task that one replica does at a time.
func LeaseKey(task string) string { return "lease." + task }

// Lease says which replica does a task.
type Lease struct {
	Owner   string `json:"owner"`
	Expires int64  `json:"expires,omitempty"` // Unix microseconds; the lease is free from then on. 0: of a release that did not say
}

// Free reports whether self may take the lease over, as [Lock.Free] does.
func (l Lease) Free(self string, now int64) bool {
	return l.Expires <= now || Predecessor(self, l.Owner)
}

// MarkKey is the key of a service's mark.
func MarkKey(service string) string { return "mark." + service }

// StoreMark is how far a service's database is, so that an older copy of it, or an
// empty one, is noticed. The database has the mark first.
type StoreMark struct {
	Installation string `json:"installation"`
	Seq          int64  `json:"seq"`     // grows with every mark
	At           int64  `json:"at"`      // Unix microseconds
	Boot         string `json:"boot"`    // of the machine that wrote it; "" where it is not known
	Settled      int64  `json:"settled"` // a Seq that is older than any sync interval; 0: none yet
}

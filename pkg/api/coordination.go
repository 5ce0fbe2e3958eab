package api

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
)

// Coordination is the name of the bucket of session locks, wakes, leases, marks and health
// (docs/reference/platform.md, Coordination bucket). A lock or lease is valid until its
// own Expires. The TTL of its key only removes expired values: a server that was killed
// may restore a key without its TTL (docs/adr/0010).
const Coordination = "coordination"

// LockKey returns the key of a session's lock.
func LockKey(session string) string { return "lock." + session }

// Lock describes the owner of a session. Epoch increases with every owner and fences
// the previous ones.
type Lock struct {
	Run     string `json:"run"`
	Owner   string `json:"owner"`
	Epoch   uint64 `json:"epoch"`
	Expires int64  `json:"expires"` // Unix microseconds; from then on the lock is free
}

// Free reports whether self may take the lock over at the time now, in Unix
// microseconds: the lock has expired, or its owner is a [Predecessor] of self.
func (l Lock) Free(self string, now int64) bool {
	return l.Expires <= now || Predecessor(self, l.Owner)
}

// Holder returns the fields by which a process recognises its own lock.
func (l Lock) Holder() (owner string, epoch uint64, expires int64) {
	return l.Owner, l.Epoch, l.Expires
}

// OwnerName returns the owner's name in a lock or lease. The instance is a unique name
// of one execution of a process. The installation identifies the data folder that only
// this process uses; it is "" if several processes share a NATS server.
func OwnerName(installation, instance string) string {
	if installation == "" {
		return instance
	}
	return installation + "/" + instance
}

// Predecessor reports whether owner is an earlier instance of self's installation. An
// installation has one instance at a time, so an earlier instance has exited and its
// locks and leases are free. Predecessor returns false if self has no installation.
func Predecessor(self, owner string) bool {
	mine, _, ok := strings.Cut(self, "/")
	theirs, _, _ := strings.Cut(owner, "/")
	return ok && mine == theirs && self != owner
}

// WakeKey returns the key of a wake. Heartbeat creates it once per cause, and loop
// deletes it after it has stored the run.
func WakeKey(agent, cause string) string { return "wake." + agent + "." + cause }

// WakeAgent returns the agent of a key of [WakeKey].
func WakeAgent(key string) string {
	agent, _, _ := strings.Cut(strings.TrimPrefix(key, "wake."), ".")
	return agent
}

// WakeKeys is the pattern that matches the wakes of all agents.
const WakeKeys = "wake.*.*"

// Wake describes a request to start a run of a sleeping agent.
type Wake struct {
	Agent  string    `json:"agent"`
	Cause  string    `json:"cause"` // a [ValidKey]: "alarm", "cron-<name>-<minute>", "inbox-<id>", …
	Reason string    `json:"reason"`
	By     Principal `json:"by"`
	At     int64     `json:"at"`
	Trace  string    `json:"trace,omitempty"` // traceparent of the request, which the turn links to
}

// LeaseKey returns the key of the lease on a task that one replica executes at a time.
func LeaseKey(task string) string { return "lease." + task }

// Lease describes the replica that executes a task. It is advisory.
type Lease struct {
	Owner   string `json:"owner"`
	Expires int64  `json:"expires,omitempty"` // Unix microseconds; from then on the lease is free. 0: written by an earlier release
}

// Free reports whether self may take the lease over. The rule is that of [Lock.Free].
func (l Lease) Free(self string, now int64) bool {
	return l.Expires <= now || Predecessor(self, l.Owner)
}

// Holder returns the owner and the expiry. A Lease has no epoch.
func (l Lease) Holder() (owner string, epoch uint64, expires int64) {
	return l.Owner, 0, l.Expires
}

// MarkKey returns the key of a service's [StoreMark].
func MarkKey(service string) string { return "mark." + service }

// StoreMark is the position of a service's database, by which an older copy or an empty
// database is detected. The service writes each mark to its database first.
type StoreMark struct {
	Installation string `json:"installation"`
	Seq          int64  `json:"seq"`     // increases with every mark
	At           int64  `json:"at"`      // Unix microseconds
	Boot         string `json:"boot"`    // boot id of the machine that wrote it; "" if unknown
	Settled      int64  `json:"settled"` // a Seq older than any sync interval, safe from a power failure; 0: none yet
}

// HealthKey returns the key of the health of a model at a provider. It has a hash of their
// names, which may have characters that a key cannot have.
func HealthKey(provider, model string) string {
	sum := sha256.Sum256([]byte(provider + "\n" + model))
	return "health." + hex.EncodeToString(sum[:16])
}

// HealthKeys is the pattern that matches the health of all models.
const HealthKeys = "health.*"

// AttemptKey returns the key of the [AttemptQuery] about an attempt. It has a hash of the
// hold's id, which may have characters that a key cannot have.
func AttemptKey(hold string) string {
	sum := sha256.Sum256([]byte(hold))
	return "attempt." + hex.EncodeToString(sum[:16])
}

// AttemptKeys is the pattern that matches the queries about all attempts.
const AttemptKeys = "attempt.*"

// AttemptQuery is a question of a replica of inference-router to the others: which of them
// works on the attempt that is paid from a hold? The one that does stores itself as the
// Holder. The key is deleted when the question is answered or not asked any more.
type AttemptQuery struct {
	Hold   string `json:"hold"`
	By     string `json:"by"`               // the owner that asks
	Holder string `json:"holder,omitempty"` // the owner that works on the attempt; "": no answer yet
}

// RouteHealth is the state of the breaker of a model at a provider, and the time before
// which the provider asks not to be called. Replicas of inference-router share it. Times
// are in Unix microseconds; 0 is none.
type RouteHealth struct {
	Provider   string `json:"provider"`
	Model      string `json:"model"`
	OpenUntil  int64  `json:"openUntil,omitempty"`  // 0: the breaker is closed; past: half-open
	ProbeUntil int64  `json:"probeUntil,omitempty"` // until then one replica has the probe of a half-open breaker
	NotBefore  int64  `json:"notBefore,omitempty"`
	Cause      string `json:"cause,omitempty"` // why the attempt failed that led to this state, safe to show
	By         string `json:"by"`              // the owner that stored it
}

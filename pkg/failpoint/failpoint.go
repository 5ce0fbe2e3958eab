// Package failpoint names every durable step at which a process may crash, and lets tests
// inject a crash, a lost answer or a stop there. The points are listed in one table,
// [Table]. Code passes a point by wrapping the step in [Do] or [Value].
//
// Without the build tag failpoint, Do and Value are direct calls that the compiler
// inlines, and no point can be armed. With the tag, a process reads these variables each
// time that it passes a point:
//
//	ANIMA_FAILPOINT         name:mode[:n[:linger]], or @FILE for a file with that text
//	ANIMA_FAILPOINT_PASSES  a file to which a line is appended for every point passed
//	ANIMA_MUTATION          the name of one safeguard that is disabled, see [Mutation]
//
// The point fires once, at the n-th pass (default 1). FILE is read at every pass and
// removed when the point fires, so that a process that is restarted with the same
// variables does not crash again.
//
// The package must not be used for faults that a step handles itself: those belong in the
// tests of the step.
package failpoint

import "slices"

// Mode is the fault that is injected at a point.
type Mode string

// The modes. Before and After kill the process with SIGKILL: deferred calls do not run
// and no buffer is flushed. With a linger, the signal is sent after that duration, so
// that writes in progress may complete.
const (
	Before  Mode = "before"  // crash; the step has not happened
	After   Mode = "after"   // the step happens, then the process crashes before the caller gets the result
	Timeout Mode = "timeout" // the step happens, and the caller gets a timeout error
	Stop    Mode = "stop"    // the process is stopped with SIGSTOP before the step, until it receives SIGCONT
)

// Modes returns the modes that the crash matrix injects at every point. Stop is not among
// them.
func Modes() []Mode { return []Mode{Before, After, Timeout} }

// Info describes a point.
type Info struct {
	Name     string
	Services []string // services whose processes pass the point during a run
	Before   string   // state after a crash before the step
	After    string   // state after a crash after the step
	Call     bool     // the step is a request over NATS: a lost answer is Unavailable instead of a deadline error
}

// Table returns every point, indexed by its number.
func Table() []Info { return append([]Info(nil), table[:]...) }

// Scenes returns the points that the scenes of the crash matrix pass: all but those of
// payments over HTTP 402, which have a test of their own.
func Scenes() []Info {
	return slices.DeleteFunc(Table(), func(i Info) bool {
		return slices.ContainsFunc(apart, func(p Point) bool { return p.String() == i.Name })
	})
}

// Info returns the description of the point.
func (p Point) Info() Info { return table[p] }

// String returns the name of the point, such as "loop.accept".
func (p Point) String() string { return table[p].Name }

// Mutation is a safeguard that a test disables to verify that the oracle detects it.
type Mutation uint8

// The mutations.
const (
	NoExpectedSequence Mutation = iota // appends are stored without an expected last sequence, and a run is not stopped when its lease is lost
	NoMessageID                        // a stream stores the same message twice
	AnswerBeforeCommit                 // treasury answers a group of operations before they are committed
	mutations
)

var mutationNames = [mutations]string{"no-expected-sequence", "no-message-id", "answer-before-commit"}

// String returns the name of the mutation as ANIMA_MUTATION has it.
func (m Mutation) String() string { return mutationNames[m] }

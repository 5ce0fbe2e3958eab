// Package failpoint names every durable step at which a process may die, and lets
// tests kill it there. The names are one table, [Table]; code passes a point by
// wrapping the step in [Do] or [Value].
//
// Without the build tag failpoint both are direct calls that the compiler
// inlines, and nothing here can be switched on. With it a process reads
//
//	ANIMA_FAILPOINT         name:mode[:n[:linger]], or @FILE for a file that says so
//	ANIMA_FAILPOINT_PASSES  a file that gets a line for every point passed
//	ANIMA_MUTATION          the name of one safety that is left out, see [Mutation]
//
// when it comes to a point. It fires once, at the n-th pass (1 if left out). Of a
// FILE the text is read at every pass, and the file is removed when it fires, so
// that a process which is started again under the same variables lives.
//
// It must not be used for faults that a step answers by itself: those belong in
// the step's own tests.
package failpoint

// Mode is what happens at a point.
type Mode string

// The modes. A process that dies does so as from kill -9: nothing deferred runs
// and nothing is flushed; with a linger it does so that much later, while what is
// on its way out may leave.
const (
	Before  Mode = "before"  // it dies, and the step has not happened
	After   Mode = "after"   // the step happens, and it dies before anybody knows
	Timeout Mode = "timeout" // the step happens, and its caller is told that no answer came in time
	Stop    Mode = "stop"    // it stands still before the step, as from SIGSTOP, until somebody sends SIGCONT
)

// Modes are the ways in which every point is crashed.
func Modes() []Mode { return []Mode{Before, After, Timeout} }

// Info describes a point.
type Info struct {
	Name     string
	Services []string // whose processes pass it on the way of a run
	Before   string   // what is so when a process dies before the step
	After    string   // what is so when it dies after it
	Call     bool     // the step asks over NATS: a lost answer is Unavailable, not a raw deadline
}

// Table is every point, by its number.
func Table() []Info { return append([]Info(nil), table[:]...) }

// Info of a point.
func (p Point) Info() Info { return table[p] }

func (p Point) String() string { return table[p].Name }

// Mutation is a safety that a test leaves out, to see its oracle fail.
type Mutation uint8

// The mutations.
const (
	NoExpectedSequence Mutation = iota // an append is stored whatever was written since, and no writer ends for a lost lease
	NoMessageID                        // a stream takes the same message twice
	AnswerBeforeCommit                 // treasury answers a group of operations before they are committed
	mutations
)

var mutationNames = [mutations]string{"no-expected-sequence", "no-message-id", "answer-before-commit"}

func (m Mutation) String() string { return mutationNames[m] }

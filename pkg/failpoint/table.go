package failpoint

// Point is one durable step. Its only values are the constants below.
type Point uint8

// The points, in the order in which a run passes them.
const (
	LoopAccept Point = iota
	LoopLockRenew
	LoopInboxClaim
	LoopBegin
	LoopThought
	LoopIntent
	LoopTool
	LoopAlarm
	LoopResult
	LoopFlush
	LoopSettled
	LoopPersist
	LoopEnd
	LoopRelease
	LoopInboxSettle
	LoopLockDelete
	LoopWakePublish
	LoopWakeDelete
	LoopCancel
	LoopDrop
	LoopMerge
	LoopJoined

	LoopOutput
	LoopIngest

	LoopGoalCreate
	LoopGoalLease
	LoopGoalClassify
	LoopGoalPlan
	LoopGoalHold
	LoopGoalReview
	LoopGoalApprove
	LoopGoalReplan
	LoopGoalCancel
	LoopGoalStop
	LoopTaskStart
	LoopTaskExpire
	LoopTaskComplete
	LoopTaskEnd

	RouterHold
	RouterCall
	RouterRecord
	RouterAnswer
	RouterSettle

	PolicyRecord
	PolicyPlan

	TreasuryWrite
	TreasuryCommit
	TreasuryCursor

	SocialReceive
	SocialClaim
	SocialSettle

	HeartbeatAlarm
	HeartbeatWake
	HeartbeatFire

	CursorApply

	ExecutorCall

	OutboxPublish
	OutboxDelete

	BusPublish
	BusAppend
	BusKey
	BusAnswer
	BusAck

	points
)

// stores are the services that publish announcements of what they store; owners are those
// that execute tools of their own.
var (
	stores = []string{"treasury", "heartbeat", "social", "loop"}
	owners = []string{"heartbeat", "treasury", "inference-router", "social"}
)

var (
	loop      = []string{"loop"}
	router    = []string{"inference-router"}
	policy    = []string{"policy"}
	treasury  = []string{"treasury"}
	heartbeat = []string{"heartbeat"}
	social    = []string{"social"}
)

var table = [points]Info{
	LoopAccept:      {"loop.accept", loop, "the message is in nobody's hands; its sender sends it again", "the run is queued, and its sender does not know", true},
	LoopLockRenew:   {"loop.lock.renew", loop, "the lease ends sooner", "the lease ends later", true},
	LoopInboxClaim:  {"loop.inbox.claim", loop, "messages wait in the inbox", "the run has claimed them, and has no journal", true},
	LoopBegin:       {"loop.journal.begin", loop, "the run has no owner in the journal", "it has one who is dead; the input is fixed", true},
	LoopThought:     {"loop.journal.thought", loop, "the thought is paid, and not in the journal", "it is in the journal", true},
	LoopIntent:      {"loop.journal.intent", loop, "the call is allowed, and not begun", "the intent is in the journal, and the call not made", true},
	LoopTool:        {"loop.tool", loop, "the intent is there, the effect is not", "the effect is there, the result is not", false},
	LoopAlarm:       {"loop.alarm", loop, "no alarm is set", "an alarm is set, and the call has no result", true},
	LoopResult:      {"loop.journal.result", loop, "the effect is there, the result is not", "the result is in the journal, and nobody heard", true},
	LoopFlush:       {"loop.events.flush", loop, "the end of a run without a turn may not be announced", "it is announced, and its message comes again", true},
	LoopSettled:     {"loop.settled", loop, "the turn has its answer, whose settlement is not confirmed", "the settlement is confirmed, and the turn is not in the store", true},
	LoopPersist:     {"loop.persist", loop, "all of the turn is in the journal only", "the turn is in the store, and the journal is ahead of nobody", false},
	LoopEnd:         {"loop.journal.end", loop, "the run is over in the store, and the journal does not say so", "the journal says so, and the run's message comes again", true},
	LoopRelease:     {"loop.journal.release", loop, "the run is left, and its session is held for a lease", "the session is free, and the run comes again", true},
	LoopInboxSettle: {"loop.inbox.settle", loop, "the run is over, its messages are claimed", "they are processed, and the end is not announced", true},
	LoopLockDelete:  {"loop.lock.delete", loop, "the run is over, and a renewal of its lease is left", "the renewal is removed, and the run is not acknowledged", true},
	LoopWakePublish: {"loop.wake.publish", loop, "the wake is a key", "the wake is a key and a run", true},
	LoopWakeDelete:  {"loop.wake.delete", loop, "the wake is a key and a run", "the wake is a run", true},

	LoopCancel: {"loop.cancel", loop, "the run goes on, and whoever cancels it tries again", "the run is cancelled, and nobody was told", false},
	LoopDrop:   {"loop.drop", loop, "a cancelled message waits, without a fate", "it has its fate, and nobody heard", false},
	LoopMerge:  {"loop.merge", loop, "messages wait, and the journal has them as taken in", "they have their fate, and still wait", false},

	LoopJoined: {"loop.journal.joined", loop, "a message wants to join the run, and waits", "the run has taken it in, and it waits without a fate", true},

	LoopOutput: {"loop.output", loop, "a tool has said more than a turn takes, and it is kept nowhere", "it is kept, and the call has no result", true},
	LoopIngest: {"loop.ingest", loop, "the run is over, and the agent remembers nothing of it", "it remembers", false},

	LoopGoalCreate:   {"loop.goal.create", loop, "the agent wants a goal, and there is none", "the goal is there, and the call has no result", false},
	LoopGoalLease:    {"loop.goal.lease", loop, "nobody asks about the goal", "somebody who is dead does, for a lease", true},
	LoopGoalClassify: {"loop.goal.classify", loop, "the model has said how long the goal is, and nobody knows", "the goal knows, and its event comes again", false},
	LoopGoalPlan:     {"loop.goal.plan", loop, "the planner is paid, and its plan is nowhere", "the plan is stored, and the event that asked for it comes again", false},
	LoopGoalHold:     {"loop.goal.hold", loop, "policy wants the creator's word, and nobody asks for it", "the plan waits for the creator, and its event comes again", false},
	LoopGoalReview:   {"loop.goal.review", loop, "the creator has said the word, and the plan waits", "the plan waits no more, and the creator does not know", false},
	LoopGoalApprove:  {"loop.goal.approve", loop, "the plan is allowed, and has no tasks", "its tasks are there, and the first is not in the queue", false},
	LoopGoalReplan:   {"loop.goal.replan", loop, "the next plan is paid, and the old one stands", "it has taken the old one's place, and what is left of that goes on", false},
	LoopGoalCancel:   {"loop.goal.cancel", loop, "the goal goes on, and whoever cancels it tries again", "the goal is cancelled, and nobody was told", false},
	LoopGoalStop:     {"loop.goal.stop", loop, "runs that nobody waits for are cancelled, and their goal does not know", "it knows, and its event comes again", false},
	LoopTaskStart:    {"loop.task.start", loop, "the attempt lies in the queue", "its run holds the task, and the attempt comes again", false},
	LoopTaskExpire:   {"loop.task.expire", loop, "the attempt's deadline has passed, and its run goes on", "its run is cancelled, and the next attempt is not in the queue", false},
	LoopTaskComplete: {"loop.task.complete", loop, "the run has a result, the task does not", "the task has it, and the call does not know", false},
	LoopTaskEnd:      {"loop.task.end", loop, "the run is over, and its goal has not heard", "the goal has what it came to, and the run's end comes again", false},

	RouterHold:   {"router.hold", router, "nothing is reserved", "money is held for a call that nobody makes", true},
	RouterCall:   {"router.call", router, "money is held", "the provider has answered, and the answer is lost", false},
	RouterRecord: {"router.record", router, "the provider has answered, and the answer is lost", "the answer is stored, and not paid", false},
	RouterAnswer: {"router.answer", router, "the answer is stored, neither handed out nor paid", "it is handed out, and not paid", false},
	RouterSettle: {"router.settle", router, "the answer is stored and handed out, and not paid", "it is paid, and its caller does not know", true},

	PolicyRecord: {"policy.record", policy, "nothing is decided", "the decision is stored, and not answered", false},
	PolicyPlan:   {"policy.plan", policy, "nothing is decided about a plan", "the decision is stored, and not answered", false},

	TreasuryWrite:  {"treasury.write", treasury, "a group is decided, and nothing of it written", "it is written, and not committed", false},
	TreasuryCommit: {"treasury.commit", treasury, "a group waits", "it is committed, and nobody was told", false},
	TreasuryCursor: {"treasury.cursor", treasury, "the stream has the transactions, and the cursor stands before them", "the cursor stands behind them", false},

	SocialReceive: {"social.receive", social, "the message is its sender's", "it is in the inbox, and its sender does not know", false},
	SocialClaim:   {"social.claim", social, "messages wait", "they are claimed, and the run does not know", false},
	SocialSettle:  {"social.settle", social, "they are claimed", "they are processed, and the run does not know", false},

	HeartbeatAlarm: {"heartbeat.alarm", heartbeat, "no alarm is stored", "it is stored, and its setter does not know", false},
	HeartbeatWake:  {"heartbeat.wake", heartbeat, "something is due, and no key is there", "the key is there, and what is due is not recorded", true},
	HeartbeatFire:  {"heartbeat.fire", heartbeat, "the key is there, and what is due is not recorded", "it is recorded", false},

	CursorApply: {"cursor.apply", heartbeat, "the stream has an event, and its reader's database does not", "the database has what it says, and that it was read", false},

	ExecutorCall: {"executor.call", owners, "a tool is allowed, and its owner has done nothing", "it has done it, and loop does not know", false},

	OutboxPublish: {"outbox.publish", stores, "the announcement is a row", "it is a row and in the stream", true},
	OutboxDelete:  {"outbox.delete", stores, "it is a row and in the stream", "it is in the stream", false},

	BusPublish: {"bus.publish", []string{"loop", "heartbeat"}, "the stream does not have the message", "the stream has it, and the answer is lost", false},
	BusAppend: {
		"bus.append",
		[]string{"loop", "treasury"},
		"the stream does not have the journal's step, or the part of the ledger", "the stream has it, and the answer is lost", false,
	},
	BusKey: {"bus.key", []string{"loop", "heartbeat"}, "the key is as it was", "the key is written, and the answer is lost", false},
	BusAnswer: {
		"bus.answer",
		[]string{"loop", "inference-router", "policy", "treasury", "heartbeat", "social"},
		"the question is dealt with, and not answered", "it is answered", false,
	},
	BusAck: {"bus.ack", []string{"loop", "heartbeat"}, "the message is dealt with, and comes again", "it is acknowledged", false},
}

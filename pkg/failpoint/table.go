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
	RouterFirst
	RouterHedge
	RouterRecord
	RouterAnswer
	RouterSettle

	PolicyRecord
	PolicyPlan

	TreasuryWrite
	TreasuryCommit
	TreasuryCursor

	TreasuryPaySign
	TreasuryPaySend
	TreasuryPayReceipt
	TreasuryPayPost
	TreasuryUse
	TreasuryServe
	TreasuryTransfer
	TreasurySettlement

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
	LoopAccept:      {"loop.accept", loop, "the message is not stored; its sender repeats the request", "the run is queued; its sender has no answer", true},
	LoopLockRenew:   {"loop.lock.renew", loop, "the lease has its previous expiry", "the lease has its new expiry", true},
	LoopInboxClaim:  {"loop.inbox.claim", loop, "the messages are in the inbox, unclaimed", "the run has claimed the messages and has no journal entry", true},
	LoopBegin:       {"loop.journal.begin", loop, "the run has no owner in the journal", "the journal names an owner that has crashed; the input is fixed", true},
	LoopThought:     {"loop.journal.thought", loop, "the completion is paid and not in the journal", "the completion is in the journal", true},
	LoopIntent:      {"loop.journal.intent", loop, "the call is allowed and has no intent", "the intent is in the journal; the call is not made", true},
	LoopTool:        {"loop.tool", loop, "the intent is stored; the call has no effect yet", "the call has taken effect; its result is not stored", false},
	LoopAlarm:       {"loop.alarm", loop, "no alarm is set", "the alarm is set; the call has no result", true},
	LoopResult:      {"loop.journal.result", loop, "the call has taken effect; its result is not stored", "the result is in the journal; its append is not confirmed", true},
	LoopFlush:       {"loop.events.flush", loop, "the end of a run without a turn may not be announced", "the end is announced; the run's message is redelivered", true},
	LoopSettled:     {"loop.settled", loop, "the turn has its completion, whose settlement is not confirmed", "the settlement is confirmed; the turn is not in the store", true},
	LoopPersist:     {"loop.persist", loop, "the turn is in the journal only", "the turn is in the store and in the journal", false},
	LoopEnd:         {"loop.journal.end", loop, "the run has ended in the store, not in the journal", "the journal has the end; the run's message is redelivered", true},
	LoopRelease:     {"loop.journal.release", loop, "the run is returned; its session stays locked until the lease expires", "the session is free; the run is redelivered", true},
	LoopInboxSettle: {"loop.inbox.settle", loop, "the run has ended; its messages are claimed", "the messages are processed; the end is not announced", true},
	LoopLockDelete:  {"loop.lock.delete", loop, "the run has ended; the renewal of its lease is stored", "the renewal is deleted; the run is not acknowledged", true},
	LoopWakePublish: {"loop.wake.publish", loop, "the wake is a key", "the wake is a key and a run", true},
	LoopWakeDelete:  {"loop.wake.delete", loop, "the wake is a key and a run", "the wake is a run", true},

	LoopCancel: {"loop.cancel", loop, "the run continues; the caller repeats the cancel", "the cancel is stored; no notice is sent", false},
	LoopDrop:   {"loop.drop", loop, "a cancelled message is queued without an outcome", "the outcome is stored; the end is not announced", false},
	LoopMerge:  {"loop.merge", loop, "messages are queued; the journal has them as joined", "the messages have their outcome and are still queued", false},

	LoopJoined: {"loop.journal.joined", loop, "a message in mode steer is queued", "the message has joined the run in the journal; it is queued without an outcome", true},

	LoopOutput: {"loop.output", loop, "the output of a tool is longer than a turn stores; it is not stored", "the output is stored; the call has no result", true},
	LoopIngest: {"loop.ingest", loop, "the run has ended; its turns are not in the agent's memory", "its turns are in the memory", false},

	LoopGoalCreate:   {"loop.goal.create", loop, "the goal is requested and not stored", "the goal is stored; the call has no result", false},
	LoopGoalLease:    {"loop.goal.lease", loop, "the goal has no lease", "a crashed process has the lease until it expires", true},
	LoopGoalClassify: {"loop.goal.classify", loop, "the model has classified the goal; the answer is not stored", "the classification is stored; its event is redelivered", false},
	LoopGoalPlan:     {"loop.goal.plan", loop, "the planner's answer is paid; the plan is not stored", "the plan is stored; the event that requested it is redelivered", false},
	LoopGoalHold:     {"loop.goal.hold", loop, "policy requires the creator's approval; the plan does not wait for it", "the plan waits for the creator; its event is redelivered", false},
	LoopGoalReview:   {"loop.goal.review", loop, "the creator has answered; the plan waits", "the review is stored; the creator has no answer", false},
	LoopGoalApprove:  {"loop.goal.approve", loop, "the plan is approved and has no tasks", "the tasks are stored; the first is not queued", false},
	LoopGoalReplan:   {"loop.goal.replan", loop, "the next plan is paid; the previous plan is active", "the next plan is active; tasks that both have continue", false},
	LoopGoalCancel:   {"loop.goal.cancel", loop, "the goal continues; the caller repeats the cancel", "the goal is cancelled; no event is published", false},
	LoopGoalStop:     {"loop.goal.stop", loop, "runs without a goal are cancelled; their goal has no record of it", "the goal has the record; its event is redelivered", false},
	LoopTaskStart:    {"loop.task.start", loop, "the attempt is queued", "the attempt's run has the task; the attempt is redelivered", false},
	LoopTaskExpire:   {"loop.task.expire", loop, "the attempt's deadline has passed; its run continues", "its run is cancelled; the next attempt is not queued", false},
	LoopTaskComplete: {"loop.task.complete", loop, "the run has a result, its task does not", "the task has the result; the call has none", false},
	LoopTaskEnd:      {"loop.task.end", loop, "the run has ended; its goal has no record of it", "the goal has the outcome; the end of the run is redelivered", false},

	RouterHold:   {"router.hold", router, "no credits are held", "credits are held for a call that is not made", true},
	RouterCall:   {"router.call", router, "credits are held", "the provider has answered; the answer is lost", false},
	RouterFirst:  {"router.first_token", router, "the provider generates the answer; no caller has a part of it", "the callers have the beginning of the answer; nothing of it is stored", false},
	RouterHedge:  {"router.hedge", router, "the first attempt has no content; no second one is held", "credits are held for a second attempt that is not made", true},
	RouterRecord: {"router.record", router, "the provider has answered; the answer is lost", "the answer is stored and not paid", false},
	RouterAnswer: {"router.answer", router, "the answer is stored, not sent and not paid", "the answer is sent and not paid", false},
	RouterSettle: {"router.settle", router, "the answer is stored and sent, and not paid", "the answer is paid; its caller has no confirmation", true},

	PolicyRecord: {"policy.record", policy, "no decision is stored", "the decision is stored and not answered", false},
	PolicyPlan:   {"policy.plan", policy, "no decision about the plan is stored", "the decision is stored and not answered", false},

	TreasuryWrite:  {"treasury.write", treasury, "a group is decided and not written", "the group is written and not committed", false},
	TreasuryCommit: {"treasury.commit", treasury, "a group waits for its commit", "the group is committed and not answered", false},
	TreasuryCursor: {"treasury.cursor", treasury, "the stream has the transactions; the cursor is before them", "the cursor is after the transactions", false},

	TreasuryPaySign:    {"treasury.pay.sign", treasury, "the money of a payment is held", "the authorization is signed and not stored", false},
	TreasuryPaySend:    {"treasury.pay.send", treasury, "the authorization is stored and not sent", "the seller has the authorization; its answer is lost", false},
	TreasuryPayReceipt: {"treasury.pay.receipt", treasury, "the seller has answered; nothing is stored", "the answer is stored; the hold is not settled", false},
	TreasuryPayPost:    {"treasury.pay.post", treasury, "the payment has its outcome; its hold is active", "the hold has ended; the payment has no record of it", false},
	TreasuryUse:        {"treasury.paywall.claim", treasury, "a payment is presented and not claimed", "the payment is claimed; nothing was done for it", false},
	TreasuryServe:      {"treasury.paywall.serve", treasury, "the handler of a paid request has run; its answer is not stored", "the answer is stored; the payer does not have it", false},
	TreasuryTransfer:   {"treasury.facilitator.transfer", treasury, "the settlement is claimed; nothing is submitted", "the transfer is included; its settlement is pending", false},
	TreasurySettlement: {"treasury.facilitator.settlement", treasury, "the transfer is included; its settlement is pending", "the settlement is stored; the seller has no answer", false},

	SocialReceive: {"social.receive", social, "the message is not stored", "the message is in the inbox; its sender has no answer", false},
	SocialClaim:   {"social.claim", social, "the messages are unclaimed", "the messages are claimed; the run has no answer", false},
	SocialSettle:  {"social.settle", social, "the messages are claimed", "the messages are processed; the run has no answer", false},

	HeartbeatAlarm: {"heartbeat.alarm", heartbeat, "no alarm is stored", "the alarm is stored; its caller has no answer", false},
	HeartbeatWake:  {"heartbeat.wake", heartbeat, "an entry is due; the wake has no key", "the key is written; the entry is not recorded as fired", true},
	HeartbeatFire:  {"heartbeat.fire", heartbeat, "the key is written; the entry is not recorded as fired", "the entry is recorded as fired", false},

	CursorApply: {"cursor.apply", heartbeat, "the stream has an event; its reader's database does not", "the database has the event's changes and the cursor after it", false},

	ExecutorCall: {"executor.call", owners, "the call of a tool is allowed; its owner has not executed it", "the owner has executed it; loop has no answer", false},

	OutboxPublish: {"outbox.publish", stores, "the message is a row", "the message is a row and in the stream", true},
	OutboxDelete:  {"outbox.delete", stores, "the message is a row and in the stream", "the message is in the stream", false},

	BusPublish: {"bus.publish", []string{"loop", "heartbeat"}, "the stream does not have the message", "the stream has the message; the answer is lost", false},
	BusAppend: {
		"bus.append",
		[]string{"loop", "treasury"},
		"the stream does not have the journal entry or the ledger batch", "the stream has it; the answer is lost", false,
	},
	BusKey: {"bus.key", []string{"loop", "heartbeat"}, "the key has its previous value", "the key is written; the answer is lost", false},
	BusAnswer: {
		"bus.answer",
		[]string{"loop", "inference-router", "policy", "treasury", "heartbeat", "social"},
		"the request is handled and not answered", "the request is answered", false,
	},
	BusAck: {"bus.ack", []string{"loop", "heartbeat"}, "the message is handled and redelivered", "the message is acknowledged", false},
}

// apart are the points that no scene of the crash matrix passes, because its runs make no
// payment. TestCrashPayments of e2e kills processes at them.
var apart = []Point{
	TreasuryPaySign, TreasuryPaySend, TreasuryPayReceipt, TreasuryPayPost, TreasuryUse, TreasuryServe, TreasuryTransfer, TreasurySettlement,
}

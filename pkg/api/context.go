package api

// FinishFlush is the finish of a turn that was a memory flush (seed 004): before a
// compaction the agent is silently given the chance to write its notes. The turn
// is persisted and paid like any other; transcripts leave it out.
const FinishFlush = "memory_flush"

// NotesMark begins the notes in the last message of a prompt: what its runtime tells an
// agent of the moment, behind what was asked or the result of a call.
const NotesMark = "[notes of the runtime:"

// FinishRejected is the finish of a turn whose prompt the provider refused in every
// form (ReasonRefused). The next run of the session does without the conversation
// before it if it is refused as well.
const FinishRejected = "request_refused"

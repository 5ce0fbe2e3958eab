package api

// FinishFlush is the finish of a turn that was a memory flush (docs/reference/context.md,
// Memory flush): before a compaction, the agent can write its notes in a turn that is
// not shown. The turn is persisted and paid like any other, but transcripts omit it.
const FinishFlush = "memory_flush"

// NotesMark is the beginning of the notes in the last message of a prompt. The runtime
// appends the notes, which describe the current situation, to the input or to the
// result of a tool call.
const NotesMark = "[notes of the runtime:"

// FinishRejected is the finish of a turn whose prompt the provider refused in every
// form (ReasonRefused). If the provider refuses the prompt of the session's next run
// too, that run omits the conversation before it.
const FinishRejected = "request_refused"

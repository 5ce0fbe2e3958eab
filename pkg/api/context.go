package api

// FinishFlush is the finish of a turn that was a memory flush (seed 004): before a
// compaction the agent is silently given the chance to write its notes. The turn
// is persisted and paid like any other; transcripts leave it out.
const FinishFlush = "memory_flush"

package api

// MaxImportLines is the limit of lines in one [ImportTranscript]. A longer transcript
// is imported in parts.
const MaxImportLines = 5000

// RunImport is the kind of a run that was not executed: its turns are from an imported
// transcript.
const RunImport RunKind = "import"

// ImportTranscript creates a session of an agent from lines of a transcript
// (docs/reference/context.md, Transcript format). It removes invalid parts and stores
// them separately: lines that are not JSON, unknown roles, times that decrease, results
// without a call and calls without a result. The other lines become turns that later
// prompts include; they cost nothing, and no tool is executed for them. A transcript
// can be imported in parts, each with the session of the first part and each beginning
// with a line of the user or the assistant. The answer is [Imported]. Errors: Invalid (no lines, over
// [MaxImportLines], no usable line for a new session), NotFound (agent or session),
// Conflict (the session has runs that were executed; it is terminated,
// ReasonTerminated; ReasonKeyTaken).
type ImportTranscript struct {
	Agent   string   `json:"agent"`
	Session string   `json:"sessionId,omitempty"` // "": a new one
	First   int      `json:"first,omitempty"`     // number of the first line in its file; 0: 1
	Lines   []string `json:"lines"`
	ID      string   `json:"id,omitempty"` // caller's idempotency key of this part, within the agent
}

// Subject returns the subject of the message.
func (ImportTranscript) Subject() Subject { return request(Loop, "import_transcript") }

// Imported is the answer to [ImportTranscript].
type Imported struct {
	Session string    `json:"sessionId"`
	Agent   string    `json:"agent"`
	Run     string    `json:"runId"` // run of the imported turns
	Turns   int       `json:"turns"`
	Kept    int       `json:"kept"` // lines that became turns
	Cut     []CutLine `json:"cut"`  // in the order of the file
	At      int64     `json:"at"`
}

// CutLine is a removed line of a transcript, or a removed call of a line.
type CutLine struct {
	Line   int    `json:"line"` // number in its file, from 1
	Reason string `json:"reason"`
	Text   string `json:"text"` // its beginning, at most 200 characters; the store of loop has the complete text
}

package api

// MaxImportLines is how many lines one [ImportTranscript] may carry; a longer
// transcript comes in parts.
const MaxImportLines = 5000

// RunImport is the kind of a run that nobody executed: its turns came from a
// transcript of elsewhere.
const RunImport RunKind = "import"

// ImportTranscript makes a new session of an agent out of the lines of seed 004's
// transcript format. What is damaged is cut out and kept aside: lines that are no
// JSON, unknown roles, times that go back, results without a call and calls
// without a result. What is left becomes turns that later prompts see; it costs
// nothing and no tool is run for it. Part after part may be given, each with the
// session of the first and each beginning with a line of the user or the
// assistant. Answers [Imported].
// Errors: Invalid (no lines, over [MaxImportLines], no line of a new session can
// be used), NotFound (agent or session), Conflict (the session has runs of its
// own; it is terminated, ReasonTerminated; ReasonKeyTaken).
type ImportTranscript struct {
	Agent   string   `json:"agent"`
	Session string   `json:"sessionId,omitempty"` // "" makes one
	First   int      `json:"first,omitempty"`     // number of the first line in its file; 0 is 1
	Lines   []string `json:"lines"`
	ID      string   `json:"id,omitempty"` // caller's idempotency key of this part, within the agent
}

// Subject of the message.
func (ImportTranscript) Subject() Subject { return request(Loop, "import_transcript") }

// Imported answers [ImportTranscript].
type Imported struct {
	Session string    `json:"sessionId"`
	Agent   string    `json:"agent"`
	Run     string    `json:"runId"` // that the turns belong to
	Turns   int       `json:"turns"`
	Kept    int       `json:"kept"` // lines that became turns
	Cut     []CutLine `json:"cut"`  // in the order of the file
	At      int64     `json:"at"`
}

// CutLine is a line of a transcript that was cut, or a call that was cut out of it.
type CutLine struct {
	Line   int    `json:"line"` // in its file, from 1
	Reason string `json:"reason"`
	Text   string `json:"text"` // how it begins: at most 200 characters. All of it is in loop's store
}

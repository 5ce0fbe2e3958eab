package git

// Run is run, and MemoryOf is memoryOf.
var (
	Run      = run
	MemoryOf = memoryOf
)

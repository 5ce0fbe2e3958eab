package git

// Run is run.
var Run = run

package rule

// DangerousForTest and SelfModificationForTest give tests one rule without the
// rules that speak before it.
func DangerousForTest() Rule { return dangerous() }

// SelfModificationForTest see [DangerousForTest].
func SelfModificationForTest() Rule { return selfModification(newGuards()) }

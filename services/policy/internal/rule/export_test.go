package rule

// DangerousForTest returns the rule authority.external_tool_restriction, so that a test
// can evaluate it without the rules of higher priority.
func DangerousForTest() Rule { return dangerous() }

// SelfModificationForTest returns the rule authority.self_mod_from_external; see
// [DangerousForTest].
func SelfModificationForTest() Rule { return selfModification(newProtectedPaths()) }

package api

// Messages returns the zero value of every message. Streams and permissions are derived
// from it, so every message must be in it.
func Messages() []Message {
	return []Message{
		ApplyAgent{}, GetAgent{}, ListAgents{}, DeleteAgent{}, SendMessage{}, GetSession{}, CreateSession{},
		ListSessions{}, GetTranscript{}, GetTurn{}, ReplayTurn{}, ForkTurn{}, ListTurns{}, Run{}, Journal{},
		LoopStart{}, LoopContext{}, LoopExecute{}, ToolStart{}, ToolEnd{}, StreamDelta{}, Thinking{}, ToolProgress{},
		GetOutput{}, ListTreasuryTools{}, CallTreasuryTool{}, ListHeartbeatTools{}, CallHeartbeatTool{},
		ListInferenceTools{}, CallInferenceTool{}, ListSocialTools{}, CallSocialTool{}, LoopPersist{}, LoopEnd{}, LoopError{}, AgentChanged{},

		GetRun{}, CancelRun{}, SessionNotice{}, TerminateSession{}, ResetSession{}, SleepAgent{}, ExplainAgent{},
		ImportTranscript{},

		ListMemory{}, ForgetMemory{}, RecallMemory{}, ListSouls{}, ListTools{}, CheckTool{}, ListSkills{}, GetSkill{},
		ListServers{}, ListGoals{}, GetGoal{}, CancelGoal{}, ReviewPlan{}, GoalCreated{}, GoalChanged{}, TaskChanged{},
		DoTask{},

		Complete{}, CompleteV2{}, Confirm{}, ListModels{},

		CheckCall{}, Evaluate{}, ApprovePlan{}, ListDecisions{}, ListRules{}, ListKeys{},

		OpenAccount{}, GetBalance{}, Hold{}, Settle{}, SettleMany{}, Release{}, ListHolds{}, GetSpent{}, Deposit{},
		Transfer{}, ListEntries{}, VerifyLedger{}, SignMessage{}, PostedBatch{}, TierChanged{},

		SetSchedule{}, GetSchedule{}, RunBeat{}, SetAlarm{}, RequestWake{}, ListTicks{}, Ticked{}, WakeRequested{},

		Send{}, ClaimInbox{}, SettleInbox{}, ListInbox{}, CountInbox{}, MessageReceived{},
	}
}

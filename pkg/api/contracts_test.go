package api

import "encoding/json"

// Contract holds an example of a message and, for a request, an example of its answer.
// Both are compared with golden files.
type Contract struct {
	Message Message
	Answer  any // nil unless the message is a [Request]
}

// Contracts returns an example of every message. docs/subjects.md, the JSON Schemas and
// the golden files are generated from it.
func Contracts() []Contract {
	const (
		at  = 1_790_000_000_000_000
		run = "0199c1a2-7b1e-7c55-9d3a-2f6a1b0c4d5e"
		adr = "0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed"
		bdr = "0xfB6916095ca1df60bB79Ce92cE3Ea74c37c5d359"
	)
	creator := Principal{Kind: Creator}
	call := ToolCall{ID: "call_1", Name: "exec", Arguments: `{"command":"wc -w notes.txt"}`}
	args := json.RawMessage(call.Arguments)
	agent := Agent{
		ID: "lucky", Name: "Lucky", Address: adr, Tools: []string{"exec", "sleep"}, State: StateSleeping,
		Reason: "nothing to do", Session: "lucky-main", Turns: 3, Version: 1, CreatedAt: at, UpdatedAt: at,
	}
	session := Session{
		ID: "lucky-main", Agent: "lucky", Messages: 4, Turns: 3, InputTokens: 1200, OutputTokens: 90, Cost: 1830,
		CreatedAt: at, UpdatedAt: at,
	}
	turn := Turn{
		ID: run + ".1", Agent: "lucky", Session: "lucky-main", Run: run, Number: 1, State: StateRunning,
		Input: "count the words", By: creator, Thinking: "I count.", Calls: []CallState{{
			Index: 0, ID: call.ID, Tool: call.Name, Arguments: args, Decision: "d1", Action: Allow,
			Outcome: OutcomeOK, Result: "7 notes.txt", DurationMS: 4,
		}},
		Model: "anima-sim-1", Provider: "simulated", Finish: "tool_calls", InputTokens: 400, OutputTokens: 30, Cost: 610,
		Trace: "0af7651916cd43dd8448eb211c80319c", StartedAt: at, EndedAt: at + 5000,
	}
	decision := Decision{
		ID: "d1", Agent: "lucky", Session: "lucky-main", Turn: run + ".1", Tool: "exec", ArgsHash: "e3b0", By: creator,
		Authority: 100, Risk: "caution", Action: Allow, Code: "ALLOWED", Evaluated: []string{"command.forbidden"},
		Triggered: []string{}, Version: "r1", LatencyUS: 41, At: at, Token: "e30.c2ln",
	}
	hold := HoldState{ID: run + ".1", Agent: "lucky", Status: HoldActive, Amount: 9000, Available: 991_000, Tier: TierHigh}
	posted := Posted{
		Seq: 2, ID: run + ".1/hold", Kind: "hold", Agent: "lucky", Turn: run + ".1", At: at, Previous: "00", Hash: "ab",
		Postings: []Posting{{Account: "agent:lucky", Amount: -9000}, {Account: "held:lucky", Amount: 9000}},
	}
	limited := AgentLimits{
		Agent: "lucky", Revision: 2, Available: 991_000, At: at,
		Own: Limits{
			Windows: []WindowLimit{{Window: WindowDay, Amount: new(5 * Dollar)}, {Window: WindowHour, Category: CategoryTransfer, Payments: new(int64(3))}},
			Reserve: new(Dollar), NewPayee: new(Dollar), ApproveAbove: new(10 * Dollar), CooldownMS: new(int64(60_000)), Payees: []string{"agent:bob"},
			Domains: []string{".example.com"}, Assets: []string{"usdc@eip155:8453"}, Facilitators: []string{"x402.org"}, Parent: "ada",
		},
		Usage: []LimitUsage{{Window: WindowDay, Amount: 5 * Dollar, Payments: Unlimited, Spent: 9000, Count: 1, FreesAt: at}},
	}
	limited.Effective = limited.Own
	approval := Approval{
		ID: "approval-0a1b2c3d4e5f6071", Agent: "lucky", Amount: 20 * Dollar, Category: CategoryTransfer, Payee: "agent:bob",
		Status: ApprovalOpen, Hold: run + ".1.0", AskedAt: at,
	}
	wake := Wake{Agent: "lucky", Cause: "alarm", Reason: "slept enough", By: Principal{Kind: HeartbeatKind}, At: at}
	tick := Ticked{Agent: "lucky", Name: "morning", Due: at, At: at + 1000}
	beat := Beat{Name: "morning", Cron: "0 8 * * *", Reason: "look at the news"}
	inbox := InboxMessage{
		ID: "m1", From: adr, To: bdr, Content: "hello", SignedAt: "2026-11-21T08:00:00.000Z", Signature: "0x01",
		Status: "received", ReceivedAt: at, Peer: "Lucky",
	}
	state := RunState{
		Run: run, Session: "lucky-main", Agent: "lucky", Kind: RunMessage, Status: RunEnded, Outcome: OutcomeConsumed, Success: true,
		Response: "Seven words.", Turns: 2, Cost: 1220, AcceptedAt: at, EndedAt: at + 12_000,
	}
	stored := decision
	stored.Token = ""
	declared := Model{
		ID: "anima-sim-2", Provider: "simulated", Lifecycle: LifeOperator, InputPrice: Dollar, OutputPrice: 7 * Dollar, ReasonPrice: 9 * Dollar,
		PriceVersion: 2, ContextWindow: 64_000, MaxOutput: 4096, TierMinimum: TierCritical, Usable: true, Breaker: "open", BreakerUntil: at, BreakerReason: "provider simulated cannot be reached",
	}
	checked := stored
	checked.ID = ""
	said := ForkedAnswer{
		Model: "anima-sim-1", Provider: "simulated", Text: "I count.", Finish: "tool_calls", InputTokens: 400, OutputTokens: 30, Cost: 610,
		Calls: []ForkedCall{{Tool: call.Name, Arguments: call.Arguments, Action: Allow, Code: "ALLOWED"}},
	}
	invocation := Invocation{
		Agent: "lucky", Turn: turn.ID, Tool: "check_credits", Args: json.RawMessage(`{}`), Key: turn.ID + ".0", Token: "e30.c2ln",
		At: at, Deadline: at + 30_000_000,
	}
	goal := Goal{
		ID: "g5f1c0ffee0ddba11", Agent: "lucky", Title: "A small book", Description: "Write a small book about luck.", Status: GoalActive,
		Phase: PhaseExecuting, By: Principal{Kind: Self}, Steps: 5, Version: 1, Estimate: 40 * Cent, Limit: 50 * Dollar, Spent: 1830,
		Seq: 4, CreatedAt: at, UpdatedAt: at,
	}
	planned := goal
	planned.Plans = []GoalPlan{{Version: 1, Status: PlanApproved, Source: "planner", Analysis: "Short.", Strategy: "Write, then read.", Risks: []string{}, Cost: 40 * Cent, Minutes: 10, Decision: "d1", At: at}}
	planned.Tasks = []GoalTask{{
		ID: goal.ID + "-1-1", Version: 1, Title: "Write it", Description: "Ten pages.", Status: TaskRunning, Role: "generalist", Assignee: "lucky",
		Session: "lucky-task-" + goal.ID + "-1-1", Priority: 50, Dependencies: []string{}, Attempt: 1, Run: run, MaxRetries: 3, Deadline: at,
		TimeoutMS: 300_000, Estimate: 40 * Cent, Spent: 0, StartedAt: at,
	}}
	apiKey := APIKey{
		ID: "5f1c0ffee0ddba11", Hint: "anima_k_abcd", Address: adr, Agent: "lucky", Name: "script", Scopes: []Scope{ScopeRead}, CreatedAt: at,
	}
	const tx = "0x5f1c0ffee0ddba115f1c0ffee0ddba115f1c0ffee0ddba115f1c0ffee0ddba11"
	wallet := WalletState{
		Agent: "lucky", Address: adr, Network: "dev", Known: true, Stale: true, OnChain: 24 * Dollar, Block: 41, BlockHash: tx, ReadAt: at,
		Error: "the RPC at rpc.example.com does not answer", Ledger: 25 * Dollar, Held: Cent, Frozen: &Freeze{Difference: 99 * Cent, Block: 40, Since: at},
		Deposits: []ChainDeposit{{Agent: "lucky", From: bdr, Amount: 25 * Dollar, Tx: tx, Block: 2, State: "final", Posting: "chain/dev/" + tx + "/" + adr + "/0", SeenAt: at}},
	}
	skill := Skill{Name: "weather", Description: "How to look the weather up.", Status: "active", Usable: true, Origin: "a file of the workspace"}

	return []Contract{
		{ApplyAgent{Source: "---\nname: Lucky\n---\nBe useful.\n"}, agent},
		{GetAgent{Agent: "lucky"}, agent},
		{ListAgents{}, Agents{Agents: []Agent{agent}}},
		{ListSchedules{After: "eve"}, Schedules{Agents: []AgentSchedule{{
			State: AgentChanged{Agent: "lucky", Name: "Lucky", Address: adr, State: StateSleeping, Previous: StateSleeping, Reason: "nothing to do", SleepUntil: at, Seq: 5, At: at},
			Beats: []Beat{{Name: "morning", Cron: "0 6 * * *", Reason: "plan the day"}},
		}}, Page: Page{Next: "lucky"}}},
		{DeleteAgent{Agent: "lucky", Force: true, Reason: "done with it"}, Deleted{Agent: "lucky", Address: adr, At: at, Left: 400 * Cent}},
		{
			SendMessage{Agent: "lucky", Content: "count the words", Mode: ModeQueue, ID: "m-1"},
			Accepted{Run: run, Session: "lucky-main", Agent: "lucky", At: at},
		},
		{GetSession{Session: "lucky-main"}, session},
		{CreateSession{Agent: "lucky", ID: "monday"}, session},
		{ListSessions{Agent: "lucky"}, Sessions{Sessions: []Session{session}}},
		{GetTranscript{Session: "lucky-main", After: 1}, Transcript{Lines: []TranscriptLine{{
			Seq: 2, Role: "assistant", Content: "I count.", ToolCalls: []ToolCall{call},
			Timestamp: "2026-11-21T08:00:00.000Z", Turn: turn.ID,
		}}}},
		{GetTurn{Turn: turn.ID}, turn},
		{ReplayTurn{Turn: turn.ID}, Replayed{
			Turn: turn.ID, Run: run, Session: "lucky-main", Agent: "lucky", Steps: 4, Owners: 1,
			Difference: Difference{Step: "prompt", Field: "tokens", Recorded: "400", Replayed: "412"},
		}},
		{ForkTurn{Turn: turn.ID, Model: "anima-sim-2"}, Forked{Turn: turn.ID, Recorded: said, Forked: said}},
		{ListTurns{Agent: "lucky", Limit: 1}, Turns{Turns: []Turn{turn}}},
		{Run{Run: run, Agent: "lucky", Session: "lucky-main", Kind: RunMessage, Content: "count the words", By: creator, AcceptedAt: at}, nil},
		{Journal{Session: "lucky-main", Run: run, Turn: 1, Epoch: 7, Kind: "begin", Entry: json.RawMessage(`{}`)}, nil},
		{LoopStart{Run: run, Session: "lucky-main", Agent: "lucky", Kind: RunMessage, At: at}, nil},
		{LoopContext{Run: run, Session: "lucky-main", Turn: turn.ID, TokenEstimate: 400, At: at}, nil},
		{LoopExecute{Run: run, Session: "lucky-main", Turn: turn.ID, ToolCount: 2, At: at}, nil},
		{ToolStart{Run: run, Session: "lucky-main", Turn: turn.ID, ToolName: "exec", ToolCallID: call.ID, Arguments: args, At: at}, nil},
		{ToolEnd{Run: run, Session: "lucky-main", Turn: turn.ID, ToolName: "exec", ToolCallID: call.ID, Outcome: OutcomeOK, Result: "7 notes.txt", Duration: 4, At: at}, nil},
		{StreamDelta{Run: run, Session: "lucky-main", Turn: turn.ID, Content: "I co"}, nil},
		{Thinking{Run: run, Session: "lucky-main", Turn: turn.ID, TokenEstimate: 400, ToolCount: 2, At: at, After: 7}, nil},
		{ToolProgress{Run: run, Session: "lucky-main", Turn: turn.ID, ToolName: "exec", ToolCallID: call.ID, Text: "3 of 7", Elapsed: 500}, nil},
		{GetOutput{Turn: turn.ID, Offset: 65_536}, OutputPart{Text: "the rest", Size: 65_544}},
		{ListTreasuryTools{}, ToolList{Tools: []string{"check_credits"}}},
		{CallTreasuryTool{invocation}, Returned{Text: "available $0.991, held $0.009, tier high"}},
		{ListHeartbeatTools{}, ToolList{Tools: []string{"heartbeat_ping"}}},
		{CallHeartbeatTool{invocation}, Returned{Text: "noted"}},
		{ListInferenceTools{}, ToolList{Tools: []string{"list_models"}}},
		{CallInferenceTool{invocation}, Returned{Text: "anima-sim-1"}},
		{ListSocialTools{}, ToolList{Tools: []string{"send_message"}}},
		{CallSocialTool{invocation}, Returned{Text: "sent as m1"}},
		{LoopPersist{Run: run, Session: "lucky-main", Turn: turn.ID, At: at}, nil},
		{LoopEnd{Run: run, Session: "lucky-main", Agent: "lucky", Success: true, Response: "Seven words.", Turns: 2, Cost: 1220, Duration: 12, At: at}, nil},
		{LoopError{Run: run, Session: "lucky-main", Code: Denied, Reason: ReasonInsufficient, Error: "cannot pay", At: at}, nil},
		{AgentChanged{Agent: "lucky", Name: "Lucky", Address: adr, State: StateSleeping, Previous: StateRunning, Reason: "nothing to do", SleepUntil: at, Seq: 5, At: at}, nil},

		{GetRun{Run: run, Session: "lucky-main"}, state},
		{CancelRun{Run: run, Session: "lucky-main", Reason: "changed my mind"}, state},
		{SessionNotice{Session: "lucky-main", Cancelled: run}, nil},
		{TerminateSession{Session: "lucky-1", Reason: "done with it"}, session},
		{ResetSession{Session: "lucky-main"}, session},
		{SleepAgent{Agent: "lucky", Until: at, Reason: "good night"}, agent},
		{ExplainAgent{Agent: "lucky"}, Explanation{
			Agent: agent, Since: at, Next: "sleeps until something happens", Counters: Counters{Idle: 1, Repeated: 1, Pattern: "exec"},
			History: []AgentChanged{{Agent: "lucky", Name: "Lucky", Address: adr, State: StateSleeping, Previous: StateRunning, Reason: "nothing to do", Seq: 5, At: at}},
		}},
		{
			ImportTranscript{Agent: "lucky", First: 1, Lines: []string{`{"role":"user","content":"hi","timestamp":"2026-11-21T08:00:00.000Z"}`, "oops"}, ID: "i-1"},
			Imported{Session: "lucky-" + run, Agent: "lucky", Run: run, Turns: 1, Kept: 1, Cut: []CutLine{{Line: 2, Reason: "not JSON", Text: "oops"}}, At: at},
		},

		{ListMemory{Agent: "lucky", Tier: MemorySemantic, Query: "price"}, Memories{Memories: []Memory{{
			Tier: MemorySemantic, ID: "financial/price", Kind: "financial", Title: "price", Text: "$4", Extra: "agent", Weight: 900, Count: 2,
			By: Principal{Kind: Peer, Address: adr}, At: at,
		}}}},
		{ForgetMemory{Agent: "lucky", Tier: MemorySemantic, ID: "financial/price"}, Forgotten{Agent: "lucky", Tier: MemorySemantic, ID: "financial/price", There: true}},
		{RecallMemory{Agent: "lucky", Query: "what does it cost?", Budget: 1000}, Recalled{Text: "## What you remember\n", Tokens: 6}},
		{ListSouls{Agent: "lucky"}, Souls{Souls: []SoulVersion{{Version: 1, Content: "---\nformat: soul/v1\n---\n", Hash: "e3b0", Source: "genesis", Reason: "born", At: at}}}},
		{ChooseModel{Agent: "lucky", Model: "anima-sim-2", LowCompute: true}, Agent{ID: "lucky", Name: "Lucky", Address: adr, Model: "anima-sim-1", Chosen: "anima-sim-2", LowCompute: true, Tools: []string{"exec"}, State: StateLow, Session: "lucky-main", Version: 1, CreatedAt: at, UpdatedAt: at}},
		{ListTools{Agent: "lucky"}, Tools{Tools: []ToolInfo{{
			Name: "git_push", Does: "Push commits.", Category: "git", Risk: "caution", Owner: Loop, Why: "it needs sandbox.network: true in AGENT.md", Granted: true,
		}}}},
		{CheckTool{Agent: "lucky", Tool: "exec", Args: args, By: Peer}, checked},
		{ListSkills{Agent: "lucky"}, Skills{Skills: []Skill{skill}}},
		{GetSkill{Agent: "lucky", Skill: "weather"}, skill},
		{ListServers{Agent: "lucky"}, Servers{Servers: []MCPServer{{
			Name: "files", Program: "npx -y @modelcontextprotocol/server-filesystem .", State: ServerConnected, Tools: []string{"mcp_files_read_file"}, Refused: []string{"x: its schema refers outside itself"},
		}}}},
		{ListGoals{Agent: "lucky"}, Goals{Goals: []Goal{goal}}},
		{GetGoal{Goal: goal.ID}, planned},
		{CancelGoal{Goal: goal.ID, Reason: "no more"}, goal},
		{ReviewPlan{Goal: goal.ID, Version: 1, Approve: true}, goal},
		{GoalCreated{Goal: goal.ID, Agent: "lucky", Title: goal.Title, By: goal.By, At: at}, nil},
		{GoalChanged{Goal: goal.ID, Agent: "lucky", Title: goal.Title, Status: GoalActive, Phase: PhaseExecuting, Previous: PhaseReview, Version: 1, Seq: 4, At: at}, nil},
		{TaskChanged{Task: goal.ID + "-1-1", Goal: goal.ID, Agent: "lucky", Title: "Write it", Status: TaskRunning, Previous: TaskAssigned, Attempt: 1, Run: run, Seq: 5, At: at}, nil},
		{DoTask{Goal: goal.ID, Task: goal.ID + "-1-1", Agent: "lucky", Attempt: 1}, nil},

		{Complete{
			ID: turn.ID + ".1", Agent: "lucky", Session: "lucky-main", Turn: turn.ID, Task: TaskTurn, Tier: TierHigh,
			Messages: []ChatMessage{{Role: "system", Content: "You are Lucky."}, {Role: "user", Content: "count the words"}},
			Tools:    []Tool{{Name: "exec", Description: "Run a shell command.", Schema: json.RawMessage(`{"type":"object"}`)}},
		}, Completion{Model: "anima-sim-1", Provider: "simulated", Text: "I count.", ToolCalls: []ToolCall{call}, Finish: "tool_calls", InputTokens: 400, OutputTokens: 30, Cost: 610, LatencyMS: 3}},
		{CompleteV2{
			Messages: json.RawMessage(`[{"role":"system","content":"You are Lucky."},{"role":"user","content":"count the words"}]`),
			Tools:    json.RawMessage(`[{"type":"function","function":{"name":"exec","description":"Run a shell command.","parameters":{"type":"object"}}}]`),
			Call:     Complete{ID: turn.ID + ".1", Agent: "lucky", Session: "lucky-main", Turn: turn.ID, Task: TaskTurn, Tier: TierHigh},
		}, Completion{Model: "anima-sim-1", Provider: "simulated", Text: "I count.", ToolCalls: []ToolCall{call}, Finish: "tool_calls", InputTokens: 400, OutputTokens: 30, Cost: 610, LatencyMS: 3}},
		{Confirm{ID: turn.ID, Agent: "lucky"}, Completion{Model: "anima-sim-1", Provider: "simulated", Text: "I count.", ToolCalls: []ToolCall{call}, Finish: "tool_calls", InputTokens: 400, OutputTokens: 30, Cost: 610, LatencyMS: 3, Funds: &Funds{Available: 999_390, Tier: TierHigh}}},
		{ListModels{}, Models{Models: []Model{{ID: "anima-sim-1", Provider: "simulated", InputPrice: 1_000_000, OutputPrice: 7_000_000, ContextWindow: 128_000, MaxOutput: 4096, TierMinimum: TierCritical, Usable: true}}}},
		{AddModel{Model: "anima-sim-2", Provider: "simulated", Prices: Prices{Input: Dollar, Output: 7 * Dollar, Reasoning: 9 * Dollar}, ContextWindow: 64_000, Fallback: true}, declared},
		{SetModelPrice{Model: "anima-sim-2", Prices: Prices{Input: Dollar, Output: 7 * Dollar, Cached: Dollar / 10, Write: 2 * Dollar, Reasoning: 9 * Dollar}, From: at}, declared},
		{RemoveModel{Model: "anima-sim-2", Provider: "simulated"}, declared},
		{RefreshModels{}, Models{Models: []Model{declared}, Faults: []string{"http://127.0.0.1:11434/v1: connection refused"}}},
		{ListModelPrices{Model: "anima-sim-2", Provider: "simulated"}, ModelPrices{Prices: []ModelPrice{{
			Provider: "simulated", Model: "anima-sim-2", Version: 2, Lifecycle: LifeOperator, Prices: Prices{Input: Dollar, Output: 7 * Dollar}, From: at, At: at, InUse: true,
		}}}},
		{
			ExplainRoute{Agent: "lucky", Task: TaskTurn, Model: "anima-sim-2", PromptTokens: 900, ToolTokens: 300, MaxTokens: 512},
			Route{Tier: TierHigh, Task: TaskTurn, Chosen: "anima-sim-1", MaxTokens: 8192, Ceiling: -1, Available: 9 * Dollar, TimeoutMS: 120_000, Candidates: []Candidate{
				{Model: "anima-sim-2", Why: "not registered"},
				{Model: "anima-sim-1", Provider: "simulated", Usable: true, MaxTokens: 300, Cost: 3848, Fewer: true, WithoutTools: true},
			}},
		},
		{GetMatrix{}, MatrixState{Matrix: Matrix{{Tier: TierHigh, Task: TaskTurn, Models: []string{"anima-sim-1"}, MaxTokens: 8192, Ceiling: -1}}, Builtin: true}},
		{SetMatrix{Matrix: Matrix{{Tier: TierCritical, Task: TaskPlanning, Models: []string{}}}}, MatrixState{Matrix: Matrix{{Tier: TierCritical, Task: TaskPlanning, Models: []string{}}}, Revision: 7}},

		{CheckCall{Evaluate{Agent: "lucky", Session: "lucky-main", Run: run, Turn: turn.ID, Tool: "exec", Args: args, By: creator, Workspace: "/data/lucky", Tools: []string{"exec"}}}, checked},
		{Evaluate{Agent: "lucky", Session: "lucky-main", Run: run, Turn: turn.ID, Tool: "exec", Args: args, By: creator, Workspace: "/data/lucky", Tools: []string{"exec"}}, decision},
		{
			ApprovePlan{Agent: "lucky", Goal: goal.ID, Version: 1, Title: goal.Title, Tasks: 1, Cost: 40 * Cent, Limit: 50 * Dollar, Hash: "9f86", By: goal.By},
			Decision{ID: "d2", Agent: "lucky", Session: "lucky-main", Turn: goal.ID, Index: 1, Tool: PlanTool, ArgsHash: "9f86", By: goal.By, Authority: 80, Risk: "caution", Action: Allow, Code: "ALLOWED", Evaluated: []string{"plan.limit"}, Triggered: []string{}, Version: "r1", At: at},
		},
		{ListDecisions{Turn: turn.ID}, Decisions{Decisions: []Decision{stored}}},
		{ListRules{}, Rules{Version: "r1", Rules: []Rule{{ID: "command.forbidden", Priority: 300, Tools: []string{"exec"}, Does: "refuses commands that destroy", Codes: []string{"FORBIDDEN_COMMAND"}}}}},
		{ListKeys{}, Keys{Keys: [][]byte{{1, 2, 3}}}},

		{OpenAccount{Agent: "lucky"}, Account{Agent: "lucky", Address: adr}},
		{GetBalance{Agent: "lucky"}, Balance{Agent: "lucky", Address: adr, Available: 991_000, Held: 9000, Tier: TierHigh, Entries: 2, At: at}},
		{Hold{ID: run + ".1", Agent: "lucky", Amount: 9000, Category: "inference", Turn: turn.ID, ExpiresAt: at}, hold},
		{Settle{ID: run + ".1", Amount: 610, Payee: "provider:simulated"}, HoldState{ID: run + ".1", Agent: "lucky", Status: HoldSettled, Amount: 9000, Settled: 610, Available: 999_390, Tier: TierHigh}},
		{
			SettleMany{Settlements: []Settlement{
				{ID: run + ".1", Amount: 610, Payee: "provider:simulated", TraceParent: "00-" + turn.Trace + "-b7ad6b7169203331-01"},
				{ID: run + ".9", Amount: 1, Payee: "provider:simulated"},
			}},
			Settled{
				Results: []SettleResult{
					{Hold: &HoldState{ID: run + ".1", Agent: "lucky", Status: HoldSettled, Amount: 9000, Settled: 610, Available: 999_390, Tier: TierHigh}},
					{Error: &Error{Code: NotFound, Message: `there is no hold "` + run + `.9"`, Next: "hold the money first"}},
				},
				Funds: []AgentFunds{{Agent: "lucky", Funds: Funds{Available: 999_390, Tier: TierHigh}}},
			},
		},
		{Release{ID: run + ".1", Reason: "provider failed"}, HoldState{ID: run + ".1", Agent: "lucky", Status: HoldReleased, Amount: 9000, Available: 1_000_000, Tier: TierHigh}},
		{ListHolds{Agent: "lucky"}, Holds{Holds: []HoldState{hold}}},
		{GetSpent{Agent: "lucky", Turn: turn.ID, Category: "inference"}, Spent{Paid: 610, Held: 9000}},
		{Deposit{ID: "d-1", Agent: "lucky", Amount: Dollar, Source: "faucet"}, posted},
		{Transfer{ID: "t-1", From: "lucky", To: "bob", Amount: Cent, Memo: "thanks"}, posted},
		{TopUp{ID: "m-1", Agent: "lucky", USD: 5}, TopUpState{ID: "m-1", Agent: "lucky", USD: 5, State: "done", Before: 20 * Cent, After: 520 * Cent}},
		{
			TriggerTopUp{Agent: "lucky", Cause: "loop: a run was refused", Refused: true, Missing: 2 * Dollar},
			TopUpTriggered{Agent: "lucky", Bought: true, Credits: 520 * Cent},
		},
		{
			SignReturn{ID: "b-1", Child: "bob", Amount: Cent},
			ReturnCredits{ID: "b-1", Child: "bob", Amount: Cent, ValidAfter: 1, ValidBefore: 3600, Signature: "0x01"},
		},
		{
			ReturnCredits{ID: "b-1", Child: "bob", Amount: Cent, ValidAfter: 1, ValidBefore: 3600, Signature: "0x01"},
			CreditsReturned{ID: "b-1", Child: "bob", Parent: "lucky", Amount: Cent, Left: Dollar, At: at},
		},
		{ListEntries{Agent: "lucky", After: 1}, Entries{Entries: []Posted{posted}}},
		{GetLimits{Agent: "lucky", Turn: turn.ID, Session: "lucky-main"}, limited},
		{SetLimits{ID: "s1", Agent: "lucky", Limits: limited.Own, Revision: 1}, limited},
		{ListApprovals{Agent: "lucky", Status: ApprovalOpen}, Approvals{Approvals: []Approval{approval}}},
		{DecideApproval{ID: approval.ID, Approve: true}, approval},
		{VerifyLedger{}, LedgerReport{Transactions: 2, Accounts: 3, ActiveHolds: 1, Head: "ab", OK: true}},
		{VerifyLedgerV2{}, LedgerReport{Transactions: 2, Accounts: 3, ActiveHolds: 1, Head: "ab", OK: true}},
		{GetBalanceAt{Agent: "lucky", Seq: 2}, BalanceAt{Agent: "lucky", Seq: 2, At: at, Available: 991_000, Held: 9000, Tier: TierHigh, USDC: Dollar}},
		{GetEconomics{Agents: []string{"lucky"}, Since: at, Until: at + 1}, Economics{
			Agents: []string{"lucky"}, Since: at, Until: at + 1, Balance: Dollar, Spent: []CategorySpent{{Category: "inference", Amount: 610}}, Profit: -610,
			BurnPerHour: 610, Runway: 5_901_639, Turns: 1, CostPerTurn: 610, Holds: []HoldsEnded{{Status: HoldSettled, Holds: 1, Amount: 9000, Paid: 610}},
			Buckets: []EconomicsPart{{At: at, Spent: 610}},
		}},
		{ExportLedger{Agent: "lucky", Since: at}, LedgerPage{Entries: []LedgerEntry{{
			Seq: 2, ID: "pay/settle", Kind: "settle", Agent: "lucky", At: at, Previous: "aa", Hash: "ab", Turn: turn.ID,
			Lines: []LedgerLine{{Account: "usdc-held:lucky", Asset: USDC, Amount: -Cent}, {Account: "usdc-payee:0xab", Asset: USDC, Amount: Cent, Balance: Cent}},
		}}, Next: 2}},
		{SignMessage{Agent: "lucky", To: bdr, Content: "hello", SignedAt: "2026-11-21T08:00:00.000Z"}, Signature{From: adr, Signature: "0x01"}},
		{
			Pay{ID: "p1", Agent: "lucky", Turn: "r1.1", Method: "POST", URL: "https://api.example.com/ask", Headers: map[string]string{"Accept": "text/plain"}, Body: []byte("q"), Max: Dollar},
			Payment{
				ID: "p1", Agent: "lucky", Turn: "r1.1", Method: "POST", URL: "https://api.example.com/ask", State: PaymentSettled, Amount: Cent, Network: "eip155:8453", Payer: adr, Payee: bdr,
				Nonce: "0x01", ValidBefore: 1, Transaction: "0x02", Reason: "late", Status: 200, ContentType: "text/plain", Body: []byte("a"), Cut: true, CreatedAt: 1, UpdatedAt: 2,
			},
		},
		{GetChain{}, ChainState{Network: "dev", ChainID: 1337, Token: adr, OK: true, Block: 41, ReadAt: at, Frozen: 1}},
		{GetWallet{Agent: "lucky"}, wallet},
		{FundUSDC{ID: "f1", Agent: "lucky", Amount: 25 * Dollar}, FundedUSDC{Address: adr, Tx: tx}},
		{ReconcileLedger{Agent: "lucky"}, Reconciliation{Network: "dev", Block: 41, Hash: tx, Accounts: []Reconciled{{
			Agent: "lucky", Address: adr, Ledger: 25 * Dollar, Chain: 24 * Dollar, Held: Cent, Difference: 99 * Cent, Frozen: true, Used: []string{tx},
		}}}},
		{ResolveFreeze{Agent: "lucky", Note: "moved by hand"}, wallet},
		{BackupWallet{Agent: "lucky"}, WalletBackup{Agent: "lucky", Address: adr, Keystore: `{"version":3}`}},
		{RestoreWallet{Agent: "lucky", Keystore: `{"version":3}`}, Account{Agent: "lucky", Address: adr}},
		{RotateWallet{Agent: "lucky", Address: adr}, RotatedWallet{Agent: "lucky", Earlier: adr, Address: "0x70997970C51812dc3A010C7d01b50e0d17dc79C8", Moved: Dollar, Tx: "0x01"}},
		{WalletChanged{Agent: "lucky", Earlier: adr, Address: "0x70997970C51812dc3A010C7d01b50e0d17dc79C8", At: at}, nil},
		{GetPayment{ID: "p1"}, Payment{ID: "p1", Agent: "lucky", Method: "GET", URL: "https://api.example.com/", State: PaymentFree, Status: 200, CreatedAt: 1, UpdatedAt: 2}},
		{
			ListPayments{Agent: "lucky", State: PaymentUnknown, Before: 1, Limit: 2},
			Payments{Payments: []Payment{{ID: "p1", Agent: "lucky", Method: "GET", URL: "https://api.example.com/", State: PaymentHeld, CreatedAt: 1, UpdatedAt: 2}}, More: true},
		},
		{PostedBatch{First: 2, Last: 2, Entries: []Posted{posted}}, nil},
		{TierChanged{Agent: "lucky", From: TierHigh, To: TierNormal, Balance: 400 * Cent, EntrySeq: 2, At: at}, nil},

		{SetSchedule{Agent: "lucky", Beats: []Beat{beat}}, Schedule{Entries: []ScheduleEntry{{Agent: "lucky", Beat: beat}}}},
		{GetSchedule{Agent: "lucky"}, Schedule{Entries: []ScheduleEntry{{Agent: "lucky", Beat: beat}}}},
		{RunBeat{Agent: "lucky", Name: beat.Name, ID: "monday"}, wake},
		{SetAlarm{ID: turn.ID + ".0", Agent: "lucky", At: at, Reason: "slept enough"}, Alarm{Agent: "lucky", At: at}},
		{RequestWake{Agent: "lucky", Cause: "creator-1", Reason: "I want to talk"}, wake},
		{ListTicks{Agent: "lucky"}, Ticks{Ticks: []Ticked{tick}}},
		{tick, nil},
		{WakeRequested{Wake: wake}, nil},

		{Send{From: adr, To: bdr, Content: "hello", SignedAt: "2026-11-21T08:00:00.000Z", Signature: "0x01"}, Sent{ID: "m1"}},
		{ClaimInbox{Agent: "bob", Run: run, Limit: 10}, Inbox{Messages: []InboxMessage{inbox}}},
		{SettleInbox{Agent: "bob", Run: run}, InboxCount{Unread: 0}},
		{ListInbox{Agent: "bob"}, Inbox{Messages: []InboxMessage{inbox}}},
		{CountInbox{Agent: "bob"}, InboxCount{Unread: 1}},
		{AuthenticateKey{Hash: "5f1c"}, KeyIdentity{Key: apiKey.ID, Address: adr, Account: "lucky", Scopes: apiKey.Scopes}},
		{CreateKey{Hash: "5f1c", Hint: apiKey.Hint, Agent: "lucky", Name: apiKey.Name, Scopes: apiKey.Scopes}, apiKey},
		{ListAPIKeys{Agent: "lucky"}, APIKeys{Keys: []APIKey{apiKey}}},
		{RevokeKey{ID: apiKey.ID}, apiKey},
		{MessageReceived{ID: "m1", Agent: "bob", From: adr, At: at}, nil},
	}
}

package api

// Access is what a service may do on the bus besides answering its own requests
// and writing its own events and commands. It is the whole list: in a cluster
// NATS refuses everything else. That only the router may settle a hold, only
// loop may have a message signed, and nobody but the operator may deposit, is
// said here and enforced there.
type Access struct {
	Calls    []Message // requests it makes
	Consumes []Message // events that it handles, by durables
	Follows  []Message // events that it reads by a cursor of its own
	Keys     []string  // of the coordination bucket that it writes, as patterns
	Objects  []string  // object buckets that it reads and writes
}

// AccessOf returns a service's access. An owner that nobody knows has none.
func AccessOf(o Owner) Access {
	a := accessOf(o)
	for _, known := range Owners() {
		if o == known {
			a.Keys = append(a.Keys, MarkKey(o.Service()))
		}
	}
	return a
}

func accessOf(o Owner) Access {
	switch o {
	case Loop:
		return Access{
			Calls: []Message{
				OpenAccount{},
				GetBalance{},
				GetSpent{}, // for a turn that ends without its answer
				SignMessage{},
				SetSchedule{},
				SetAlarm{},
				RequestWake{},
				Complete{},
				CompleteV2{},
				Confirm{},
				ListModels{},
				Evaluate{},
				CheckCall{},
				ApprovePlan{},
				CancelRun{}, // its own, of a task whose goal is over
				ListKeys{},
				Send{},
				ListInbox{},
				ClaimInbox{},
				SettleInbox{},
				ListTreasuryTools{},
				CallTreasuryTool{},
				ListHeartbeatTools{},
				CallHeartbeatTool{},
				ListInferenceTools{},
				CallInferenceTool{},
			},
			Consumes: []Message{TierChanged{}, LoopEnd{}, GoalCreated{}, GoalChanged{}},
			Keys:     []string{LockKey("*"), WakeKeys, LeaseKey("goal.*")},
			Objects:  []string{Outputs},
		}
	case Inference:
		return Access{Calls: []Message{Hold{}, Settle{}, SettleMany{}, Release{}, ListHolds{}, ListKeys{}}}
	case Heartbeat:
		return Access{
			Calls: []Message{ListKeys{}}, Consumes: []Message{MessageReceived{}, GoalChanged{}}, Follows: []Message{AgentChanged{}},
			Keys: []string{LeaseKey(">"), WakeKeys},
		}
	case Social:
		return Access{Consumes: []Message{AgentChanged{}}}
	case Treasury:
		return Access{Calls: []Message{ListKeys{}}}
	case Policy:
	}
	return Access{}
}

// Owners lists the services.
func Owners() []Owner { return []Owner{Heartbeat, Inference, Loop, Policy, Social, Treasury} }

// Service is the name of an owner's service: of its program, its image, its
// durables and its user.
func (o Owner) Service() string {
	if o == Inference {
		return "inference-router"
	}
	return string(o)
}

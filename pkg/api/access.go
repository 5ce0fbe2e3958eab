package api

import "slices"

// Access describes what a service may do on the bus, besides answering its own requests
// and publishing its own messages. The NATS permissions of each service are generated
// from it, and in a cluster the servers refuse everything else. It is the source of
// these rules: only inference-router settles holds, only social and loop have messages
// signed, and only the operator deposits and sets the routing matrix.
type Access struct {
	Calls    []Message // requests that it sends
	Consumes []Message // events that it handles with durables
	Follows  []Message // events that it reads with a cursor
	Keys     []string  // patterns of the keys that it writes in the coordination bucket
	Objects  []string  // object buckets that it reads and writes
}

// AccessOf returns the access of a service. An unknown owner has none.
func AccessOf(o Owner) Access {
	a := accessOf(o)
	if slices.Contains(Owners(), o) {
		a.Keys = append(a.Keys, MarkKey(o.Service()))
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
				TriggerTopUp{},
				GetSpent{},    // for a turn that ends without a completion
				SignMessage{}, // only the previous release, which sends messages itself
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
				CancelRun{}, // of a release before, whose goals cancelled their tasks by a request
				ListKeys{},
				Send{}, // only the previous release
				ListInbox{},
				ClaimInbox{},
				SettleInbox{},
				ListTreasuryTools{},
				CallTreasuryTool{},
				ListHeartbeatTools{},
				CallHeartbeatTool{},
				ListInferenceTools{},
				CallInferenceTool{},
				ListSocialTools{},
				CallSocialTool{},
			},
			Consumes: []Message{TierChanged{}, WalletChanged{}, LoopEnd{}, GoalCreated{}, GoalChanged{}},
			Keys:     []string{LockKey("*"), WakeKeys, LeaseKey("goal.*")},
			Objects:  []string{Outputs},
		}
	case Inference:
		return Access{
			Calls: []Message{GetBalance{}, Hold{}, Settle{}, SettleMany{}, Release{}, ListHolds{}, ListKeys{}, AuthenticateKey{}, GetAgent{}, ChooseModel{}},
			Keys:  []string{HealthKeys, MatrixKey, AttemptKeys, RegistryKey},
		}
	case Heartbeat:
		return Access{
			Calls: []Message{ListKeys{}, TriggerTopUp{}, ListSchedules{}}, Consumes: []Message{MessageReceived{}, GoalChanged{}}, Follows: []Message{AgentChanged{}},
			Keys: []string{LeaseKey(">"), WakeKeys},
		}
	case Social:
		return Access{Calls: []Message{ListKeys{}, SignMessage{}}, Consumes: []Message{AgentChanged{}}}
	case Treasury:
		return Access{Calls: []Message{ListKeys{}, AuthenticateKey{}}}
	case Policy:
	}
	return Access{}
}

// Owners returns the owners of all services, by name.
func Owners() []Owner { return []Owner{Heartbeat, Inference, Loop, Policy, Social, Treasury} }

// Service returns the name of the owner's service. It is also the name of the program,
// the image and the NATS user, and the prefix of the service's durables.
func (o Owner) Service() string {
	if o == Inference {
		return "inference-router"
	}
	return string(o)
}

package api

// Advice returns what a person can do about an error: e.Next if it is set, else a text
// for its reason, else one for its code. It is never empty. Programs that show errors
// to people show it, so services need not set Next to the same text.
func Advice(e *Error) string {
	if e.Next != "" {
		return e.Next
	}
	if OverLimit(e.Reason) {
		return "anima budget get NAME shows the limits of the agent and when they allow the payment"
	}
	switch e.Reason {
	case ReasonInsufficient:
		return "fund the agent: anima agent fund NAME 5"
	case ReasonLimit:
		return "try again later; anima status shows the waiting work"
	case ReasonNoModel:
		return "anima model list shows which models can be used, and why the others cannot"
	case ReasonTooLong, ReasonTooLarge:
		return "send less at once, or put the long part into a file of the agent's folder"
	case ReasonProvider, ReasonAttempts, ReasonTimeout:
		return "try again; anima model list shows which models can be used"
	case ReasonAuth, ReasonQuota, ReasonEndpoint:
		return "correct the provider's key or address and start anima again; docs/config.md lists the settings"
	case ReasonRefused:
		return "the message is the provider's; anima session events SESSION shows the request"
	case ReasonBusy, ReasonTooSlow:
		return "try again in a moment"
	case ReasonNoAnswer, ReasonPolicy:
		return "anima status shows which services answer; start the one that does not"
	case ReasonCancelled, ReasonExpired:
		return "send the message again if it is still wanted: anima session send NAME"
	case ReasonCostCap:
		return "anima goal list shows the goal and its cost"
	case ReasonTerminated, ReasonOverflow:
		return "begin another session: anima session create NAME"
	case ReasonNoSpace:
		return "make room on the disk of the data folder, then try again"
	case ReasonKeyTaken:
		return "use another id for another request"
	case ReasonScope:
		return "use a key with the scope that the message names: anima key list and anima key create"
	case ReasonNotSigned:
		return "compare the payment with the limits of the agent: anima ledger balance NAME"
	case ReasonChain:
		return "check the address of the chain's node in the settings of treasury, docs/config.md; nothing is bought until it answers"
	case ReasonFrozen:
		return "compare the ledger with the chain: anima ledger reconcile"
	case ReasonNoParent:
		return "set the parent of the child: anima budget set CHILD --parent PARENT"
	case ReasonNoChain:
		return "set ANIMA_TREASURY_RPC_URL and ANIMA_TREASURY_NETWORK; docs/x402.md describes payments"
	case ReasonOffer:
		return "anima payment list shows the payment; use another seller, or a higher maximum"
	case FinishLength, FinishFilter, FinishRefusal, FinishEmpty, FinishRepetition:
		return "rephrase the message and send it again; anima turn list shows the model's answer"
	}
	switch e.Code {
	case Invalid:
		return "correct the request and try again; anima COMMAND --help and docs/http.md describe the accepted input"
	case NotFound:
		return "check the id against the existing ones: anima agent list, anima session list"
	case Conflict:
		return "check the current state, then try again: anima status"
	case Denied:
		return "anima policy decisions shows the refused calls and the reasons"
	case Unavailable:
		return "try again in a moment; anima status shows which services do not answer"
	case Internal:
	}
	return "see the log of the service that answered; anima status shows which services are running"
}

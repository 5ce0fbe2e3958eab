package main

// listDetails returns the part of [details] for the commands that show something, and for
// those that need no explanation beside their examples.
func listDetails() map[string]string {
	return map[string]string{
		"demo": `Starts all services in a new folder with the simulated model, runs the example to the
end and checks its turns, its money and its trace. No port is opened but that of the dev
chain, and no provider is called.

Examples:
  anima demo
  anima demo --keep
  anima demo -o json | jq .trace`,

		"agent list": `Examples:
  anima agent list
  anima agent list --watch
  anima agent list -o json | jq -r '.agents[].id'`,

		"agent get": `Examples:
  anima agent get lucky
  anima agent get lucky -o json | jq .balance`,

		"agent wake": `The wake runs on the main session of the agent, after the messages that wait there.

Examples:
  anima agent wake lucky
  anima agent wake lucky --reason "the report is ready"`,

		"session list": `Examples:
  anima session list
  anima session list lucky --limit 10`,

		"turn list": `Examples:
  anima turn list lucky
  anima turn list --limit 5 -o json | jq -r '.turns[].id'`,

		"turn show": `Examples:
  anima turn show 0199c1a2-7b1e-7c55-9d3a-2f6a1b0c4d5e.1
  anima turn show 0199c1a2-7b1e-7c55-9d3a-2f6a1b0c4d5e.1 -o json | jq .calls`,

		"goal show": `Examples:
  anima goal show g-1
  anima goal show g-1 --watch`,

		"memory search": `Examples:
  anima memory search lucky price of bread
  anima memory search lucky price --tier semantic -o json`,

		"soul show": `Examples:
  anima soul show lucky
  anima soul show lucky --version 3`,

		"soul history": `Examples:
  anima soul history lucky`,

		"skill list": `Examples:
  anima skill list lucky`,

		"skill show": `Examples:
  anima skill show lucky weather`,

		"heartbeat history": `Examples:
  anima heartbeat history
  anima heartbeat history lucky --limit 10`,

		"ledger entries": `Examples:
  anima ledger entries lucky
  anima ledger entries --after 120 -o json`,

		"budget refuse": `Examples:
  anima budget refuse approval-0a1b2c3d4e5f6071`,

		"policy rules": `Examples:
  anima policy rules`,

		"policy decisions": `Examples:
  anima policy decisions lucky
  anima policy decisions --turn 0199c1a2-7b1e-7c55-9d3a-2f6a1b0c4d5e.1`,

		"model prices": `Examples:
  anima model prices
  anima model prices gpt-5.2 --provider openai`,

		"model refresh": `Examples:
  anima model refresh`,

		"model matrix get": `Examples:
  anima model matrix get
  anima model matrix get -o json > matrix.json`,

		"model matrix reset": `Examples:
  anima model matrix reset`,

		"context list": `Examples:
  anima context list`,

		"context select": `Examples:
  anima context select prod
  anima context select        select none: use the anima up of this machine`,

		"context show": `Examples:
  anima context show
  anima context show prod -o json`,

		"context remove": `Examples:
  anima context remove lab`,

		"help": `Examples:
  anima help session send`,

		"version": `Examples:
  anima version
  anima version -o json`,

		"completion": `Without -c, prints how to activate the completion; with -c, the script for the shell,
by default the login shell. Names of agents, sessions, goals and contexts are completed too.

Examples:
  eval "$(anima completion -c bash)"
  anima completion -c fish > ~/.config/fish/completions/anima.fish`,
	}
}

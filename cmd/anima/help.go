package main

import "maps"

// shortHelp is the output of the program without arguments.
const shortHelp = `anima runs self-funding AI agents on NATS JetStream.

First commands:
  anima init                   write the AGENT.md of your agent and choose its model
  anima up                     run all services on this machine
  anima chat lucky             talk with an agent
  anima agent list             list the agents
  anima session watch lucky    watch the runs of an agent

anima --help lists all commands, anima help COMMAND explains one.`

// examples is the second part of the output of anima --help.
const examples = `Examples:
  anima init                                    write the AGENT.md of your agent, and choose its model
  anima up --agent AGENT.md                     run all services on this machine, with your agent
  anima demo                                    run one complete example
  anima agent apply AGENT.md                    create an agent, or change it
  anima agent fund lucky 5                      give it five dollars
  anima chat lucky                              talk with it
  anima session send lucky "what can you do?"   send a message and show the run
  anima session watch lucky                     watch its runs
  anima agent explain lucky                     show why it sleeps, and what would wake it
  anima turn show ID -o json                    show one turn
  anima goal approve ID                         approve a plan that waits for approval
  anima status                                  show services, agents, queues, money and models

Exit codes:
  0 done                    3 not found
  1 failed                  4 denied
  2 the input is invalid    5 in conflict with the current state
                            6 unavailable: try again
session send and chat also, when the completion of the run is incomplete:
  10 cut at the output limit         13 empty
  11 withheld by the provider        14 repeats itself
  12 refused by the model            15 a time limit has passed`

// details returns the texts that --help prints below the usage, by command.
func details() map[string]string {
	all := moneyDetails()
	maps.Copy(all, listDetails())
	maps.Copy(all, map[string]string{
		"init": `On a terminal the command asks for values that the flags do not give. Otherwise it
lists the missing values and fails. It replaces an existing AGENT.md only with
--force; repeating the command with the same answers changes nothing.

The model service and its key are stored in provider.json in the data folder, which
only its owner can read, and anima up uses them. If a variable of a model provider is in
the environment of anima up (OPENAI_*, ANTHROPIC_*, CONWAY_*, OLLAMA_HOST) and not empty,
the file is not read, and anima up warns of that.

Examples:
  anima init
  anima init nova.md --name Nova --genesis "You watch the ledger and say so." --yes
  anima init --name Nova --genesis-file prompt.md --creator 0x5aAe… --no-autonomy -o json
  anima init --name Nova --genesis "Be useful." --model-url http://127.0.0.1:11434/v1
  anima init --name Nova --genesis "Be useful." --fund 5`,

		"up": `All data is in the data folder, which only one running anima can use. The settings of
the services are environment variables, which docs/config.md lists. On a terminal the
command prints a line for each turn of each agent.

Examples:
  anima up
  anima up --agent AGENT.md
  anima up --port 9000                         HTTP on 9000, health on 9001, NATS on 9002
  anima up --data ./play --port 0              in addition to another one, on free ports
  OPENAI_API_KEY=... anima up --sync always
  OPENAI_BASE_URL=http://127.0.0.1:11434/v1 anima up
  anima up --jaeger                            export traces to the Jaeger of make jaeger
  anima up --jaeger=http://127.0.0.1:26686     export traces to another Jaeger`,

		"agent apply": `If the file has faults, each is listed with its line, and nothing is changed.

Examples:
  anima agent apply AGENT.md
  cat AGENT.md | anima agent apply -`,

		"agent explain": `Shows why the agent is in its state, since when, which events would change it, and
the history of its states with the reasons. The counters are of its main session.

Examples:
  anima agent explain lucky
  anima agent explain lucky --limit 100 -o json`,

		"agent sleep": `The runs of its main session and of its mail session are cancelled, also those that
wait. Without a time the agent sleeps until the next message, wake or alarm.

Examples:
  anima agent sleep lucky
  anima agent sleep lucky --for 1h --reason "too loud"
  anima agent sleep lucky --until 08:00`,

		"agent fund": `The money comes from the faucet, which is open in the dev profile only.

Examples:
  anima agent fund lucky 5
  anima agent fund lucky 0.25 --id monday`,

		"agent delete": `The runs of the agent are cancelled, its sessions accept no messages, its goal is
cancelled and its schedule is cleared. Transcripts, decisions and the ledger stay. An
agent whose account holds money is not deleted: transfer the money first, or use
--force. Applying an AGENT.md of the same name restores the agent, with its account,
its main session and, without --forget, its memories.

Examples:
  anima agent delete lucky
  anima ledger transfer lucky bob 4.20 && anima agent delete lucky --forget`,

		"chat": `On a terminal, each line is a message; a line that ends with a backslash continues on
the next line, and pasted text is one message. The answer is shown as it arrives.
Ctrl-c cancels the run in progress, and a second ctrl-c exits; at the prompt, ctrl-c
and ctrl-d exit. Otherwise each line of standard input is a message, and the exit
code is that of the last message that failed.

  /help            list these commands
  /history [N]     show the last turns
  /new             continue in a new session
  /session         show the session's id and cost
  /quit            exit

Examples:
  anima chat lucky
  anima chat lucky --session new
  printf 'hello\nwhat did I say?\n' | anima chat lucky`,

		"session send": `Without --no-wait the command shows the text of the model and the tool calls as they
happen and ends with the run; it fails if the run fails. With -o json it prints the
events, one per line, as session events does; the last is loop_end. While the server
cannot be reached, the command reconnects and continues after the last event;
--timeout limits the whole wait. A message that is merged into another run (steer,
collect) ends with that run.

Examples:
  anima session send lucky "count the words of notes.txt"
  anima session send lucky "only the long ones" --mode steer
  anima session send lucky "stop, read this first" --mode interrupt
  anima session send lucky --session new "something else"
  anima session send lucky - < question.txt
  anima session send lucky "good night" --no-wait -o json`,

		"session watch": `Shows the input of each run, the text of the model as it arrives, the tool calls with
their arguments and results, and the cost. The command runs until it is interrupted
and reconnects after a restart of the server. With -o json it prints the events, one
per line; events that are not stored (thinking, stream_delta) have no seq.

Examples:
  anima session watch lucky
  anima session watch lucky-main --all
  anima session watch lucky-main -o json | jq -r .event`,

		"session create": `Examples:
  anima session create lucky --id billing
  anima session send lucky "hello" --session $(anima session create lucky --id billing -o json | jq -r .id)`,

		"session get": `Shows the owner of the session, the next message, and the last step of its journal.
Each step gives the owner a lease of the session, and the last step of a run releases
it. If a run waits longer for a model or a tool, its owner renews the lease in a lock:
an old step of a session with an owner means that the owner waits.

Examples:
  anima session get lucky-main`,

		"session transcript": `With -o json, one message per line.

Examples:
  anima session transcript lucky-main
  anima session transcript lucky-main -o json | jq -r .content`,

		"session events": `With -o json, the output has one event per line. Events that were stored together
have the same seq, and all but the last of them have "more": true. To continue with
--after, use the seq of an event without it.

Examples:
  anima session events lucky-main
  anima session events lucky-main --watch --after 120 -o json`,

		"session cancel": `A run that waits is dropped. A run in progress calls no further tool, its commands
are stopped, and it is not resumed. A run that has ended does not change.

Examples:
  anima session cancel 0199c1a2-7b1e-7c55-9d3a-2f6a1b0c4d5e --session lucky-main`,

		"session reset": `Earlier turns are no longer sent to a model. They stay in the transcript, and the
agent keeps its memories and files. A busy session is not reset.

Examples:
  anima session reset lucky-main`,

		"session terminate": `The run in progress is cancelled, waiting messages are dropped, and the session
accepts no further messages. Its transcript stays. If it is the main session of an
agent, the agent gets a new one: anima agent get shows it.

Examples:
  anima session terminate lucky-0199c1a2-7b1e-7c55-9d3a-2f6a1b0c4d5e`,

		"session export": `Writes all messages of the session, one per line. A file is written completely or not
at all.

Examples:
  anima session export lucky-main | tail -1
  anima session export lucky-main -f lucky.jsonl`,

		"session import": `A new session is created from the lines. Later turns have them in their prompts; tool
calls in the lines are not executed. Damaged lines are omitted and listed: invalid
JSON, unknown roles, decreasing times, results without a call, calls without a result.

Examples:
  anima session import lucky lucky.jsonl
  anima session export lucky-main | anima session import nova -`,

		"run get": `Every accepted message has one outcome: consumed (it was run), merged (into another
run), dropped or expired.

Examples:
  anima run get 0199c1a2-7b1e-7c55-9d3a-2f6a1b0c4d5e --session lucky-main`,

		"turn output": `A turn has only a part of a long output; the complete output is kept for seven days.
With -o json, the output has one part per line.

Examples:
  anima turn output 0199c1a2-7b1e-7c55-9d3a-2f6a1b0c4d5e.1 0 | less`,

		"turn replay": `The engine executes the turn again. The answers of the model, of policy, of the tools
and of the agent's files come from the journal, which is kept for 7 days, and from the
store: no service is called, nothing is paid, and no tool is executed. A takeover
during the turn is repeated. Any difference in the prompt, the steps, the stored turn
or the end of the run is a fault or a change of the engine: the first one is shown,
and the exit code is 1.

Examples:
  anima turn replay 0199c1a2-7b1e-7c55-9d3a-2f6a1b0c4d5e.1
  anima turn replay --agent lucky --limit 10000
  anima turn replay 0199c1a2-7b1e-7c55-9d3a-2f6a1b0c4d5e.1 --fork --model gpt-5
  anima turn replay 0199c1a2-7b1e-7c55-9d3a-2f6a1b0c4d5e.1 --fork --policy`,

		"model route": `Shows the model that a call would use at this moment; the call is not made. With
--explain, each candidate is listed in the order to try them, with its output limit,
the most that the call can cost, and the reason if it is not used. The router uses the
same selection for its calls. Without an agent, no credits are considered.

Examples:
  anima model route lucky --explain
  anima model route --tier critical --task planning --explain
  anima model route lucky --prompt-tokens 9000 --images 2 --explain
  anima model route lucky --prompt-tokens 90000 --max-tokens 500 --explain -o json`,

		"agent model": `The choice precedes the model of the definition, applies from the next model call on,
also of a run in progress, and ends with the next choice or a new definition. The agent
makes it itself with the tools switch_model and enter_low_compute.

Examples:
  anima agent model lucky gpt-5-mini
  anima agent model lucky --low
  anima agent model lucky`,

		"model list": `FROM says who added the model: a release (baseline), the list of its provider
(discovered), or the operator, with anima model add or in the settings. PRICE is the
version of the price in use; see anima model prices. A model without a known price is
not used unless it is local. A model that vanished from its provider's list is not used
and keeps its last price; anima model remove ends the alert about it. A model with an
open breaker is not called until the given time.

Examples:
  anima model list
  anima model list -o json`,

		"model add": `The declaration precedes the list of the provider, and no refresh changes it. Prices
are in dollars for a million tokens. Adding the same model again replaces it.

Examples:
  anima model add acme-large --in 1.5 --out 6 --window 128000
  anima model add llama3.3 --provider ollama --in 0 --out 0 --window 131072 --fallback
  anima model add thinker --in 1 --out 4 --cached 0.1 --reasoning 6 --tier normal`,

		"model set-price": `Stores another version of the price; versions are never changed, and each attempt has
the version that it was paid by. The price precedes that of the provider's list and of
the release, until anima model remove withdraws it. It applies to calls that begin
after it is set.

Examples:
  anima model set-price gpt-5.2 --in 1.75 --out 14 --cached 0.175
  anima model set-price gpt-5.2 --in 1.5 --out 12 --from 2027-01-01T00:00:00Z`,

		"model remove": `Removes the declaration of anima model add, withdraws the prices of the operator, and
removes a model that has vanished from the list of its provider. A model that the list
still has stays, with the price of the list.

Examples:
  anima model remove acme-large
  anima model remove gpt-5.2 --provider openai`,

		"model matrix set": `The file has the form of anima model matrix get -o json; its fields builtin and
revision are ignored. Each tier and task needs a cell. A cell without models is served
only by free models. Ceilings are in micro-USD, -1 is none. The router checks the
matrix, stores it, and every replica uses it for the next calls; calls in progress are
not changed. Only the operator may set it.

Examples:
  anima model matrix get -o json > matrix.json
  anima model matrix set matrix.json
  anima model matrix reset`,

		"goal list": `A goal in phase plan_review waits for your approval: see anima goal approve.

Examples:
  anima goal list lucky
  anima goal list --status active --watch`,

		"goal approve": `A plan requires approval if it costs more than its limit, or if the principal of the
goal is a peer or external. Read the plan first.

Examples:
  anima goal show g-1
  anima goal approve g-1 --version 2`,

		"goal reject": `The planner makes another plan, with your feedback.

Examples:
  anima goal reject g-1 "half the price, and no e-mail"`,

		"goal cancel": `The open tasks of the goal and their runs are cancelled. A goal that has ended does
not change.

Examples:
  anima goal cancel g-1 --reason "not needed any more"`,

		"memory list": `Lists, for each tier, the memories that recall would select first. MEMORY is the
argument of anima memory forget.

Examples:
  anima memory list lucky --tier semantic
  anima memory list lucky --history -o json`,

		"memory forget": `A removed fact stays in the history (anima memory list --history).

Examples:
  anima memory forget lucky semantic financial/price`,

		"tool list": `DEFAULT marks the tools of an AGENT.md that names none.

Examples:
  anima tool list --usable
  anima tool list lucky
  anima tool list lucky --all -o json`,

		"server list": `A server is idle until its tools are needed. Credentials are not shown.

Examples:
  anima server list lucky --connect`,

		"heartbeat list": `Times are UTC. The schedule is a part of AGENT.md: change it there and apply it.

Examples:
  anima heartbeat list
  anima heartbeat list lucky -o json`,

		"heartbeat run": `The agent is told the entry's reason, with the authority of the entry. The next time
of the entry does not change.

Examples:
  anima heartbeat run lucky morning`,

		"social inbox": `The command does not consume the messages.

Examples:
  anima social inbox lucky --status received
  anima social inbox lucky --watch`,

		"key create": `A program sends the key as Authorization (with or without Bearer) or X-API-Key. It acts for
this agent only: read permits the balance, prices and models; spend permits transfers and
model calls, which the agent pays. The key is printed once; only its hash is stored.

Examples:
  anima key create lucky
  anima key create lucky --name dashboard --scopes read --expires 720h
  KEY=$(anima key create lucky)
  anima key create 0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed --name client`,

		"key list": `The list has the beginning of each key, not the key itself, and keys that ended in the last 30 days.

Examples:
  anima key list
  anima key list lucky -o json`,

		"key revoke": `The HTTP API refuses the key at the latest five seconds later.

Examples:
  anima key revoke 5f1c0ffee0ddba11`,

		"social send": `The message is signed with the agent's wallet, and its sender is the agent.

Examples:
  anima social send lucky bob "are you there?"
  anima social send lucky 0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed - < letter.txt`,

		"social card": `The card has the format of an ERC-8004 registration file and is printed as JSON with
either value of -o.

Examples:
  anima social card lucky > agent-card.json`,

		"policy check": `Nothing is executed and nothing is recorded. The command fails when the call is
not allowed.

Examples:
  anima policy check exec '{"command":"rm -rf /"}' --agent lucky
  anima policy check transfer_credits '{"to_address":"0x…","amount_cents":5}' --by peer`,

		"status": `Shows the services that answer, the agents and their states, the lengths of the queues,
the money, the models and the size of the streams. The command fails if a service does
not answer.

Examples:
  anima status
  anima status --watch
  anima status -o json --context prod`,

		"doctor": `Checks an installation and changes nothing: the disk and its reserve, the file modes
of the secrets, whether databases and streams belong to one installation and agree
with each other, the ledger, streams and consumers, unpublished messages, locks, runs
without an end, models and clocks.

The command checks the anima that runs on the data folder, or the folder itself if
none runs. With --nats or a context it checks services elsewhere through NATS, and
those whose ops addresses are given. The exit code is 1 if there is a fault; warnings
do not change it.

Examples:
  anima doctor
  anima doctor -o json | jq '.[] | select(.level != "ok")'
  anima doctor --data ./play
  anima doctor --nats nats://127.0.0.1:4222 --ops http://127.0.0.1:9090`,

		"context add": `Contexts are stored in ~/.config/anima/contexts.json, which only its owner can read. A
command uses the first of these that is set: --nats or ANIMA_NATS_URL, --context,
ANIMA_CONTEXT, --data or ANIMA_DATA, the selected context. Otherwise it uses the
anima up of this machine.

Examples:
  anima context add prod tls://nats.example.com:4222 --nkey-file operator.nk --select
  anima context add lab nats://127.0.0.1:4222 --token-file token`,
	})
	return all
}

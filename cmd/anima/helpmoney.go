package main

// moneyDetails returns the part of [details] for the commands of the ledger, of wallets,
// of payments and of budgets.
func moneyDetails() map[string]string {
	return map[string]string{
		"ledger balance": `Without --at and --seq the balances are those of now. The column USDC is what the
ledger knows of the agent's wallet.

Examples:
  anima ledger balance
  anima ledger balance lucky --at 2026-11-21T08:00:00Z
  anima ledger balance lucky --at 36h
  anima ledger balance lucky --seq 120 -o json`,

		"ledger export": `The export is read in pages, so its size does not matter. Amounts are in micro-USD. With
--file, the file appears when the export is complete.

Examples:
  anima ledger export -f ledger.csv
  anima ledger export --agent lucky --since 2026-11-01 --until 2026-12-01 -f november.csv
  anima ledger export --format json --since 24h | jq '.[].id'`,

		"ledger report": `Several agents are one group, such as a parent and its children: payments between them
cancel out, and a line for each agent shows its part. Without an agent, all are the
group. Deposits are no profit. The burn rate is what was spent and transferred in an
hour, since the first transaction of the period; the runway is how long the credits
last at that rate. With one agent, the turns of the period are shown by how they ended.

Examples:
  anima ledger report
  anima ledger report lucky --since 7d
  anima ledger report lucky child1 child2 --since 2026-11-01 --until 2026-12-01
  anima ledger report lucky --csv > report.csv`,

		"ledger verify": `Recomputes the hash chain, the sums, each balance and each hold, and compares them with
what is stored. The category and the expiry of a hold are in no transaction and are not
compared. The progress is written to standard error each second.

Examples:
  anima ledger verify
  anima ledger verify -o json`,

		"ledger return": `The wallet of the child signs the return, and treasury verifies it. The parent is that of
the child's limits (anima budget set CHILD --parent PARENT), and the limits of the child apply.

Examples:
  anima ledger return kid 2.50
  anima ledger return kid 1 --id goal-7`,

		"ledger topup": `The wallet pays the seller of ANIMA_TREASURY_TOPUP_URL over x402. One purchase of an agent
is under way at a time. Repeat a request without an answer with the same --id.

Examples:
  anima ledger topup lucky 5
  anima ledger topup lucky 25 --id monday`,

		"ledger transfer": `Money that is held for a turn under way cannot be moved.

Examples:
  anima ledger transfer rich lucky 5
  anima ledger transfer rich lucky 0.25 --id monday`,

		"ledger reconcile": `Compares what the ledger has of each agent's USDC with the balance of its wallet at one
block. Treasury does the same each minute: a difference that lasts and that no payment in
progress explains freezes the USDC of the agent. With a difference the command fails.
--accept says why a difference is right; it is kept, and the agent is not frozen any more.

Examples:
  anima ledger reconcile
  anima ledger reconcile lucky -o json
  anima ledger reconcile lucky --accept "the creator moved a dollar with the key"`,

		"wallet show": `A balance that is stale is the last one that was read; a balance that was never read is not
known. The states of a deposit are pending, included, safe, final and reversed
(docs/chain.md). On the dev chain of anima up, the command starts the chain.

Examples:
  anima wallet show lucky
  anima wallet show lucky -o json | jq .onChain
  anima wallet show lucky --watch`,

		"wallet fund": `The faucet exists on the dev chain only, which anima up runs if no other chain is
configured; its USDC has no value. On another chain, send USDC to the address of the
wallet. Repeat a request without an answer with the same --id.

Examples:
  anima wallet fund lucky 5
  anima wallet fund lucky 5 --id monday`,

		"wallet backup": `The file is a keystore (version 3), which other wallets read too. The key in it is
encrypted with the passphrase of treasury (ANIMA_TREASURY_KEYSTORE_PASSPHRASE, or the file
treasury/keystore.pass of the data folder). Keep the two apart. A treasury with a remote
signer has no keys.

Examples:
  anima wallet backup lucky -f lucky.json
  anima wallet backup lucky | age -r age1… > lucky.age`,

		"wallet restore": `The passphrase of treasury must be that of the backup. The agent may be applied before or
afterwards. Repeating the command changes nothing.

Examples:
  anima wallet restore lucky lucky.json
  age -d lucky.age | anima wallet restore lucky -`,

		"wallet rotate": `Treasury makes another key, moves the USDC of the present wallet to it on the chain, and then
uses it. It is refused while payments of the agent are in flight. The earlier key stays
stored, encrypted: anima wallet backup AGENT --address EARLIER. The agent signs its messages
with the new key, so peers see another address. If the command ends without an answer, repeat
it with --address: it continues (docs/runbooks/rotate-keys.md).

Examples:
  anima wallet rotate lucky
  anima wallet rotate lucky --address 0x6EC62a1bb463eACc06f43054851B0D56A6afb00F`,

		"chain": `Fails if treasury has no chain. On the dev chain of anima up, the command starts the chain.

Examples:
  anima chain
  anima chain -o json | jq .ok`,

		"payment list": `Examples:
  anima payment list lucky --limit 10
  anima payment list --state unknown -o json`,

		"payment show": `Examples:
  anima payment show cli-0f4e -o json | jq -r .body | base64 -d`,

		"payment fetch": `The agent pays with the USDC of its own wallet, within its limits. The money is held
before anything is signed. If the outcome is unknown, repeat the command with the same
--id: the same authorization is sent again, so nothing is paid twice.

Examples:
  anima payment fetch lucky https://api.example.com/weather --max 0.05
  anima payment fetch lucky https://api.example.com/ask --method POST --body question.json --id q1`,

		"budget get": `Held money counts as spent until it is released. FREES is when the oldest payment
leaves the window. docs/limits.md explains the limits.

Examples:
  anima budget get lucky
  anima budget get lucky --session lucky-main -o json
  anima budget get lucky --watch`,

		"budget set": `A flag that is not given leaves its limit as it is. The word none removes a limit, the
word default sets the value of the configuration again. Categories are inference,
transfer, x402, other and peer (what messages of peers cause); without one, a limit
counts all payments. The change applies to the next payment.

Examples:
  anima budget set lucky --day 5 --hour inference=1
  anima budget set lucky --call transfer=2 --payments hour.transfer=10 --cooldown 1m
  anima budget set lucky --day peer=0.5 --reserve 1
  anima budget set lucky --payee agent:bob --domain .example.com --approve-above 3
  anima budget set kid --parent lucky && anima budget set lucky --lineage 10
  anima budget set lucky --reset`,

		"budget approvals": `A transfer or an x402 payment above the limit of anima budget set --approve-above is
refused, and its request is listed here.

Examples:
  anima budget approvals
  anima budget approvals lucky --status used`,

		"budget approve": `The agent may make the same payment once within 24 hours: it has to repeat it.

Examples:
  anima budget approve approval-0a1b2c3d4e5f6071`,
	}
}

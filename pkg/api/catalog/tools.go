package catalog

import (
	"slices"

	"github.com/anima-run/anima/pkg/api"
)

// Limits of arguments (docs/reference/platform.md, Tool calls). Those of text are in
// bytes.
const (
	maxPath    = 4096      // PATH_MAX of Linux
	maxCommand = 32 << 10  // parsing it takes far less than a millisecond
	maxMessage = 64_000    // social accepts less, see api.MaxMessageBytes
	maxFile    = 100_000   // of edit_own_file
	maxPrompt  = 2_000     // of a genesis prompt, before it is cleaned
	maxText    = 4_096     // of a fact, a note, a reason
	maxLong    = 10_000    // of instructions, a description, a task's output
	maxName    = 256       // of a key, a title
	maxURL     = 2_048     // of a URL
	maxSleep   = 86_400    // seconds (docs/reference/platform.md, unbounded sleep)
	maxBody    = 128 << 10 // of a paid request
)

// Constructors of parameters, with short names for the table.
func need(name string, max int, does string) Param {
	return Param{Name: name, Type: Text, Required: true, MaxBytes: max, Does: does}
}

func may(name string, max int, does string) Param {
	return Param{Name: name, Type: Text, Empty: true, MaxBytes: max, Does: does}
}

func oneOf(name string, required bool, does string, words ...string) Param {
	return Param{Name: name, Type: Text, Required: required, OneOf: words, Does: does}
}

func whole(name string, required bool, low, high float64, does string) Param {
	return Param{Name: name, Type: Whole, Required: required, Min: &low, Max: &high, Does: does}
}

func between(name string, required bool, low, high float64, does string) Param {
	return Param{Name: name, Type: Number, Required: required, Min: &low, Max: &high, Does: does}
}

func yesNo(name, does string) Param { return Param{Name: name, Type: Boolean, Does: does} }

// Categories of facts and kinds of memory (docs/reference/memory.md, Tiers and Facts).
var (
	factCategories = []string{"self", "environment", "financial", "agent", "domain", "procedural_ref", "creator"}
	// Facts of the category market are stored by loop only, and can be recalled.
	knownCategories = append(slices.Clone(factCategories), "market")
	memoryKinds     = []string{"working", "episodic", "semantic", "procedural", "relationship"}
)

// tools lists the tools with their names, categories, risks, effects, owners and
// parameters. The three booleans are Mutating, Status and Spends of [Tool].
var tools = []Tool{
	{"exec", "Run a shell command in your folder. It sees your folder and the system's programs, nothing else.", VM, Caution, Irreversible, true, false, false, api.Loop, []Param{
		need("command", maxCommand, ""), whole("timeout", false, 1, 600, "seconds"),
	}},
	{"write_file", "Write a text file in your folder; it replaces what was there. Folders are made as needed.", VM, Caution, Idempotent, true, false, false, api.Loop, []Param{
		need("path", maxPath, "inside your folder"), {Name: "content", Type: Text, Required: true, Empty: true, Binary: true},
	}},
	{"read_file", "Read a text file of your folder.", VM, Safe, Pure, false, false, false, api.Loop, []Param{need("path", maxPath, "inside your folder")}},
	{"expose_port", "Make a port of your sandbox reachable from outside.", VM, Caution, Idempotent, true, false, false, api.Treasury, []Param{whole("port", true, 1, 65535, ""), may("sandbox_id", maxName, "default: your only one")}},
	{"remove_port", "Stop making a port of your sandbox reachable.", VM, Caution, Idempotent, true, false, false, api.Treasury, []Param{whole("port", true, 1, 65535, ""), may("sandbox_id", maxName, "default: your only one")}},
	{"check_credits", "See what you own and how long it keeps you alive.", Conway, Safe, Pure, false, true, false, api.Treasury, nil},
	{"check_usdc_balance", "See the USDC in your wallet on chain.", Conway, Safe, Pure, false, true, false, api.Treasury, nil},
	{"topup_credits", "Buy credits with USDC from your wallet.", Financial, Caution, Keyed, true, false, true, api.Treasury, []Param{
		between("amount_usd", true, 5, 2500, "one of 5, 25, 100, 500, 1000, 2500"),
	}},
	{"create_sandbox", "Rent another sandbox.", Conway, Caution, Keyed, true, false, true, api.Treasury, []Param{
		may("name", maxName, ""), whole("vcpu", false, 1, 64, "default 1"), whole("memory_mb", false, 128, 1<<20, "default 512"), whole("disk_gb", false, 1, 10_000, "default 5"),
	}},
	{"delete_sandbox", "Give a sandbox back.", Conway, Dangerous, Keyed, true, false, false, api.Treasury, []Param{need("sandbox_id", maxName, "")}},
	{"list_sandboxes", "See the sandboxes that you rent.", Conway, Safe, Pure, false, true, false, api.Treasury, nil},
	{"edit_own_file", "Change a file of your own; the change is recorded and can be reverted.", SelfMod, Dangerous, Idempotent, true, false, false, api.Loop, []Param{
		need("path", maxPath, "inside your folder"), {Name: "content", Type: Text, Required: true, Empty: true, MaxBytes: maxFile}, need("description", maxText, "what changes and why"),
	}},
	{"revert_last_edit", "Take your last recorded change back.", SelfMod, Caution, Keyed, true, false, false, api.Loop, nil},
	{"reset_to_upstream", "Throw your changes away and take the upstream version.", SelfMod, Dangerous, Irreversible, true, false, false, api.Loop, nil},
	{"install_npm_package", "Install an npm package in your folder.", SelfMod, Dangerous, Irreversible, true, false, false, api.Loop, []Param{need("package", maxName, "")}},
	{"review_upstream_changes", "See what upstream has changed since your version.", SelfMod, Caution, Pure, false, false, false, api.Loop, nil},
	{"pull_upstream", "Take one upstream change, or all of them.", SelfMod, Dangerous, Irreversible, true, false, false, api.Loop, []Param{may("commit", 40, "default: all")}},
	{"modify_heartbeat", "Add, change or remove a time at which you are woken.", SelfMod, Caution, Idempotent, true, false, false, api.Heartbeat, []Param{
		oneOf("action", true, "", "add", "update", "remove"), need("name", 64, ""), may("schedule", 200, "five cron fields in UTC"), may("task", maxText, "what you are told then"), yesNo("enabled", ""),
	}},
	{"sleep", "End this run and sleep. A message wakes you earlier.", Survival, Caution, Keyed, true, false, false, api.Loop, []Param{
		whole("duration_seconds", true, 1, maxSleep, ""), may("reason", maxText, ""),
	}},
	{"system_synopsis", "See your state at a glance: state, credits, turns, goals.", Survival, Safe, Pure, false, true, false, api.Loop, nil},
	{"heartbeat_ping", "Record a sign of life.", Survival, Safe, Idempotent, false, true, false, api.Heartbeat, nil},
	{"distress_signal", "Ask the outside world for help.", Survival, Dangerous, Keyed, true, false, false, api.Heartbeat, []Param{may("message", maxText, "")}},
	{"enter_low_compute", "Think with the cheapest model and shorter prompts from now on; switch_model ends it.", Survival, Caution, Idempotent, true, false, false, api.Inference, []Param{may("reason", maxText, "")}},
	{"update_genesis_prompt", "Rewrite what you were made for.", SelfMod, Dangerous, Idempotent, true, false, false, api.Loop, []Param{need("new_prompt", maxPrompt, ""), need("reason", maxText, "")}},
	{"install_mcp_server", "Connect an MCP server whose tools you then have.", SelfMod, Dangerous, Idempotent, true, false, false, api.Loop, []Param{
		need("name", 64, ""), need("package", maxURL, "a command, or the address of a server"), may("config", maxLong, "a JSON object: args, env, headers"),
	}},
	{"transfer_credits", "Give credits to another agent.", Financial, Dangerous, Keyed, true, false, true, api.Treasury, []Param{
		need("to_address", 64, "0x and 40 hex digits"), whole("amount_cents", true, 1, 1<<40, ""), may("reason", maxText, ""),
	}},
	{"install_skill", "Install a skill from git, from an address, or written by yourself.", Skills, Dangerous, Idempotent, true, false, false, api.Loop, []Param{
		oneOf("source", true, "", "git", "url", "self"), need("name", 64, ""), may("url", maxURL, "for git and url"), may("description", 500, ""), may("instructions", maxLong, "for self"),
	}},
	{"list_skills", "See your skills.", Skills, Safe, Pure, false, true, false, api.Loop, nil},
	{"create_skill", "Write a skill: instructions that you will be shown from now on.", Skills, Dangerous, Idempotent, true, false, false, api.Loop, []Param{
		need("name", 64, ""), need("description", 500, ""), need("instructions", maxLong, ""),
	}},
	{"remove_skill", "Remove a skill.", Skills, Dangerous, Idempotent, true, false, false, api.Loop, []Param{need("name", 64, ""), yesNo("delete_files", "default false")}},
	{"git_status", "See what changed in a repository of your folder.", Git, Safe, Pure, false, true, false, api.Loop, []Param{may("path", maxPath, "default: your folder")}},
	{"git_diff", "See changes line by line.", Git, Safe, Pure, false, false, false, api.Loop, []Param{may("path", maxPath, "default: your folder"), yesNo("staged", "")}},
	{"git_commit", "Record changes in a repository.", Git, Caution, Irreversible, true, false, false, api.Loop, []Param{
		need("message", maxText, ""), may("path", maxPath, "default: your folder"), yesNo("add_all", "default true"),
	}},
	{"git_log", "See a repository's history.", Git, Safe, Pure, false, true, false, api.Loop, []Param{may("path", maxPath, "default: your folder"), whole("limit", false, 1, 100, "default 10")}},
	{"git_push", "Send a repository's history to a remote one.", Git, Caution, Idempotent, true, false, false, api.Loop, []Param{
		need("path", maxPath, ""), may("remote", maxName, "default origin"), may("branch", maxName, "default: the current one"),
	}},
	{"git_branch", "List, create, check out or delete branches.", Git, Caution, Idempotent, true, false, false, api.Loop, []Param{
		need("path", maxPath, ""), oneOf("action", true, "", "list", "create", "checkout", "delete"), may("branch_name", maxName, ""),
	}},
	{"git_clone", "Copy a repository into your folder.", Git, Caution, Irreversible, true, false, false, api.Loop, []Param{
		need("url", maxURL, ""), need("path", maxPath, "where to, inside your folder"), whole("depth", false, 1, 1<<30, "default: everything"),
	}},
	{"register_erc8004", "Register yourself on chain.", Registry, Dangerous, Keyed, true, false, true, api.Social, []Param{need("agent_uri", maxURL, ""), may("network", maxName, "default mainnet")}},
	{"update_agent_card", "Publish your agent card anew.", Registry, Caution, Idempotent, true, false, false, api.Social, nil},
	{"discover_agents", "Find other agents.", Registry, Safe, Pure, false, false, false, api.Social, []Param{
		may("keyword", maxName, ""), whole("limit", false, 1, 100, "default 10"), may("network", maxName, ""), oneOf("format", false, "default text", "text", "json"),
	}},
	{"give_feedback", "Rate another agent on chain.", Registry, Dangerous, Keyed, true, false, true, api.Social, []Param{
		need("agent_id", maxName, ""), whole("score", true, 1, 5, ""), need("comment", 500, ""), may("network", maxName, ""),
	}},
	{"check_reputation", "See what others say about an agent.", Registry, Safe, Pure, false, true, false, api.Social, []Param{may("agent_address", 64, "default: yourself")}},
	{"spawn_child", "Bring another agent to life.", Replication, Dangerous, Keyed, true, false, true, api.Loop, []Param{
		need("name", 64, ""), may("specialization", 2000, ""), may("message", 2000, "its creator's message"),
	}},
	{"list_children", "See your children.", Replication, Safe, Pure, false, true, false, api.Loop, nil},
	{"fund_child", "Give credits to a child.", Replication, Dangerous, Keyed, true, false, true, api.Treasury, []Param{need("child_id", maxName, ""), whole("amount_cents", true, 1, 1<<40, "")}},
	{"check_child_status", "See how a child is.", Replication, Safe, Pure, false, true, false, api.Heartbeat, []Param{need("child_id", maxName, "")}},
	{"start_child", "Start a child that is ready.", Replication, Caution, Idempotent, true, false, false, api.Loop, []Param{need("child_id", maxName, "")}},
	{"message_child", "Send a message to a child.", Replication, Caution, Keyed, true, false, false, api.Social, []Param{
		need("child_id", maxName, ""), need("content", maxMessage, ""), may("type", maxName, "default parent_message"),
	}},
	{"verify_child_constitution", "Check that a child still has your constitution.", Replication, Safe, Pure, false, false, false, api.Loop, []Param{need("child_id", maxName, "")}},
	{"prune_dead_children", "Forget children that are dead.", Replication, Caution, Idempotent, true, false, false, api.Heartbeat, []Param{whole("keep_last", false, 0, 1000, "default 5")}},
	{"send_message", "Send a signed message to another agent's address.", Conway, Caution, Keyed, true, false, false, api.Social, []Param{
		need("to_address", 64, "0x and 40 hex digits"), need("content", maxMessage, ""), may("reply_to", maxName, ""),
	}},
	{"list_models", "See the models that you can think with, and their prices.", Conway, Safe, Pure, false, true, false, api.Inference, nil},
	{"switch_model", "Prefer a model from now on; the answer says what will be used.", Conway, Caution, Idempotent, true, false, false, api.Inference, []Param{need("model_id", maxName, "default: the model of your definition"), may("reason", maxText, "")}},
	{"check_inference_spending", "See what your thinking has cost.", Financial, Safe, Pure, false, true, false, api.Inference, []Param{may("model", maxName, "default: all"), whole("days", false, 1, 365, "default 1")}},
	{"search_domains", "Find domain names that can be bought.", Conway, Safe, Pure, false, false, false, api.Treasury, []Param{need("query", maxName, ""), may("tlds", maxName, "separated by commas")}},
	{"register_domain", "Buy a domain name.", Conway, Dangerous, Keyed, true, false, true, api.Treasury, []Param{need("domain", 253, ""), whole("years", false, 1, 10, "default 1")}},
	{"manage_dns", "List, add or delete a domain's records.", Conway, Safe, Keyed, true, false, false, api.Treasury, []Param{
		oneOf("action", true, "", "list", "add", "delete"), need("domain", 253, ""), may("type", 16, ""), may("host", 253, ""), may("value", maxText, ""), whole("ttl", false, 1, 1<<31, "seconds"), may("record_id", maxName, ""),
	}},
	{"update_soul", "Rewrite a section of your soul.", SelfMod, Caution, Idempotent, true, false, false, api.Loop, []Param{
		oneOf("section", true, "", "core_purpose", "values", "behavioral_guidelines", "personality", "boundaries", "strategy"), need("content", maxLong, "lists: one item a line"), need("reason", maxText, ""),
	}},
	{"reflect_on_soul", "Bring your soul up to date with what you have done, and see how close it still is to your genesis.", SelfMod, Safe, Idempotent, true, false, false, api.Loop, nil},
	{"view_soul", "Read your soul.", SelfMod, Safe, Pure, false, false, false, api.Loop, nil},
	{"view_soul_history", "See how your soul has changed.", SelfMod, Safe, Pure, false, false, false, api.Loop, []Param{whole("limit", false, 1, 100, "default 10")}},
	{"remember_fact", "Remember a fact for all later runs. The same category and key replaces the value and keeps the old one as history.", Memory, Safe, Idempotent, true, false, false, api.Loop, []Param{
		oneOf("category", true, "", factCategories...), need("key", maxName, ""), need("value", maxText, ""), between("confidence", false, 0, 1, "default 1"), may("source", maxName, "default agent"),
	}},
	{"recall_facts", "Search what you know.", Memory, Safe, Pure, false, true, false, api.Loop, []Param{oneOf("category", false, "", knownCategories...), may("query", maxText, "")}},
	{"set_goal", "Keep a goal in mind.", Memory, Safe, Keyed, true, false, false, api.Loop, []Param{need("content", maxText, ""), between("priority", false, 0, 1, "default 0.8")}},
	{"complete_goal", "Mark a goal of set_goal as reached.", Memory, Safe, Idempotent, true, false, false, api.Loop, []Param{need("goal_id", maxName, ""), may("outcome", maxText, "")}},
	{"save_procedure", "Save how something is done, step by step.", Memory, Safe, Idempotent, true, false, false, api.Loop, []Param{
		need("name", maxName, ""), need("description", maxText, ""), need("steps", maxLong, "a JSON array of texts"),
	}},
	{"recall_procedure", "Find how something is done.", Memory, Safe, Pure, false, true, false, api.Loop, []Param{may("name", maxName, ""), may("query", maxText, "")}},
	{"note_about_agent", "Note something about another agent.", Memory, Safe, Idempotent, true, false, false, api.Loop, []Param{
		need("entity_address", 64, ""), need("relationship_type", maxName, ""), may("entity_name", maxName, ""), may("notes", maxText, ""), between("trust_score", false, 0, 1, "default 0.5"),
	}},
	{"review_memory", "See what you have in mind and what happened lately.", Memory, Safe, Pure, false, true, false, api.Loop, nil},
	{"forget", "Forget one memory.", Memory, Safe, Idempotent, true, false, false, api.Loop, []Param{need("id", maxName, ""), oneOf("memory_type", true, "", memoryKinds...)}},
	{"x402_fetch", "Fetch an address and pay for it if it asks for money.", Financial, Dangerous, Keyed, true, false, true, api.Treasury, []Param{
		need("url", maxURL, ""), oneOf("method", false, "default GET", "GET", "POST", "PUT", "PATCH", "DELETE"), may("body", maxBody, ""), may("headers", maxLong, "a JSON object"),
	}},
	{"create_goal", "Begin a goal that is planned and worked on beside you. One at a time.", Orchestration, Caution, Keyed, true, false, false, api.Loop, []Param{
		need("title", maxName, ""), need("description", maxLong, ""), may("strategy", maxText, ""),
	}},
	{"list_goals", "See your goals.", Orchestration, Safe, Pure, false, true, false, api.Loop, nil},
	{"cancel_goal", "Give a goal up.", Orchestration, Caution, Idempotent, true, false, false, api.Loop, []Param{need("goal_id", maxName, "id or title"), may("reason", maxText, "")}},
	{"get_plan", "Read a goal's plan.", Orchestration, Safe, Pure, false, true, false, api.Loop, []Param{need("goal_id", maxName, "id or title")}},
	{"complete_task", "Report a task as done.", Orchestration, Caution, Idempotent, true, false, false, api.Loop, []Param{
		need("task_id", maxName, "id or title"), need("output", maxLong, ""), may("artifacts", maxText, "paths, separated by commas"),
	}},
	{"orchestrator_status", "See how the work on your goal stands.", Orchestration, Safe, Pure, false, true, false, api.Loop, nil},
}

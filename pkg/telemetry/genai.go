package telemetry

import (
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
)

// Attributes of the GenAI conventions, semconv v1.41, the last core release that has
// them. Their status is development, so every emitted name is in this file and in its
// golden. The attributes for content (messages, instructions, arguments and results of
// tools) are deliberately left out.
const (
	GenAIOperationName           = attribute.Key("gen_ai.operation.name")
	GenAIProviderName            = attribute.Key("gen_ai.provider.name")
	GenAIAgentID                 = attribute.Key("gen_ai.agent.id")
	GenAIAgentName               = attribute.Key("gen_ai.agent.name")
	GenAIAgentVersion            = attribute.Key("gen_ai.agent.version")
	GenAIConversationID          = attribute.Key("gen_ai.conversation.id")
	GenAIRequestModel            = attribute.Key("gen_ai.request.model")
	GenAIRequestMaxTokens        = attribute.Key("gen_ai.request.max_tokens")
	GenAIRequestTemperature      = attribute.Key("gen_ai.request.temperature")
	GenAIRequestStream           = attribute.Key("gen_ai.request.stream")
	GenAIResponseModel           = attribute.Key("gen_ai.response.model")
	GenAIResponseID              = attribute.Key("gen_ai.response.id")
	GenAIResponseFinishReasons   = attribute.Key("gen_ai.response.finish_reasons")      // strings
	GenAIResponseTimeToFirst     = attribute.Key("gen_ai.response.time_to_first_chunk") // seconds
	GenAIUsageInputTokens        = attribute.Key("gen_ai.usage.input_tokens")
	GenAIUsageOutputTokens       = attribute.Key("gen_ai.usage.output_tokens")
	GenAIUsageCacheReadTokens    = attribute.Key("gen_ai.usage.cache_read.input_tokens")
	GenAIUsageCacheWrittenTokens = attribute.Key("gen_ai.usage.cache_creation.input_tokens")
	GenAIUsageReasoningTokens    = attribute.Key("gen_ai.usage.reasoning.output_tokens")
	GenAITokenType               = attribute.Key("gen_ai.token.type") // of metrics: input or output
	GenAIToolName                = attribute.Key("gen_ai.tool.name")
	GenAIToolCallID              = attribute.Key("gen_ai.tool.call.id")
	GenAIToolType                = attribute.Key("gen_ai.tool.type")
	ErrorType                    = attribute.Key("error.type")
)

// Values of [GenAIOperationName].
const (
	OperationInvokeAgent  = "invoke_agent"
	OperationChat         = "chat"
	OperationExecuteTool  = "execute_tool"
	OperationSearchMemory = "search_memory"
	OperationUpsertMemory = "upsert_memory"
)

// Metrics of the GenAI conventions, semconv v1.41. Durations are in seconds; [Providers]
// give these histograms the buckets that the conventions specify.
const (
	MetricOperationDuration  = "gen_ai.client.operation.duration"
	MetricTokenUsage         = "gen_ai.client.token.usage"
	MetricTimeToFirstChunk   = "gen_ai.client.operation.time_to_first_chunk"
	MetricTimePerOutputChunk = "gen_ai.client.operation.time_per_output_chunk"
)

// Names of the conventions after their move out of the core, which are unreleased. They
// replace those of v1.41 if OTEL_SEMCONV_STABILITY_OPT_IN contains [OptInGenAILatest];
// see [GenAI].
const (
	OptInGenAILatest = "gen_ai_latest_experimental"

	GenAIUsageCacheWriteTokens = attribute.Key("gen_ai.usage.cache_write.input_tokens")
	GenAITokenModality         = attribute.Key("gen_ai.token.modality") // of metrics

	MetricInferenceDuration         = "gen_ai.client.inference.duration"
	MetricInferenceFirstChunk       = "gen_ai.client.inference.time_to_first_chunk"
	MetricInferenceCallInput        = "gen_ai.client.inference.operation.input_tokens"
	MetricInferenceCallOutput       = "gen_ai.client.inference.operation.output_tokens"
	MetricInferenceInputTokens      = "gen_ai.client.inference.usage.input_tokens"
	MetricInferenceOutputTokens     = "gen_ai.client.inference.usage.output_tokens"
	MetricInferenceCacheReadTokens  = "gen_ai.client.inference.usage.cache_read.input_tokens"
	MetricInferenceCacheWriteTokens = "gen_ai.client.inference.usage.cache_write.input_tokens"
	MetricInferenceReasoningTokens  = "gen_ai.client.inference.usage.reasoning.output_tokens"
	MetricExecuteToolDuration       = "gen_ai.execute_tool.duration"
	MetricWorkflowDuration          = "gen_ai.workflow.duration"
)

// EventFirstChunk is the event on a chat span at the first chunk of the answer.
const EventFirstChunk = "first_chunk"

// Attributes of this project. Agents, turns and payments are allowed on spans only,
// because the attributes of metrics have closed sets of values.
const (
	AgentID              = attribute.Key("automaton.agent.id")
	TurnID               = attribute.Key("automaton.turn.id")
	TurnState            = attribute.Key("automaton.turn.state")
	SurvivalTier         = attribute.Key("automaton.survival.tier")
	TaskName             = attribute.Key("automaton.task.name")
	PolicyDecision       = attribute.Key("automaton.policy.decision")
	PolicyReasonCode     = attribute.Key("automaton.policy.reason_code")
	PolicyRulesEvaluated = attribute.Key("automaton.policy.rules_evaluated")
	PaymentID            = attribute.Key("automaton.payment.id")
	PaymentPhase         = attribute.Key("automaton.payment.phase")
	LedgerTxID           = attribute.Key("automaton.ledger.tx_id")
	CostMicros           = attribute.Key("automaton.cost.usd_micros") // int64, micro-USD
	ChainTxHash          = attribute.Key("automaton.chain.tx_hash")
	ChainBlockNumber     = attribute.Key("automaton.chain.block_number")
	X402Scheme           = attribute.Key("x402.scheme")
	X402Network          = attribute.Key("x402.network")
	X402Amount           = attribute.Key("x402.amount") // decimal text, minor units of the asset
	X402Asset            = attribute.Key("x402.asset")
)

// Attributes of NATS that the messaging conventions do not have.
const (
	NATSDeliveryCount  = attribute.Key("messaging.nats.delivery_count")
	NATSStreamSequence = attribute.Key("messaging.nats.stream.sequence")
)

// InvokeAgent returns the name and the options of the span of a turn. Attributes that
// samplers use are set at the start, as the conventions require.
func InvokeAgent(agentName, agentID, conversation string) (string, []trace.SpanStartOption) {
	return OperationInvokeAgent + " " + agentName, start(
		trace.SpanKindInternal,
		GenAIOperationName.String(OperationInvokeAgent),
		GenAIAgentName.String(agentName),
		GenAIAgentID.String(agentID),
		GenAIConversationID.String(conversation),
		AgentID.String(agentID),
	)
}

// Chat returns the name and the options of the span of one call to a model. Each retry
// and each fallback is a separate span.
func Chat(provider, model string) (string, []trace.SpanStartOption) {
	return OperationChat + " " + model, start(
		trace.SpanKindClient,
		GenAIOperationName.String(OperationChat),
		GenAIProviderName.String(provider),
		GenAIRequestModel.String(model),
	)
}

// ExecuteTool returns the name and the options of the span of a tool call.
func ExecuteTool(tool, callID string) (string, []trace.SpanStartOption) {
	return OperationExecuteTool + " " + tool, start(
		trace.SpanKindInternal,
		GenAIOperationName.String(OperationExecuteTool),
		GenAIToolName.String(tool),
		GenAIToolCallID.String(callID),
		GenAIToolType.String("function"),
	)
}

func start(kind trace.SpanKind, attrs ...attribute.KeyValue) []trace.SpanStartOption {
	return []trace.SpanStartOption{trace.WithSpanKind(kind), trace.WithAttributes(attrs...)}
}

// Fail marks the span as failed. errType is one of a closed set, such as policy_denied;
// reason is for operators and must contain neither content nor secrets. A span that
// succeeded keeps its status unset.
func Fail(span trace.Span, errType, reason string) {
	span.SetAttributes(ErrorType.String(errType))
	span.SetStatus(codes.Error, reason)
}

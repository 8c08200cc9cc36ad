"""Every span, attribute and metric name that sagaspan emits or reads, in one place.

The ``gen_ai.*`` names follow the OpenTelemetry GenAI semantic conventions (status: Development). They are
constants of our own because the published Python package marks its copies as deprecated and names no successor.
Ours live under ``sagaspan.*``. The table in ``docs/telemetry.md`` is generated from this module.
"""

from __future__ import annotations

from typing import Final

SCHEMA_URL: Final = "https://opentelemetry.io/schemas/1.37.0"

# -- GenAI conventions ------------------------------------------------------------------------------------
GEN_AI_OPERATION_NAME: Final = "gen_ai.operation.name"
GEN_AI_TOOL_NAME: Final = "gen_ai.tool.name"
GEN_AI_TOOL_TYPE: Final = "gen_ai.tool.type"
GEN_AI_TOOL_DESCRIPTION: Final = "gen_ai.tool.description"
GEN_AI_TOOL_CALL_ID: Final = "gen_ai.tool.call.id"
GEN_AI_TOOL_CALL_ARGUMENTS: Final = "gen_ai.tool.call.arguments"
GEN_AI_TOOL_CALL_RESULT: Final = "gen_ai.tool.call.result"
GEN_AI_AGENT_NAME: Final = "gen_ai.agent.name"
GEN_AI_CONVERSATION_ID: Final = "gen_ai.conversation.id"
ERROR_TYPE: Final = "error.type"
OPENINFERENCE_SPAN_KIND: Final = "openinference.span.kind"

OPERATION_CHAT: Final = "chat"
OPERATION_EMBEDDINGS: Final = "embeddings"
OPERATION_GENERATE: Final = "generate_content"
OPERATION_COMPLETE: Final = "text_completion"
OPERATION_EXECUTE_TOOL: Final = "execute_tool"
OPERATION_INVOKE_AGENT: Final = "invoke_agent"
OPERATION_INVOKE_WORKFLOW: Final = "invoke_workflow"
TOOL_TYPE_FUNCTION: Final = "function"

# -- runs --------------------------------------------------------------------------------------------------
RUN_ID: Final = "sagaspan.run.id"
RUN_NAME: Final = "sagaspan.run.name"
RUN_STATE: Final = "sagaspan.run.state"
RUN_REASON: Final = "sagaspan.run.reason"
RUN_RESUMED: Final = "sagaspan.run.resumed"
RUN_PARENT_ID: Final = "sagaspan.run.parent.id"
RUN_ORPHANS: Final = "sagaspan.run.orphans"
TASK_NAME: Final = "sagaspan.task.name"

# -- calls -------------------------------------------------------------------------------------------------
CALL_ID: Final = "sagaspan.call.id"
CALL_STATE: Final = "sagaspan.call.state"
CALL_PHASE: Final = "sagaspan.call.phase"
CALL_EFFECT: Final = "sagaspan.call.effect"
CALL_EXECUTED: Final = "sagaspan.call.executed"
CALL_ATTEMPTS: Final = "sagaspan.call.attempts"
CALL_COMPENSATES: Final = "sagaspan.call.compensates"
IDEMPOTENCY_OUTCOME: Final = "sagaspan.idempotency.outcome"
UNRECORDED: Final = "sagaspan.unrecorded"
POLICY_VERSION: Final = "sagaspan.policy.version"
POLICY_STALE: Final = "sagaspan.policy.stale"
OBSERVED: Final = "sagaspan.observed"
POLICY_RULE: Final = "sagaspan.policy.rule"
POLICY_ACTION: Final = "sagaspan.policy.action"
ATTEMPT_NUMBER: Final = "sagaspan.attempt.number"
ATTEMPT_DELAY_MS: Final = "sagaspan.attempt.delay_ms"
LINK_TYPE: Final = "sagaspan.link.type"

PHASE_FORWARD: Final = "forward"
PHASE_COMPENSATION: Final = "compensation"
OUTCOME_EXECUTED: Final = "executed"
OUTCOME_REPLAYED: Final = "replayed"
OUTCOME_JOINED: Final = "joined"
OUTCOME_CONFLICT: Final = "conflict"
OUTCOME_UNRECORDED: Final = "unrecorded"
OUTCOME_SCHEDULED: Final = "scheduled"
LINK_COMPENSATES: Final = "compensates"
LINK_RESUMES: Final = "resumes"
LINK_SENDS: Final = "sends"

# -- approvals ---------------------------------------------------------------------------------------------
APPROVAL_ID: Final = "sagaspan.approval.id"
APPROVAL_OUTCOME: Final = "sagaspan.approval.outcome"
APPROVAL_CHANNEL: Final = "sagaspan.approval.channel"
APPROVAL_WAIT_MS: Final = "sagaspan.approval.wait_ms"
LINK_ASKED: Final = "asked"
KIND_GUARDRAIL: Final = "GUARDRAIL"

# -- budgets -----------------------------------------------------------------------------------------------
EVENT_SOFT_LIMIT: Final = "sagaspan.budget.soft_limit"
BUDGET_SCOPE: Final = "sagaspan.budget.scope"
BUDGET_KIND: Final = "sagaspan.budget.kind"
BUDGET_UNIT: Final = "sagaspan.budget.unit"
BUDGET_WINDOW: Final = "sagaspan.budget.window"
BUDGET_LIMIT: Final = "sagaspan.budget.limit"
BUDGET_PERCENT: Final = "sagaspan.budget.percent"

# -- metrics -----------------------------------------------------------------------------------------------
METRIC_SOFT_LIMITS: Final = "sagaspan.budget.soft_limits"
METRIC_BUDGET_REFUSALS: Final = "sagaspan.budget.refusals"
METRIC_APPROVALS_PENDING: Final = "sagaspan.approvals.pending"
METRIC_APPROVALS_DECIDED: Final = "sagaspan.approvals.decided"
METRIC_APPROVAL_WAIT: Final = "sagaspan.approval.wait.duration"
METRIC_COST: Final = "sagaspan.cost"
METRIC_TOKEN_USAGE: Final = "gen_ai.client.token.usage"  # noqa: S105 - no password
METRIC_OPERATION_DURATION: Final = "gen_ai.client.operation.duration"
GEN_AI_TOKEN_TYPE: Final = "gen_ai.token.type"  # noqa: S105 - no password

# -- span names --------------------------------------------------------------------------------------------
SPAN_MODEL: Final = "{operation} {model}"
SPAN_TOOL: Final = "execute_tool {tool}"
SPAN_AGENT: Final = "invoke_agent {agent}"
SPAN_WORKFLOW: Final = "invoke_workflow {workflow}"
SPAN_TASK: Final = "task {task}"
SPAN_RUN: Final = "sagaspan {run}"
SPAN_APPROVAL: Final = "approval {tool}"
SPAN_ATTEMPT: Final = "attempt {n}"

# -- calls of models, and what other instrumentations call the same things (the aliases are read, never emitted) --
COST_USD: Final = "sagaspan.cost.usd"
GEN_AI_REQUEST_MODEL: Final = "gen_ai.request.model"
GEN_AI_RESPONSE_MODEL: Final = "gen_ai.response.model"
GEN_AI_PROVIDER_NAME: Final = "gen_ai.provider.name"
GEN_AI_RESPONSE_FINISH_REASONS: Final = "gen_ai.response.finish_reasons"
GEN_AI_INPUT_MESSAGES: Final = "gen_ai.input.messages"
GEN_AI_OUTPUT_MESSAGES: Final = "gen_ai.output.messages"
GEN_AI_SYSTEM_INSTRUCTIONS: Final = "gen_ai.system_instructions"
GEN_AI_USAGE_INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
GEN_AI_REQUEST_MAX_TOKENS: Final = "gen_ai.request.max_tokens"
GEN_AI_USAGE_CACHED_TOKENS: Final = "gen_ai.usage.cache_read.input_tokens"
GEN_AI_USAGE_REASONING_TOKENS: Final = "gen_ai.usage.reasoning.output_tokens"
GEN_AI_USAGE_OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
SERVICE_NAME: Final = "service.name"
SESSION_ID: Final = "session.id"
OPENINFERENCE_TOOL_NAME: Final = "tool.name"
OPENINFERENCE_AGENT_NAME: Final = "agent.name"
TRACELOOP_SPAN_KIND: Final = "traceloop.span.kind"
TRACELOOP_ENTITY_NAME: Final = "traceloop.entity.name"
TRACELOOP_REQUEST_TYPE: Final = "llm.request.type"
EXCEPTION_STACKTRACE: Final = "exception.stacktrace"
# OpenTelemetry's names first, the newest before older ones, then OpenInference's, then OpenLLMetry's: the first counts.
COST_ALIASES: Final = (
    COST_USD,
    "gen_ai.usage.cost.amount",
    "gen_ai.usage.cost",
    "operation.cost",
    "llm.cost.total",
)
TOOL_CALL_ID_ALIASES: Final = (GEN_AI_TOOL_CALL_ID, "tool_call.id", "tool.id")
ARGUMENTS_ALIASES: Final = (
    GEN_AI_TOOL_CALL_ARGUMENTS,
    "tool.parameters",
    "input.value",
    "traceloop.entity.input",
)
RESULT_ALIASES: Final = (GEN_AI_TOOL_CALL_RESULT, "output.value", "traceloop.entity.output")
INPUT_ALIASES: Final = (GEN_AI_INPUT_MESSAGES, "gen_ai.prompt", "input.value", "traceloop.entity.input")
OUTPUT_ALIASES: Final = (GEN_AI_OUTPUT_MESSAGES, "gen_ai.completion", "output.value", "traceloop.entity.output")
CONVERSATION_ALIASES: Final = (
    GEN_AI_CONVERSATION_ID,
    SESSION_ID,
    "traceloop.association.properties.session_id",
    "traceloop.association.properties.thread_id",
)
MODEL_ALIASES: Final = (
    GEN_AI_RESPONSE_MODEL,
    GEN_AI_REQUEST_MODEL,
    "llm.model_name",
    "embedding.model_name",
    "llm.response.model",
    "llm.request.model",
)
PROVIDER_ALIASES: Final = (GEN_AI_PROVIDER_NAME, "gen_ai.system", "llm.provider", "llm.system", "llm.vendor")
INPUT_TOKENS_ALIASES: Final = (
    GEN_AI_USAGE_INPUT_TOKENS,
    "gen_ai.usage.prompt_tokens",
    "llm.token_count.prompt",
    "llm.usage.prompt_tokens",
)
OUTPUT_TOKENS_ALIASES: Final = (
    GEN_AI_USAGE_OUTPUT_TOKENS,
    "gen_ai.usage.completion_tokens",
    "llm.token_count.completion",
    "llm.usage.completion_tokens",
)
CACHED_TOKENS_ALIASES: Final = (
    GEN_AI_USAGE_CACHED_TOKENS,
    "gen_ai.usage.cache_read_input_tokens",
    "llm.token_count.prompt_details.cache_read",
)
REASONING_TOKENS_ALIASES: Final = (
    GEN_AI_USAGE_REASONING_TOKENS,
    "gen_ai.usage.reasoning_tokens",
    "llm.token_count.completion_details.reasoning",
    "llm.usage.reasoning_tokens",
)

# -- environment -------------------------------------------------------------------------------------------
ENV_CAPTURE_CONTENT: Final = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"

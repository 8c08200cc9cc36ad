"""Every span, attribute and metric name that sagaspan emits or reads, in one place.

The ``gen_ai.*`` names follow the OpenTelemetry GenAI semantic conventions (status: Development). They are
constants of our own because the published Python package marks its copies as deprecated and names no successor.
Ours live under ``sagaspan.*``. The tables in ``docs/telemetry.md`` are generated from this module.
"""

from __future__ import annotations

from typing import Final, NamedTuple

SCHEMA_URL: Final = "https://opentelemetry.io/schemas/gen-ai/0.1.0"
"""Of the first release of the GenAI conventions that has every ``gen_ai.*`` name below."""

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
RUN_ENTERED_BY: Final = "sagaspan.run.entered_by"
TASK_NAME: Final = "sagaspan.task.name"

# -- calls -------------------------------------------------------------------------------------------------
CALL_ID: Final = "sagaspan.call.id"
CALL_STATE: Final = "sagaspan.call.state"
CALL_PHASE: Final = "sagaspan.call.phase"
CALL_EFFECT: Final = "sagaspan.call.effect"
CALL_EXECUTED: Final = "sagaspan.call.executed"
CALL_ATTEMPTS: Final = "sagaspan.call.attempts"
CALL_BODY_MS: Final = "sagaspan.call.body_ms"
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
LINK_PROBES: Final = "probes"
BY_RECOVERY: Final = "recovery"
BY_REQUEST: Final = "request"

# -- approvals ---------------------------------------------------------------------------------------------
APPROVAL_ID: Final = "sagaspan.approval.id"
APPROVAL_OUTCOME: Final = "sagaspan.approval.outcome"
APPROVAL_CHANNEL: Final = "sagaspan.approval.channel"
APPROVAL_WAIT_MS: Final = "sagaspan.approval.wait_ms"
LINK_ASKED: Final = "asked"

# -- budgets -----------------------------------------------------------------------------------------------
EVENT_SOFT_LIMIT: Final = "sagaspan.budget.soft_limit"
BUDGET_SCOPE: Final = "sagaspan.budget.scope"
BUDGET_KIND: Final = "sagaspan.budget.kind"
BUDGET_UNIT: Final = "sagaspan.budget.unit"
BUDGET_WINDOW: Final = "sagaspan.budget.window"
BUDGET_LIMIT: Final = "sagaspan.budget.limit"
BUDGET_PERCENT: Final = "sagaspan.budget.percent"

# -- kinds of our own spans, in OpenInference's words ----------------------------------------------------------
KIND_CHAIN: Final = "CHAIN"
KIND_AGENT: Final = "AGENT"
KIND_GUARDRAIL: Final = "GUARDRAIL"
KIND_TOOL: Final = "TOOL"

# -- freezes, waits, probes, loops, notifications ------------------------------------------------------------
FREEZE_SCOPE: Final = "sagaspan.freeze.scope"
WAIT_FOR: Final = "sagaspan.wait.for"
WAIT_LOCK: Final = "lock"
WAIT_PIVOT: Final = "pivot"
WAIT_BUDGET: Final = "budget"
WAIT_OWNER: Final = "owner"
WAIT_POLL: Final = "poll"
PROBE_ANSWER: Final = "sagaspan.probe.answer"
LOOP_KIND: Final = "sagaspan.loop.kind"
NOTIFICATION_KIND: Final = "sagaspan.notification.kind"
NOTIFICATION_OUTCOME: Final = "sagaspan.notification.outcome"
LEDGER: Final = "sagaspan.ledger"
STATUS_KIND: Final = "sagaspan.status.kind"
STATUS_STATE: Final = "sagaspan.status.state"

# -- span names --------------------------------------------------------------------------------------------
SPAN_MODEL: Final = "{operation} {model}"
SPAN_TOOL: Final = "execute_tool {tool}"
SPAN_AGENT: Final = "invoke_agent {agent}"
SPAN_WORKFLOW: Final = "invoke_workflow {workflow}"
SPAN_TASK: Final = "task {task}"
SPAN_RUN: Final = "sagaspan {run}"
SPAN_APPROVAL: Final = "approval {tool}"
SPAN_ATTEMPT: Final = "attempt {n}"
SPAN_PROBE: Final = "probe {tool}"
SPAN_WAIT: Final = "wait for {what}"

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
USER_ID: Final = "user.id"
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
ENV_CAPTURE_USERS: Final = "SAGASPAN_TRACE_USERS"

# -- metrics -----------------------------------------------------------------------------------------------
GEN_AI_TOKEN_TYPE: Final = "gen_ai.token.type"  # noqa: S105 - no password
METRIC_TOOL_DURATION: Final = "gen_ai.execute_tool.duration"
METRIC_OPERATION_DURATION: Final = "gen_ai.client.operation.duration"
METRIC_TOKEN_USAGE: Final = "gen_ai.client.token.usage"  # noqa: S105 - no password
METRIC_RUN_DURATION: Final = "sagaspan.run.duration"
METRIC_RUN_COMPLETIONS: Final = "sagaspan.run.completions"
METRIC_OUTCOMES: Final = "sagaspan.idempotency.outcomes"
METRIC_REFUSALS: Final = "sagaspan.refusals"
METRIC_RETRIES: Final = "sagaspan.retries"
METRIC_UNKNOWN: Final = "sagaspan.calls.unknown"
METRIC_PROBES: Final = "sagaspan.probes"
METRIC_COMPENSATIONS: Final = "sagaspan.compensations"
METRIC_NUDGES: Final = "sagaspan.loop.nudges"
METRIC_COST: Final = "sagaspan.cost"
METRIC_SOFT_LIMITS: Final = "sagaspan.budget.soft_limits"
METRIC_BUDGET_REFUSALS: Final = "sagaspan.budget.refusals"
METRIC_APPROVALS_DECIDED: Final = "sagaspan.approvals.decided"
METRIC_APPROVAL_WAIT: Final = "sagaspan.approval.wait.duration"
METRIC_NOTIFICATIONS: Final = "sagaspan.notifications"
METRIC_STATUS: Final = "sagaspan.status.items"

COUNTER: Final = "counter"
HISTOGRAM: Final = "histogram"
GAUGE: Final = "gauge"
_SECONDS: Final = tuple(0.01 * 2**n for n in range(14))  # the conventions' own boundaries, to 81.92 s
_LONG_SECONDS: Final = (0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0, 600.0, 1800.0, 3600.0, 7200.0)
_WAITS: Final = (1.0, 10.0, 60.0, 300.0, 900.0, 3600.0, 14_400.0, 28_800.0, 86_400.0, 604_800.0)
_TOKENS: Final = tuple(float(4**n) for n in range(14))


class Metric(NamedTuple):
    """One metric: what it is, and the attributes that it may have."""

    kind: str
    unit: str
    meaning: str
    dimensions: tuple[str, ...]
    buckets: tuple[float, ...] | None = None


_MODEL: Final = (GEN_AI_OPERATION_NAME, GEN_AI_REQUEST_MODEL, GEN_AI_RESPONSE_MODEL, GEN_AI_PROVIDER_NAME)
_DECISION: Final = (GEN_AI_TOOL_NAME, APPROVAL_OUTCOME, APPROVAL_CHANNEL)
METRICS: Final[dict[str, Metric]] = {
    METRIC_TOOL_DURATION: Metric(
        HISTOGRAM, "s", "How long bodies of tools run, all attempts together; the phase tells compensations apart",
        (GEN_AI_TOOL_NAME, GEN_AI_TOOL_TYPE, GEN_AI_AGENT_NAME, CALL_PHASE, ERROR_TYPE), _SECONDS,
    ),
    METRIC_OPERATION_DURATION: Metric(
        HISTOGRAM, "s", "How long calls of models take", (*_MODEL, ERROR_TYPE), _SECONDS
    ),
    METRIC_TOKEN_USAGE: Metric(
        HISTOGRAM, "{token}", "Tokens that calls of models use", (*_MODEL, GEN_AI_TOKEN_TYPE, ERROR_TYPE), _TOKENS
    ),
    METRIC_RUN_DURATION: Metric(
        HISTOGRAM, "s", "How long runs take, from being entered to being left", (RUN_NAME, RUN_STATE), _LONG_SECONDS
    ),
    METRIC_RUN_COMPLETIONS: Metric(
        COUNTER, "{run}", "How runs ended when they were left, recovered or undone", (RUN_NAME, RUN_STATE, RUN_REASON)
    ),
    METRIC_OUTCOMES: Metric(
        COUNTER, "{call}", "Calls by how they were answered: executed, replayed, joined, scheduled, conflict",
        (GEN_AI_TOOL_NAME, IDEMPOTENCY_OUTCOME),
    ),
    METRIC_REFUSALS: Metric(
        COUNTER, "{call}", "Calls that were refused, whatever refused them",
        (GEN_AI_TOOL_NAME, GEN_AI_REQUEST_MODEL, ERROR_TYPE),
    ),
    METRIC_RETRIES: Metric(
        COUNTER, "{attempt}", "Attempts after the first, by the error that made them", (GEN_AI_TOOL_NAME, ERROR_TYPE)
    ),
    METRIC_UNKNOWN: Metric(
        COUNTER, "{call}", "Calls that began, and of which nobody knew whether they happened", (GEN_AI_TOOL_NAME,)
    ),
    METRIC_PROBES: Metric(
        COUNTER, "{probe}", "Probes that were asked, by what they said: applied, not_applied, unsure",
        (GEN_AI_TOOL_NAME, PROBE_ANSWER),
    ),
    METRIC_COMPENSATIONS: Metric(
        COUNTER, "{call}", "Steps that were undone (compensated), or could not be (compensation_failed)",
        (GEN_AI_TOOL_NAME, CALL_STATE),
    ),
    METRIC_NUDGES: Metric(
        COUNTER, "{call}", "Answers with the remark that the agent goes in circles", (GEN_AI_TOOL_NAME, LOOP_KIND)
    ),
    METRIC_COST: Metric(
        COUNTER, "{USD}", "What calls of tools and models cost",
        (GEN_AI_TOOL_NAME, GEN_AI_REQUEST_MODEL, GEN_AI_AGENT_NAME),
    ),
    METRIC_SOFT_LIMITS: Metric(
        COUNTER, "{crossing}", "Soft limits of budgets that were crossed", (BUDGET_KIND, BUDGET_UNIT, BUDGET_PERCENT)
    ),
    METRIC_BUDGET_REFUSALS: Metric(
        COUNTER, "{call}", "Calls that budgets and rates refused", (ERROR_TYPE, BUDGET_KIND, BUDGET_UNIT)
    ),
    METRIC_APPROVALS_DECIDED: Metric(COUNTER, "{request}", "Requests for approval that were decided", _DECISION),
    METRIC_APPROVAL_WAIT: Metric(HISTOGRAM, "s", "How long requests for approval wait", _DECISION, _WAITS),
    METRIC_NOTIFICATIONS: Metric(
        COUNTER, "{attempt}", "Messages to hooks: delivered, failed (and sent again), given_up",
        (NOTIFICATION_KIND, NOTIFICATION_OUTCOME),
    ),
    METRIC_STATUS: Metric(
        GAUGE, "{item}", "What needs a person in a ledger: every row of `sagaspan status`, by its kind and state",
        (LEDGER, STATUS_KIND, STATUS_STATE),
    ),
}  # fmt: skip
"""Every metric, by its name."""

-- The questions people ask, as views. Names after a dollar sign are the constants of semconv.py. Times are UTC,
-- durations milliseconds. What each view and column means is said in columns.sql, and the docs are made from that.

create view traces as
select
    trace_id,
    coalesce(root.name, name) as name,
    coalesce(run_state, case when errors > 0 then 'error' else 'ok' end) as status,
    started,
    (epoch_ns(ended) - epoch_ns(started)) / 1e6 as duration_ms,
    spans,
    errors,
    cost_usd,
    coalesce(root.service_name, service_name) as service_name,
    coalesce(root.run_id, run_id) as run_id
from totals.traces;

create view runs as
select
    run_id,
    name,
    last.state as state,
    last.reason as reason,
    started,
    (epoch_ns(ended) - epoch_ns(started)) / 1e6 as duration_ms,
    calls,
    coalesce(len(undone), 0) as compensations,
    llm_calls,
    errors,
    cost_usd,
    input_tokens,
    output_tokens,
    agent_name,
    conversation_id,
    identity."user",
    identity.tenant,
    coalesce(last.trace_id, totals.runs.trace_id) as trace_id
from totals.runs
left join (
    select run_id, any_value("user") as "user", any_value(tenant) as tenant from ledger.runs group by run_id
) as identity using (run_id);

create view tool_calls as
select
    start_time as started,
    run_id,
    run_name,
    tool_name as tool,
    coalesce(phase, '$PHASE_FORWARD') as phase,
    state,
    outcome,
    executed,
    refused,
    attempts,
    duration_ms,
    try_cast(attributes['$CALL_BODY_MS'] as double) as body_ms,
    error_type,
    cost_usd,
    attributes['$CALL_EFFECT'] as effect,
    call_id,
    compensates,
    attributes['$OBSERVED'] as would_be_refused,
    tool_call_id,
    agent_name,
    conversation_id,
    service_name,
    $ANY_ARGUMENTS as arguments,
    $ANY_RESULT as result,
    trace_id,
    span_id
from spans
where operation = '$OPERATION_EXECUTE_TOOL';

create view saga_steps as
with forward as (
    select *
    from tool_calls
    where phase = '$PHASE_FORWARD' and call_id is not null
    qualify row_number() over (partition by run_id, call_id order by executed desc nulls last, started) = 1
),
undone as (
    select *
    from tool_calls
    where phase = '$PHASE_COMPENSATION'
    qualify row_number() over (partition by run_id, compensates order by started desc) = 1
)
select
    forward.run_id,
    forward.run_name,
    row_number() over (partition by forward.run_id order by forward.started) as step,
    forward.tool,
    forward.state,
    forward.started,
    forward.duration_ms,
    forward.error_type,
    forward.effect,
    forward.call_id,
    undone.tool as compensation,
    undone.state as compensation_state,
    undone.started as compensated,
    undone.error_type as compensation_error,
    forward.trace_id,
    forward.span_id,
    undone.span_id as compensation_span_id
from forward
left join undone on undone.compensates = forward.call_id and undone.run_id is not distinct from forward.run_id;

-- Another instrumentation may have a span of the same call, around ours (a framework's) or below it (an SDK's): then ours
-- counts. Of two without ours the outer one does.
create view llm_calls as
with asked as (
    select * from spans where operation in ($LLM_OPERATIONS)
)
select
    start_time as started,
    run_id,
    run_name,
    operation,
    model,
    provider,
    state,
    refused,
    input_tokens,
    output_tokens,
    cached_tokens,
    reasoning_tokens,
    cost_usd,
    duration_ms,
    attributes['$GEN_AI_RESPONSE_FINISH_REASONS'] as finish_reasons,
    error_type,
    agent_name,
    conversation_id,
    call_id,
    service_name,
    $ANY_INPUT as input,
    $ANY_OUTPUT as output,
    trace_id,
    span_id
from asked
where run_id is not null or not exists (
    select 1 from asked as other
    where other.trace_id = asked.trace_id
        and (other.span_id = asked.parent_span_id or (other.parent_span_id = asked.span_id and other.run_id is not null))
);

create view approvals as
with askings as (
    select * from spans where is_approval
)
select
    approval_id,
    arg_min(tool_name, start_time) as tool,
    arg_min(run_id, start_time) as run_id,
    arg_max(state, end_time) as state,
    nullif(arg_max(attributes['$APPROVAL_CHANNEL'], end_time), '') as channel,
    min(start_time) as asked,
    max(try_cast(attributes['$APPROVAL_WAIT_MS'] as double)) as wait_ms,
    count(*) as askings,
    arg_min(trace_id, start_time) as trace_id,
    arg_min(span_id, start_time) as span_id
from askings
group by approval_id, case when approval_id is null then span_id end;

create view events as
with listed as (
    select
        service_name,
        name as span,
        tool_name,
        run_id,
        trace_id,
        span_id,
        unnest(from_json(events, '[{"timeUnixNano": "VARCHAR", "name": "VARCHAR", "attributes": "JSON"}]')) as event
    from spans
    where events is not null
)
select
    make_timestamp_ns(try_cast(event.timeUnixNano as bigint)) as time,
    event.name as name,
    span,
    tool_name as tool,
    otlp_pairs(event.attributes) as attributes,
    service_name,
    run_id,
    trace_id,
    span_id
from listed;

create view budgets as
select
    time,
    'soft_limit' as what,
    attributes['$BUDGET_SCOPE'] as scope,
    attributes['$BUDGET_UNIT'] as unit,
    nullif(attributes['$BUDGET_WINDOW'], '') as per,
    attributes['$BUDGET_LIMIT'] as amount,
    try_cast(attributes['$BUDGET_PERCENT'] as integer) as percent,
    tool,
    run_id,
    trace_id,
    span_id
from events
where name = '$EVENT_SOFT_LIMIT'
union all
select
    start_time as time,
    error_type as what,
    scope,
    unit,
    null as per,
    amount,
    null as percent,
    coalesce(tool_name, model) as tool,
    run_id,
    trace_id,
    span_id
from spans
where refused and error_type in ('budget_exceeded', 'rate_limited');

create view refusals as
select
    start_time as started,
    error_type as reason,
    coalesce(tool_name, model) as tool,
    operation,
    rule,
    scope,
    status_message as message,
    run_id,
    agent_name,
    conversation_id,
    service_name,
    trace_id,
    span_id
from spans
where refused;

create view errors as
select
    start_time as started,
    service_name,
    name,
    tool_name as tool,
    error_type,
    status_message as message,
    stack,
    state,
    duration_ms,
    run_id,
    call_id,
    trace_id,
    span_id
from spans
where status = 'ERROR';

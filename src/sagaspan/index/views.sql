-- The questions people ask, as views. Names after a dollar sign are the constants of semconv.py.
-- Times are UTC, durations milliseconds.

-- One row a trace. `name` is its root span's; while the root has not ended, the earliest span's.
create view traces as
select
    trace_id,
    coalesce(
        arg_min(name, start_time) filter (where parent_span_id is null), arg_min(name, start_time), any_value(name)
    ) as name,
    min(start_time) as start,
    (epoch_ns(max(end_time)) - epoch_ns(min(start_time))) / 1e6 as duration_ms,
    count(*) as spans,
    count(*) filter (where status = 'ERROR') as errors,
    arg_min(service_name, start_time) as service_name,
    arg_min(run_id, start_time) as run_id
from spans
group by trace_id;

-- One row a tool call, forward or compensating, of sagaspan or of any other instrumentation.
create view tool_calls as
select
    start_time as started,
    run_id,
    run_name,
    tool_name as tool,
    coalesce(phase, '$PHASE_FORWARD') as phase,
    attributes['$CALL_STATE'] as state,
    attributes['$IDEMPOTENCY_OUTCOME'] as outcome,
    try_cast(attributes['$CALL_EXECUTED'] as boolean) as executed,
    try_cast(attributes['$CALL_ATTEMPTS'] as integer) as attempts,
    duration_ms,
    error_type,
    attributes['$CALL_EFFECT'] as effect,
    call_id,
    attributes['$CALL_COMPENSATES'] as compensates,
    trace_id,
    span_id,
    agent_name
from spans
where operation = '$OPERATION_EXECUTE_TOOL';

-- One row a run. A resumed run has a span an incarnation: the last one's state and reason count, and duration_ms is
-- from the first start to the last end. A run whose span never ended (it is running, or crashed) has no state.
create view runs as
with run_spans as (
    select *, operation is null and attributes['$RUN_STATE'] is not null as is_run
    from spans
    where run_id is not null
),
counted as (
    select
        run_id,
        arg_max(run_name, end_time) as name,
        arg_max({'state': attributes['$RUN_STATE'], 'reason': attributes['$RUN_REASON']}, end_time)
            filter (where is_run) as outcome,
        min(start_time) as started,
        (epoch_ns(max(end_time)) - epoch_ns(min(start_time))) / 1e6 as duration_ms,
        count(distinct coalesce(call_id, span_id)) filter (
            where operation = '$OPERATION_EXECUTE_TOOL' and coalesce(phase, '$PHASE_FORWARD') = '$PHASE_FORWARD'
        ) as calls,
        count(distinct coalesce(attributes['$CALL_COMPENSATES'], span_id)) filter (
            where operation = '$OPERATION_EXECUTE_TOOL' and phase = '$PHASE_COMPENSATION'
        ) as compensations,
        count(*) filter (where status = 'ERROR' and not is_run) as errors,
        coalesce(arg_max(trace_id, end_time) filter (where is_run), arg_max(trace_id, end_time)) as trace_id
    from run_spans
    group by run_id
)
select
    run_id,
    name,
    outcome.state as state,
    outcome.reason as reason,
    started,
    duration_ms,
    calls,
    compensations,
    errors,
    trace_id
from counted;

-- One row a forward call of a run, with what undid it. A call that later incarnations replayed shows where it ran.
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

-- One row a call of a model.
create view llm_calls as
select
    start_time as started,
    run_id,
    run_name,
    operation,
    model,
    provider,
    input_tokens,
    output_tokens,
    cost_usd,
    duration_ms,
    error_type,
    agent_name,
    conversation_id,
    trace_id,
    span_id
from spans
where operation in ('chat', 'generate_content', 'text_completion', 'embeddings');

-- One row a span that ended in an error.
create view errors as
select
    start_time as started,
    service_name,
    name,
    tool_name as tool,
    error_type,
    status_message as message,
    duration_ms,
    run_id,
    call_id,
    trace_id,
    span_id
from spans
where status = 'ERROR';

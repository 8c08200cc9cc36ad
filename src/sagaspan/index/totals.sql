-- What the views `traces` and `runs` say of each trace and run, kept as spans arrive: counted over all spans when asked
-- it took as long as there are spans. Everything here can be put together from parts, so that a trace whose spans come
-- in several syncs, in any order, is what it would be had they come at once.

-- name: count_traces
create or replace temp table new_traces as
select
    trace_id,
    arg_min({'name': name, 'service_name': service_name, 'run_id': run_id}, start_time) filter (
        where parent_span_id is null
    ) as root,
    min(start_time) filter (where parent_span_id is null) as root_started,
    any_value(name) as name,
    any_value(service_name) as service_name,
    any_value(run_id) as run_id,
    arg_max(state, end_time) filter (where is_run) as run_state,
    max(end_time) filter (where is_run and state is not null) as run_ended,
    min(start_time) as started,
    max(end_time) as ended,
    count(*) as spans,
    count(*) filter (where status = 'ERROR') as errors,
    sum(cost_usd) as cost_usd
from spans
where rowid > ? and trace_id is not null
group by trace_id;

-- name: recall_traces
insert into new_traces select * from totals.traces where trace_id in (select trace_id from new_traces);

-- name: forget_traces
delete from totals.traces where trace_id in (select trace_id from new_traces);

-- name: keep_traces
insert into totals.traces
select
    trace_id,
    arg_min(root, root_started),
    min(root_started),
    any_value(name),
    any_value(service_name),
    any_value(run_id),
    arg_max(run_state, run_ended),
    max(run_ended),
    min(started),
    max(ended),
    sum(spans),
    sum(errors),
    sum(cost_usd)
from new_traces
group by trace_id
order by min(started);

-- name: count_runs
create or replace temp table new_runs as
select
    run_id,
    any_value(run_name) as name,
    min(start_time) as started,
    max(end_time) as ended,
    arg_max({'state': state, 'reason': reason, 'trace_id': trace_id}, end_time) filter (where is_run) as last,
    max(end_time) filter (where is_run) as last_ended,
    count(*) filter (
        where operation = '$OPERATION_EXECUTE_TOOL' and phase is distinct from '$PHASE_COMPENSATION'
            and (outcome is null or outcome not in ('$OUTCOME_REPLAYED', '$OUTCOME_JOINED'))
            and state is distinct from 'awaiting_approval'
    ) as calls,
    list(coalesce(compensates, span_id)) filter (
        where phase = '$PHASE_COMPENSATION' and coalesce(compensates, span_id) is not null
    ) as undone,
    count(*) filter (where operation in ($LLM_OPERATIONS)) as llm_calls,
    count(*) filter (where status = 'ERROR' and not is_run) as errors,
    sum(cost_usd) as cost_usd,
    sum(input_tokens)::bigint as input_tokens,
    sum(output_tokens)::bigint as output_tokens,
    any_value(agent_name) as agent_name,
    any_value(conversation_id) as conversation_id,
    any_value(trace_id) as trace_id
from spans
where rowid > ? and run_id is not null
group by run_id;

-- name: recall_runs
insert into new_runs select * from totals.runs where run_id in (select run_id from new_runs);

-- name: forget_runs
delete from totals.runs where run_id in (select run_id from new_runs);

-- name: keep_runs
insert into totals.runs
select
    run_id,
    any_value(name),
    min(started),
    max(ended),
    arg_max(last, last_ended),
    max(last_ended),
    sum(calls),
    list_distinct(flatten(list(undone))),
    sum(llm_calls),
    sum(errors),
    sum(cost_usd),
    sum(input_tokens),
    sum(output_tokens),
    any_value(agent_name),
    any_value(conversation_id),
    any_value(trace_id)
from new_runs
group by run_id
order by min(started);

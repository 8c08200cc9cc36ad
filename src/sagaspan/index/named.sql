-- Questions that people ask again and again: `sagaspan sql --named NAME`.

-- name: failures-by-tool
-- Which tools fail, how often, and of what.
select tool, error_type, count(*) as failures, max(started) as last
from tool_calls
where state in ('failed', 'unknown', 'needs_human') or (state is null and error_type is not null and not refused)
group by all
order by failures desc, tool;

-- name: slowest-tools
-- How long each tool takes: median, 95th percentile and longest from asking to answer, and the median of its body alone, in milliseconds.
select
    tool,
    count(*) as calls,
    round(quantile_cont(duration_ms, 0.5), 1) as median,
    round(quantile_cont(duration_ms, 0.95), 1) as p95,
    round(max(duration_ms), 1) as longest,
    round(quantile_cont(body_ms, 0.5), 1) as median_body
from tool_calls
where coalesce(executed, true)
group by tool
order by p95 desc;

-- name: cost-by-model
-- What each model cost, with its tokens.
select
    model,
    provider,
    count(*) as calls,
    sum(input_tokens)::bigint as input_tokens,
    sum(output_tokens)::bigint as output_tokens,
    round(sum(cost_usd), 9) as cost_usd
from llm_calls
where not refused
group by all
order by cost_usd desc nulls last;

-- name: cost-by-agent
-- What each agent cost.
select agent_name, count(distinct run_id) as runs, round(sum(cost_usd), 9) as cost_usd
from spans
where cost_usd is not null
group by agent_name
order by cost_usd desc;

-- name: most-expensive-runs
-- The twenty runs that cost most.
select run_id, name, state, calls, llm_calls, round(cost_usd, 9) as cost_usd
from runs
where cost_usd is not null
order by cost_usd desc
limit 20;

-- name: tokens-by-day
-- Tokens and cost of each day.
select
    started::date as day,
    count(*) as calls,
    sum(input_tokens)::bigint as input_tokens,
    sum(output_tokens)::bigint as output_tokens,
    round(sum(cost_usd), 9) as cost_usd
from llm_calls
where not refused
group by day
order by day desc;

-- name: runs-by-outcome
-- How runs end, and why.
select state, reason, count(*) as runs, round(median(duration_ms)) as median_ms
from runs
group by all
order by runs desc;

-- name: refusals-by-reason
-- What was refused, and by which rule or budget. Budgets of single runs are one line.
select reason, tool, rule, regexp_replace(scope, '^run:[^/]*', 'run:*') as scope, count(*) as refusals, max(started) as last
from refusals
group by all
order by refusals desc;

-- name: approvals-by-tool
-- How often people were asked about each tool, what they said, and how long that took.
select tool, state, count(*) as requests, round(median(wait_ms) / 1000, 1) as median_s, round(max(wait_ms) / 1000, 1) as longest_s
from approvals
group by all
order by requests desc;

-- name: compensations
-- What was undone, newest first, and what could not be.
with undone as (
    select *
    from tool_calls
    where phase = 'compensation'
    qualify row_number() over (partition by run_id, compensates order by started desc) = 1
    order by started desc
    limit 100
),
forward as (
    select call_id, any_value(tool) as tool
    from tool_calls
    where phase = 'forward' and call_id in (select compensates from undone)
    group by call_id
)
select
    undone.run_id,
    forward.tool,
    undone.tool as compensation,
    undone.state as compensation_state,
    undone.started as compensated,
    undone.error_type as compensation_error
from undone
left join forward on forward.call_id = undone.compensates
order by compensated desc;

-- name: retried-calls
-- Calls that took more than one attempt.
select tool, attempts, state, count(*) as calls
from tool_calls
where attempts > 1
group by all
order by attempts desc, calls desc;

-- name: replays
-- What was asked for again and answered from the record: done once, however often it was asked for.
select tool, outcome, count(*) as calls
from tool_calls
where outcome in ('replayed', 'joined')
group by all
order by calls desc;

-- name: errors-by-type
-- All errors, by type. One that passes through several spans counts once, where it began; failed attempts of a call are in retried-calls.
with failed as (
    select * from spans where status = 'ERROR' and attributes['$ATTEMPT_NUMBER'] is null
)
select
    error_type,
    service_name,
    count(*) as errors,
    max(start_time) as last,
    any_value(trace_id) as a_trace
from failed
where not exists (
    select 1
    from failed as child
    where child.trace_id = failed.trace_id
        and child.parent_span_id = failed.span_id
        and child.error_type is not distinct from failed.error_type
)
group by all
order by errors desc;

-- name: open-calls
-- Calls that are not settled, as the ledger has them.
select run_id, call_id, tool, state, started
from ledger.calls
where state in ('running', 'unknown', 'needs_human', 'compensating', 'compensation_failed', 'awaiting_approval', 'scheduled')
order by started;

-- name: calls-without-spans
-- Calls that the ledger knows and no span tells of: their traces were not sampled, or not exported.
select run_id, call_id, tool, model, state, started
from ledger.calls
anti join spans using (call_id)
order by started desc;

-- name: decisions
-- Who decided what, newest first, from the audit trail.
select time, actor, event, run_id, call_id, to_state
from ledger.audit
where approval_id is not null and event not in ('approval.ask', 'approval.consume')
order by seq desc
limit 100;

-- name: budgets-left
-- What is left of each budget in its window of now, the fullest first.
select
    scope, unit, per, cap, spent, reserved, cap - spent - reserved as "left",
    round(100 * (spent + reserved) / nullif(cap, 0)) as percent
from ledger.budgets
where cap is not null and (per is null or since = date_trunc(per, now()::timestamp))
order by percent desc nulls last;

-- name: damaged-lines
-- Lines of trace files that could not be read.
select path, line, position, reason, found from damaged_lines order by found desc;

-- name: columns
-- Every table and view with its columns, and what they mean.
select
    case schema_name when 'main' then '' else schema_name || '.' end || table_name as relation,
    column_name as "column",
    data_type as type,
    comment as meaning
from duckdb_columns()
where not internal and schema_name <> 'totals'
order by schema_name = 'ledger', relation, column_index;

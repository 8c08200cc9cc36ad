-- From staged lines to rows. Nothing in a line may stop the rest: every cast is a try_cast, every shape may
-- be missing.

-- name: stage
-- read_json_objects gives one row a non-blank line, in order, NULL where it is no JSON; from_json leaves out
-- what does not fit. (read_json with columns= would be one step, but one misshapen line empties its whole
-- batch: measured.)
create or replace temp table staged as
select from_json(json, '{
    "resourceSpans": [{
        "resource": {"attributes": [$ATTRIBUTE]},
        "scopeSpans": [{
            "scope": {"name": "VARCHAR"},
            "spans": [{
                "traceId": "VARCHAR", "spanId": "VARCHAR", "parentSpanId": "VARCHAR", "name": "VARCHAR",
                "kind": "VARCHAR", "startTimeUnixNano": "VARCHAR", "endTimeUnixNano": "VARCHAR",
                "attributes": [$ATTRIBUTE], "status": {"code": "VARCHAR", "message": "VARCHAR"},
                "events": "JSON", "links": "JSON"
            }]
        }]
    }]
}') as request
from read_json_objects(?, format = 'newline_delimited', ignore_errors = true, maximum_object_size = $MAXIMUM_LINE);

-- name: damaged
select rowid from staged where request is null or request.resourceSpans is null order by rowid;

-- name: bounds
select
    make_timestamp_ns(min(nanoseconds(span.startTimeUnixNano))),
    make_timestamp_ns(max(nanoseconds(span.startTimeUnixNano))),
    count(span)
from (
    select unnest(s.spans) as span
    from (select unnest(r.scopeSpans) as s from (select unnest(request.resourceSpans) as r from staged))
);

-- name: insert
-- OTLP delivers at least once, and a span may come from our sink and from a Collector: the same ids and the
-- same start are the same span. The bounds let DuckDB skip the blocks of the table that cannot match.
insert into spans
with rows as (
    -- Which file each row is of, row by row: an asof join would sort the parsed lines themselves.
    select unnest(range(first_row, coalesce(lead(first_row) over (order by first_row), (select count(*) from staged)))) as row, path
    from slices
),
resource_spans as (
    select rows.path as source, unnest(staged.request.resourceSpans) as r
    from staged
    join rows on staged.rowid = rows.row
),
scope_spans as (
    select source, otlp_map(r.resource.attributes) as resource, unnest(r.scopeSpans) as s from resource_spans
),
flat as (
    select source, resource, s.scope.name as scope_name, unnest(s.spans) as span from scope_spans
),
mapped as (
    select
        source,
        resource,
        scope_name,
        span.traceId as trace_id,
        span.spanId as span_id,
        span.parentSpanId as parent_span_id,
        span.name as name,
        otlp_map(span.attributes) as a,
        nanoseconds(span.startTimeUnixNano) as start_ns,
        nanoseconds(span.endTimeUnixNano) as end_ns,
        upper(replace(span.kind, 'SPAN_KIND_', '')) as kind,
        upper(replace(span.status.code, 'STATUS_CODE_', '')) as status,
        span.status.message as status_message,
        span.events as events,
        span.links as links
    from flat
    where span is not null
),
{derived}
select incoming.*
from incoming
where not exists (
    select 1
    from spans
    where spans.start_time between ? and ?
        and spans.trace_id = incoming.trace_id
        and spans.span_id = incoming.span_id
        and spans.start_time = incoming.start_time
);

-- name: carry
-- What an index of an older schema holds, a part of it: what a span says is taken as it is, all else derived anew.
insert into spans
with mapped as (
    select
        source,
        resource,
        scope_name,
        trace_id,
        span_id,
        parent_span_id,
        name,
        attributes as a,
        epoch_ns(start_time) as start_ns,
        epoch_ns(end_time) as end_ns,
        kind,
        status,
        status_message,
        events,
        links
    from old.spans
    where rowid between ? and ?
),
{derived}
select * from incoming;

-- name: derived
-- What a span says in many words, or in none of its own: the columns that are asked for. Everything here gives the same
-- when it is given what it gave.
explained as (
    select
        *,
        coalesce(
            a['$GEN_AI_OPERATION_NAME'],
            case a['$OPENINFERENCE_SPAN_KIND']
                when 'TOOL' then '$OPERATION_EXECUTE_TOOL' when 'LLM' then '$OPERATION_CHAT'
                when 'AGENT' then '$OPERATION_INVOKE_AGENT' when 'EMBEDDING' then '$OPERATION_EMBEDDINGS'
            end,
            case a['$TRACELOOP_SPAN_KIND']
                when 'tool' then '$OPERATION_EXECUTE_TOOL' when 'agent' then '$OPERATION_INVOKE_AGENT'
                when 'workflow' then '$OPERATION_INVOKE_WORKFLOW'
            end,
            case a['$TRACELOOP_REQUEST_TYPE']
                when 'chat' then '$OPERATION_CHAT' when 'completion' then '$OPERATION_COMPLETE'
                when 'embedding' then '$OPERATION_EMBEDDINGS'
            end
        ) as operation,
        case when has_exception then exception_field(events, 'exception.type') end as exception_type,
        case when has_exception then exception_field(events, 'exception.message') end as exception_message,
        case when has_exception then exception_field(events, '$EXCEPTION_STACKTRACE') end as exception_stack
    from (select *, contains(events::varchar, '"exception"') as has_exception from mapped)
),
incoming as (
    select
        nullif(lower(trace_id), '') as trace_id,
        nullif(lower(span_id), '') as span_id,
        nullif(nullif(lower(parent_span_id), ''), '0000000000000000') as parent_span_id,
        name,
        case kind
            when '1' then 'INTERNAL' when '2' then 'SERVER' when '3' then 'CLIENT'
            when '4' then 'PRODUCER' when '5' then 'CONSUMER' when '0' then 'UNSPECIFIED'
            else coalesce(kind, 'UNSPECIFIED')
        end as kind,
        make_timestamp_ns(start_ns) as start_time,
        make_timestamp_ns(end_ns) as end_time,
        (end_ns - start_ns) / 1e6 as duration_ms,
        end_ns - start_ns as duration_ns,
        case
            when status in ('1', 'OK') then 'OK'
            when status in ('2', 'ERROR') then 'ERROR'
            else 'UNSET'
        end as status,
        coalesce(nullif(status_message, ''), exception_message) as status_message,
        resource['$SERVICE_NAME'] as service_name,
        scope_name,
        operation,
        case operation
            when '$OPERATION_EXECUTE_TOOL' then coalesce(
                a['$GEN_AI_TOOL_NAME'], a['$OPENINFERENCE_TOOL_NAME'], a['$TRACELOOP_ENTITY_NAME'], name
            )
            else a['$GEN_AI_TOOL_NAME']
        end as tool_name,
        $FIRST_TOOL_CALL_ID as tool_call_id,
        coalesce(
            a['$GEN_AI_AGENT_NAME'],
            a['$OPENINFERENCE_AGENT_NAME'],
            case a['$TRACELOOP_SPAN_KIND'] when 'agent' then a['$TRACELOOP_ENTITY_NAME'] end
        ) as agent_name,
        $FIRST_CONVERSATION as conversation_id,
        $FIRST_MODEL as model,
        $FIRST_PROVIDER as provider,
        try_cast($FIRST_INPUT_TOKENS as bigint) as input_tokens,
        try_cast($FIRST_OUTPUT_TOKENS as bigint) as output_tokens,
        try_cast($FIRST_CACHED_TOKENS as bigint) as cached_tokens,
        try_cast($FIRST_REASONING_TOKENS as bigint) as reasoning_tokens,
        coalesce($COSTS) as cost_usd,
        coalesce(a['$ERROR_TYPE'], exception_type) as error_type,
        coalesce(a['$EXCEPTION_STACKTRACE'], exception_stack) as stack,
        a['$RUN_ID'] as run_id,
        a['$RUN_NAME'] as run_name,
        a['$CALL_ID'] as call_id,
        a['$CALL_PHASE'] as phase,
        coalesce(a['$CALL_STATE'], a['$RUN_STATE'], a['$APPROVAL_OUTCOME']) as state,
        a['$RUN_REASON'] as reason,
        a['$RUN_STATE'] is not null and coalesce(operation, '$OPERATION_INVOKE_AGENT') = '$OPERATION_INVOKE_AGENT'
            as is_run,
        a['$IDEMPOTENCY_OUTCOME'] as outcome,
        try_cast(a['$CALL_EXECUTED'] as boolean) as executed,
        try_cast(a['$CALL_ATTEMPTS'] as integer) as attempts,
        a['$CALL_COMPENSATES'] as compensates,
        a['$APPROVAL_ID'] as approval_id,
        operation is null and coalesce(a['$APPROVAL_ID'] is not null or starts_with(name, 'approval '), false)
            as is_approval,
        coalesce(a['$ERROR_TYPE'] in ($REFUSALS), false) and operation is not null and a['$RUN_STATE'] is null
            and not coalesce(try_cast(a['$CALL_EXECUTED'] as boolean), false) as refused,
        a['$POLICY_RULE'] as rule,
        a['$BUDGET_SCOPE'] as scope,
        a['$BUDGET_UNIT'] as unit,
        a['$BUDGET_LIMIT'] as amount,
        a as attributes,
        resource,
        nullif(events, '[]'::json) as events,
        nullif(links, '[]'::json) as links,
        source
    from explained
)

-- name: last_row
select coalesce(max(rowid), -1) from spans;

-- name: repeated
select count(*) - count(distinct (trace_id, span_id, start_time)) from spans where rowid > ?;

-- name: deduplicate
-- Only run when a batch repeats a span within itself.
delete from spans
where rowid in (
    select rowid
    from spans
    where rowid > ? and trace_id is not null and span_id is not null and start_time is not null
    qualify row_number() over (partition by trace_id, span_id, start_time order by rowid) > 1
);

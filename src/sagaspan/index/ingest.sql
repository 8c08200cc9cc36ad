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

-- name: text
create or replace temp macro otlp_text(value) as coalesce(
    value.stringValue, value.intValue, value.doubleValue, value.boolValue, value.bytesValue,
    to_json(json_extract(value.arrayValue, '$$.values[*].*'))::varchar, value.kvlistValue::varchar
);

-- name: map
-- map_from_entries refuses a repeated or missing key, which OTLP forbids and the world sends: the first one
-- counts.
create or replace temp macro otlp_map(attributes) as map_from_entries(
    list_transform(
        case
            when list_unique(list_transform(attributes, lambda a: a.key)) = len(attributes) then attributes
            else list_filter(
                attributes,
                lambda a, i: a.key is not null
                    and list_position(list_transform(attributes, lambda b: b.key), a.key) = i
            )
        end,
        lambda a: {'k': a.key, 'v': otlp_text(a.value)}
    )
);

-- name: number
create or replace temp macro finite(text) as case
    when isfinite(try_cast(text as double)) then try_cast(text as double)
end;

-- name: nanoseconds
-- 0 means unknown, and the largest integer means infinity to a timestamp.
create or replace temp macro nanoseconds(text) as case
    when try_cast(text as bigint) between 1 and 9223372036854775806 then try_cast(text as bigint)
end;

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
with resource_spans as (
    select slices.path as source, unnest(staged.request.resourceSpans) as r
    from staged
    asof join slices on staged.rowid >= slices.first_row
),
scope_spans as (
    select source, otlp_map(r.resource.attributes) as resource, unnest(r.scopeSpans) as s from resource_spans
),
flat as (
    select source, resource, s.scope.name as scope_name, unnest(s.spans) as span from scope_spans
),
mapped as (
    select
        *,
        otlp_map(span.attributes) as a,
        nanoseconds(span.startTimeUnixNano) as start_ns,
        nanoseconds(span.endTimeUnixNano) as end_ns,
        upper(replace(span.kind, 'SPAN_KIND_', '')) as kind,
        upper(replace(span.status.code, 'STATUS_CODE_', '')) as status
    from flat
    where span is not null
),
incoming as (
    select
        nullif(lower(span.traceId), '') as trace_id,
        nullif(lower(span.spanId), '') as span_id,
        nullif(nullif(lower(span.parentSpanId), ''), '0000000000000000') as parent_span_id,
        span.name as name,
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
        nullif(span.status.message, '') as status_message,
        resource['$SERVICE_NAME'] as service_name,
        scope_name,
        coalesce(
            a['$GEN_AI_OPERATION_NAME'],
            case a['$OPENINFERENCE_SPAN_KIND'] when 'TOOL' then '$OPERATION_EXECUTE_TOOL' when 'LLM' then 'chat' end,
            case a['$TRACELOOP_SPAN_KIND'] when 'tool' then '$OPERATION_EXECUTE_TOOL' end
        ) as operation,
        coalesce(
            a['$GEN_AI_TOOL_NAME'],
            case a['$OPENINFERENCE_SPAN_KIND'] when 'TOOL' then a['$OPENINFERENCE_TOOL_NAME'] end,
            case a['$TRACELOOP_SPAN_KIND'] when 'tool' then a['$TRACELOOP_ENTITY_NAME'] end
        ) as tool_name,
        a['$GEN_AI_TOOL_CALL_ID'] as tool_call_id,
        a['$GEN_AI_AGENT_NAME'] as agent_name,
        coalesce(a['$GEN_AI_CONVERSATION_ID'], a['$SESSION_ID']) as conversation_id,
        coalesce(a['$GEN_AI_RESPONSE_MODEL'], a['$GEN_AI_REQUEST_MODEL'], a['$OPENINFERENCE_MODEL']) as model,
        coalesce(a['$GEN_AI_PROVIDER_NAME'], a['$GEN_AI_SYSTEM']) as provider,
        try_cast(
            coalesce(a['$GEN_AI_USAGE_INPUT_TOKENS'], a['$OPENINFERENCE_INPUT_TOKENS']) as bigint
        ) as input_tokens,
        try_cast(
            coalesce(a['$GEN_AI_USAGE_OUTPUT_TOKENS'], a['$OPENINFERENCE_OUTPUT_TOKENS']) as bigint
        ) as output_tokens,
        coalesce($COSTS) as cost_usd,
        a['$ERROR_TYPE'] as error_type,
        a['$RUN_ID'] as run_id,
        a['$RUN_NAME'] as run_name,
        a['$CALL_ID'] as call_id,
        a['$CALL_PHASE'] as phase,
        a as attributes,
        resource,
        span.events as events,
        span.links as links,
        source
    from mapped
)
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

-- The tables of an index as schema 4 had them, the last before traces and runs were counted as spans arrive.

create table meta (
    key varchar primary key,
    value varchar not null
);

-- What has been read of each file. A file is its device, inode and first bytes, because a Collector renames files
-- when it rotates them and file systems reuse inodes. The head is the first 256 bytes, or what was read if that is
-- less; `position` (bytes) moves in the transaction that adds the rows.
create table files (
    device ubigint not null,
    inode ubigint not null,
    head_length integer not null,
    head_sha1 varchar not null,
    path varchar not null,
    position bigint not null,
    lines bigint not null,
    size bigint not null
);

create table damaged_lines (
    path varchar not null,
    line bigint not null,
    position bigint not null,
    reason varchar not null,
    found timestamp not null
);

create table spans (
    trace_id varchar,
    span_id varchar,
    parent_span_id varchar,
    name varchar,
    kind varchar,
    start_time timestamp_ns,
    end_time timestamp_ns,
    duration_ms double,
    duration_ns bigint,
    status varchar,
    status_message varchar,
    service_name varchar,
    scope_name varchar,
    operation varchar,
    tool_name varchar,
    tool_call_id varchar,
    agent_name varchar,
    conversation_id varchar,
    model varchar,
    provider varchar,
    input_tokens bigint,
    output_tokens bigint,
    cached_tokens bigint,
    reasoning_tokens bigint,
    cost_usd double,
    error_type varchar,
    stack varchar,
    run_id varchar,
    run_name varchar,
    call_id varchar,
    phase varchar,
    state varchar,
    reason varchar,
    is_run boolean,
    outcome varchar,
    executed boolean,
    attempts integer,
    compensates varchar,
    attributes map(varchar, varchar),
    resource map(varchar, varchar),
    events json,
    links json,
    source varchar
);


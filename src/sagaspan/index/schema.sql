-- The index. Everything in it is derived from the trace files, and is kept when retention has deleted these. Where the
-- schema changes, an older index is carried over (upgrade.py).

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
    approval_id varchar,
    is_approval boolean,
    refused boolean,
    rule varchar,
    scope varchar,
    unit varchar,
    amount varchar,
    attributes map(varchar, varchar),
    resource map(varchar, varchar),
    events json,
    links json,
    source varchar
);

-- Of each trace and each run what its spans come to; `totals.sql` keeps them.
create schema totals;

create table totals.traces (
    trace_id varchar,
    root struct(name varchar, service_name varchar, run_id varchar),
    root_started timestamp_ns,
    name varchar,
    service_name varchar,
    run_id varchar,
    run_state varchar,
    run_ended timestamp_ns,
    started timestamp_ns,
    ended timestamp_ns,
    spans bigint,
    errors bigint,
    cost_usd double
);

create table totals.runs (
    run_id varchar,
    name varchar,
    started timestamp_ns,
    ended timestamp_ns,
    last struct(state varchar, reason varchar, trace_id varchar),
    last_ended timestamp_ns,
    calls bigint,
    undone varchar[],
    llm_calls bigint,
    errors bigint,
    cost_usd double,
    input_tokens bigint,
    output_tokens bigint,
    agent_name varchar,
    conversation_id varchar,
    trace_id varchar
);

-- Copies of the ledger's own records, beside the spans: what the audit trail names as changed is copied anew.
-- Content (arguments, results, words of people and of errors) only under OpenTelemetry's content opt-in.
create schema ledger;

create table ledger.runs (
    namespace varchar,
    run_id varchar,
    name varchar,
    state varchar,
    reason varchar,
    parent_id varchar,
    conversation_id varchar,
    "user" varchar,
    tenant varchar,
    agent_name varchar,
    reopened bigint,
    started timestamp,
    ended timestamp,
    trace_id varchar,
    input varchar,
    output varchar,
    error varchar
);

create table ledger.calls (
    namespace varchar,
    run_id varchar,
    call_id varchar,
    claim_order bigint,
    tool varchar,
    phase varchar,
    state varchar,
    effect varchar,
    attempts bigint,
    compensates varchar,
    compensation varchar,
    error_type varchar,
    policy varchar,
    would_be_refused varchar,
    tool_call_id varchar,
    started timestamp,
    ended timestamp,
    model varchar,
    provider varchar,
    agent_name varchar,
    cost_usd double,
    input_tokens bigint,
    output_tokens bigint,
    trace_id varchar,
    span_id varchar,
    arguments varchar,
    result varchar,
    error varchar
);

create table ledger.approvals (
    namespace varchar,
    run_id varchar,
    approval_id varchar,
    call_id varchar,
    tool varchar,
    state varchar,
    decided_by varchar,
    channel varchar,
    digest varchar,
    asked timestamp,
    expires timestamp,
    ended timestamp,
    reason varchar
);

create table ledger.audit (
    seq bigint,
    time timestamp,
    namespace varchar,
    run_id varchar,
    call_id varchar,
    approval_id varchar,
    event varchar,
    from_state varchar,
    to_state varchar,
    actor varchar,
    digest varchar,
    detail varchar
);

create table ledger.budgets (
    namespace varchar,
    scope varchar,
    unit varchar,
    per varchar,
    since timestamp,
    cap double,
    spent double,
    reserved double,
    overdraft double
);

create table runs (
  namespace         text not null,
  id                text not null,
  name              text not null,
  parent_id         text,
  conversation      text,
  user              text,
  tenant            text,
  agent             text,
  tags              text not null,
  input             text,
  input_fingerprint text not null,
  output            text,
  state             text not null check (state in ('running', 'paused', 'held', 'completed', 'failed',
                                                   'compensating', 'compensated', 'partially_compensated')),
  reason            text,
  error             text,
  on_interrupt      text not null check (on_interrupt in ('hold', 'compensate')),
  generation        integer not null,
  committed_seq     integer not null,
  owner             text not null,
  epoch             integer not null,
  version           integer not null,
  traceparent       text,
  created_us        integer not null,
  started_us        integer not null,
  ended_us          integer,
  primary key (namespace, id)
) strict;

create index runs_by_parent on runs (namespace, parent_id) where parent_id is not null;
create index runs_by_creation on runs (created_us);

create table calls (
  seq            integer primary key,
  id             text not null unique,
  namespace      text not null,
  scope          text not null,
  tool           text not null,
  key            text not null,
  key_source     text not null,
  generation     integer not null,
  idempotency_key text not null,
  fingerprint    text not null,
  run_id         text not null,
  parent_id      text,
  phase          text not null check (phase in ('forward', 'compensation')),
  compensates    text,
  state          text not null check (state in ('awaiting_approval', 'running', 'done', 'failed', 'unknown',
                                                'needs_human', 'refused', 'scheduled', 'compensating',
                                                'compensated', 'compensation_failed')),
  effect         text,
  declared_write integer not null,
  arguments      text not null,
  result         text,
  result_lost    text,
  error_type     text,
  error_message  text,
  compensate     text,
  tool_call_id   text,
  owner          text not null,
  epoch          integer not null,
  attempts       integer not null,
  version        integer not null,
  claim_seq      integer not null,
  traceparent    text,
  created_us     integer not null,
  started_us     integer not null,
  ended_us       integer,
  unique (namespace, scope, tool, key)
) strict;

create index calls_by_run on calls (namespace, run_id);
create index calls_open on calls (state, seq)
  where state in ('running', 'unknown', 'needs_human', 'compensating', 'compensation_failed', 'awaiting_approval');

create table audit (
  seq        integer primary key,
  at_us      integer not null,
  namespace  text not null,
  run_id     text not null,
  call_id    text,
  event      text not null,
  from_state text,
  to_state   text not null,
  actor      text not null,
  detail     text
) strict;

create index audit_by_run on audit (namespace, run_id);

create table budgets (
  namespace text not null,
  scope     text not null,
  unit      text not null,
  window    text not null,
  start_us  integer not null,
  cap       integer,
  spent     integer not null check (spent >= 0),
  reserved  integer not null check (reserved >= 0),
  overdraft integer not null check (overdraft >= 0),
  forgotten integer not null default 0,
  primary key (namespace, scope, unit, window, start_us),
  check (spent + reserved <= cap)
) strict, without rowid;

create table limits (
  namespace text not null,
  pattern   text not null,
  unit      text not null,
  window    text not null,
  amount    integer not null,
  hard      integer not null,
  soft      text not null,
  actor     text not null,
  at_us     integer not null,
  primary key (namespace, pattern, unit, window)
) strict, without rowid;

create table controls (
  namespace text not null primary key,
  version   integer not null
) strict, without rowid;

create table usage (
  call_id          text not null primary key,
  namespace        text not null,
  run_id           text not null,
  at_us            integer not null,
  tool             text not null,
  model            text,
  provider         text,
  agent            text,
  cost             integer,
  prices           text,
  input_tokens     integer not null,
  output_tokens    integer not null,
  cached_tokens    integer not null,
  reasoning_tokens integer not null
) strict, without rowid;

create index usage_by_time on usage (namespace, at_us);
create index usage_by_run on usage (namespace, run_id);

create table rates (
  namespace  text not null,
  name       text not null,
  arrival_ns integer not null,
  primary key (namespace, name)
) strict, without rowid;

alter table calls add column reserved text;
alter table calls add column spent text;
create index calls_reserved on calls (namespace) where reserved is not null;

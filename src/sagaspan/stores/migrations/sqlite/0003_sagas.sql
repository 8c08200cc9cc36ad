create table locks (
  namespace text not null,
  name      text not null,
  run_id    text not null,
  call_id   text,
  taken_us  integer not null,
  version   integer not null,
  primary key (namespace, name)
) strict, without rowid;

create index locks_by_run on locks (namespace, run_id);

alter table calls add column locks text;
alter table calls add column empty_safe integer not null default 0;
alter table calls add column expect text;

create table loops (
  namespace  text not null,
  run_id     text not null,
  generation integer not null,
  entries    text not null,
  refusals   integer not null,
  version    integer not null,
  primary key (namespace, run_id)
) strict, without rowid;

create index calls_by_creation on calls (created_us);

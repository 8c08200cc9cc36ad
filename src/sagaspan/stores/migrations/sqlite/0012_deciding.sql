alter table approvals add column shown text not null default '';

create table nonces (
  namespace text not null,
  id        text not null,
  until_us  integer not null,
  primary key (namespace, id)
) strict, without rowid;

create index nonces_over on nonces (until_us);

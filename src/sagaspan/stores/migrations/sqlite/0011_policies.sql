create table freezes (
  namespace text not null,
  scope     text not null,
  reason    text not null,
  actor     text not null,
  at_us     integer not null,
  primary key (namespace, scope)
) strict, without rowid;

alter table calls add column policy text;
alter table calls add column observed text;

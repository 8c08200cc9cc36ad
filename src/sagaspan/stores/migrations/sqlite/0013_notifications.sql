create table hooks (
  namespace text not null,
  name      text not null,
  cursor    integer not null,
  primary key (namespace, name)
) strict, without rowid;

create table deliveries (
  id         text not null primary key,
  namespace  text not null,
  hook       text not null,
  kind       text not null,
  about      text not null,
  payload    text not null,
  attempts   integer not null,
  next_us    integer not null,
  error      text,
  dead       integer not null check (dead in (0, 1)),
  created_us integer not null
) strict;

create index deliveries_due on deliveries (namespace, hook, next_us) where dead = 0;
create index deliveries_dead on deliveries (namespace, created_us) where dead = 1;

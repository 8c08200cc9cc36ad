create table owners (
  owner         text primary key,
  renewed_us    integer not null,
  until_us      integer not null,
  until_boot_us integer not null,
  ttl_us        integer not null,
  beats         integer not null
) strict, without rowid;

create index runs_by_state on runs (state, created_us);

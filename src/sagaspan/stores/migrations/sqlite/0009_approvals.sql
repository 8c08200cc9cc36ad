create table approvals (
  id           text not null primary key,
  namespace    text not null,
  run_id       text not null,
  scope        text not null,
  tool         text not null,
  key          text not null,
  call_id      text not null,
  subject      text not null,
  digest       text not null,
  policy       text not null,
  facts        text not null,
  requested_by text not null,
  edits        text,
  state        text not null check (state in ('pending', 'approved', 'denied', 'expired', 'superseded', 'consumed')),
  votes        text not null,
  reason       text,
  version      integer not null,
  created_us   integer not null,
  expires_us   integer not null,
  ended_us     integer
) strict;

create unique index approvals_open on approvals (namespace, scope, tool, key) where state in ('pending', 'approved');
create index approvals_by_subject on approvals (namespace, scope, tool, created_us);
create index approvals_by_run on approvals (namespace, run_id);
create index approvals_waiting on approvals (created_us) where state = 'pending';

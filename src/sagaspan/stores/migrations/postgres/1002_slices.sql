-- A budget that many count in at once is cut into slices (see _postgres_slices.sql): ``slices`` of them share ``sliced``.
alter table budgets
  add column slices bigint not null default 0,
  add column sliced bigint not null default 0,
  add check (spent + reserved + sliced <= cap);

create table slices (
  namespace text collate "C" not null,
  scope     text collate "C" not null,
  unit      text collate "C" not null,
  "window"  text collate "C" not null,
  start_us  bigint not null,
  slice     bigint not null,
  room      bigint not null,
  spent     bigint not null check (spent >= 0),
  reserved  bigint not null,
  primary key (namespace, scope, unit, "window", start_us, slice),
  check (spent + reserved <= room)
) with (fillfactor = 10);

-- The budgets as if there were no slices: what everybody reads.
create view accounts as
select b.namespace, b.scope, b.unit, b."window", b.start_us, b.cap, b.spent + coalesce(s.spent, 0) as spent,
       b.reserved + coalesce(s.reserved, 0) as reserved, b.overdraft, b.forgotten
  from budgets b
       left join lateral (
         select sum(s.spent)::bigint as spent, sum(s.reserved)::bigint as reserved
           from slices s
          where b.slices > 0 and s.namespace = b.namespace and s.scope = b.scope and s.unit = b.unit
            and s."window" = b."window" and s.start_us = b.start_us) s on true;

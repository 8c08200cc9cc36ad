-- Here the number of a row is not in every index, and an index is of all rows.
drop index audit_by_run on audit;

create index audit_by_run on audit (namespace, run_id, seq);

drop index calls_by_run on calls;

create index calls_by_run on calls (namespace, run_id, claim_seq);

drop index audit_late on audit;

create index audit_late on audit (from_state, event);

drop index calls_reserved on calls;

create index calls_reserved on calls (namespace, reserved(1));

-- Who writes to a run locks one of these rows by a hash of its name; all share the first, but for who must know that
-- nobody is on the way to commit.
create table places (n bigint not null primary key) engine = InnoDB;

insert into places (n)
select a.n + 16 * b.n + 256 * c.n
  from (select 0 as n union select 1 union select 2 union select 3 union select 4 union select 5 union select 6
        union select 7 union select 8 union select 9 union select 10 union select 11 union select 12 union select 13
        union select 14 union select 15) as a
  join (select 0 as n union select 1 union select 2 union select 3 union select 4 union select 5 union select 6
        union select 7 union select 8 union select 9 union select 10 union select 11 union select 12 union select 13
        union select 14 union select 15) as b
  join (select 0 as n union select 1 union select 2 union select 3 union select 4 union select 5 union select 6
        union select 7 union select 8 union select 9 union select 10 union select 11 union select 12 union select 13
        union select 14 union select 15) as c;

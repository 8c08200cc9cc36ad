-- SQLite has the number of a row in every index; here it must be said, or the head of a chain is looked for.
drop index audit_by_run;

create index audit_by_run on audit (namespace, run_id, seq);

drop index calls_by_run;

create index calls_by_run on calls (namespace, run_id, claim_seq);

-- Rows that every call writes anew: room beside them keeps them on their page, and their indexes as they are.
alter table budgets set (fillfactor = 50);

alter table owners set (fillfactor = 50);

alter table runs set (fillfactor = 80);

alter table calls set (fillfactor = 80);

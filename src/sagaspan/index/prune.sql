-- What is forgotten of the index: whole traces that ended before a moment, with what is counted of them.

-- name: choose
-- Not those of a run that went on later, or that goes on: what is counted of a run is counted of all its traces.
create or replace temp table old_traces as
select trace_id
from totals.traces
where coalesce(ended, started) < $$before
    and trace_id not in (
        select trace_id
        from spans
        where trace_id is not null
            and run_id in (
                select run_id from totals.runs where coalesce(ended, started) >= $$before
                union all
                select run_id from ledger.runs where state in ('running', 'paused', 'held', 'compensating')
            )
    );

-- name: count
select count(*) from spans where trace_id in (from old_traces);

-- name: spans
delete from spans
where trace_id in (from old_traces) or (trace_id is null and coalesce(end_time, start_time) < $$before);

-- name: traces
delete from totals.traces where trace_id in (from old_traces);

-- name: runs
delete from totals.runs where run_id not in (select run_id from spans where run_id is not null);

-- name: damaged
delete from damaged_lines where found < $$before;

-- name: files
-- How far a file was read is known as long as it is there: without that it would be read again.
delete from files where (device, inode) not in (select unnest($$devices), unnest($$inodes));

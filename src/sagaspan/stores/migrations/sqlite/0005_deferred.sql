alter table calls add column scheduled_seq integer;

alter table runs add column completing integer not null default 0;

alter table runs add column orphans text;

drop index calls_open;

create index calls_open on calls (state, seq)
  where state in ('running', 'unknown', 'needs_human', 'compensating', 'compensation_failed', 'awaiting_approval',
                  'scheduled');

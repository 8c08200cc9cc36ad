create index audit_late on audit (seq) where event = 'succeed' and from_state = 'failed';

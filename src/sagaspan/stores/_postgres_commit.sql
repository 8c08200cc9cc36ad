-- All changes of one commit, in their order, or none of them: one statement, one round trip.
--
-- Who writes to a run holds its lock until the end, and who only relies on it (an outer run, the controls) shares it;
-- all are taken first and in one order, so that nobody waits in a circle and every later statement sees what others
-- committed before. Before those comes the one of what is nested in what: who opens a nested run shares it, a barrier
-- holds it, so it knows all runs of its saga and shares their locks, too. Everybody shares the lock of the feed, for who
-- reads the audit trail by number must know when all numbers up to one are there.
create function {name} (request jsonb, synced boolean) returns jsonb language plpgsql as $body$
#variable_conflict use_column
declare
  v_change jsonb; v_record jsonb; v_row jsonb; v_mark jsonb;
  v_place integer := -1; v_key bigint; v_exclusive boolean;
  v_seq bigint; v_number bigint; v_hash bytea;
  v_saved bigint; v_used bigint; v_all_used bigint[] := '{{}}';
  v_version bigint; v_locks jsonb := request->'locks'; v_budget budgets;
  v_slices bigint := coalesce((request->>'slices')::bigint, 0); v_hot boolean := request ? 'hot'; v_try integer := 0;
begin
  if not synced then
    perform set_config('synchronous_commit', 'off', true);
  end if;
  perform pg_advisory_xact_lock_shared({feed});
  if request ? 'takes' then  -- of runs whose holder is gone: whoever has the lock already is at it (SKIP LOCKED)
    for v_key, v_place in select {key}, (l->>2)::integer from jsonb_array_elements(request->'takes') l loop
      if not pg_try_advisory_xact_lock(v_key) then
        return jsonb_build_object('refused', v_place);
      end if;
    end loop;
    v_place := -1;
  end if;
  if request ? 'nests' then
    for v_key in select {nesting} from jsonb_array_elements_text(request->'nests') n order by 1 loop
      perform pg_advisory_xact_lock_shared(v_key);
    end loop;
  end if;
  if request ? 'sagas' then
    for v_key in select distinct {nesting_of_saga} from jsonb_array_elements(request->'sagas') s order by 1 loop
      perform pg_advisory_xact_lock(v_key);
    end loop;
    select v_locks || jsonb_agg(jsonb_build_array(s->>0, run.id, false)) into v_locks
      from jsonb_array_elements(request->'sagas') s cross join lateral {runs_of_saga} run;
  end if;
  for v_key, v_exclusive in
    select {key}, bool_or((l->>2)::boolean) from jsonb_array_elements(v_locks) l group by 1 order by 1
  loop
    if v_exclusive then
      perform pg_advisory_xact_lock(v_key);
    else
      perform pg_advisory_xact_lock_shared(v_key);
    end if;
  end loop;

  loop  -- again only where slices of a budget do not do
    begin
      for v_change in
        select value from jsonb_array_elements(request->'changes' || coalesce(request->'budgets', '[]'))
      loop
        v_place := v_place + 1;
        v_record := v_change->'record';
        v_saved := 1;

        -- The audit row first: its number becomes the call's place in the claim order.
        for v_row in select value from jsonb_array_elements(v_change->'audit') loop
          {append}
        end loop;

        case v_change->>'kind'
        when 'call' then
          if v_change ? 'fence' then
            perform 1 from runs
              where namespace = v_record->>'namespace' and id = v_change->'fence'->>0
                and epoch = (v_change->'fence'->>1)::bigint and state = 'running'
                and coalesce((select c.version from controls c where c.namespace = runs.namespace), 0)
                    = (v_change->'fence'->>2)::bigint;
            get diagnostics v_saved = row_count;
          end if;
          v_version := (v_change->>'version')::bigint;
          if v_saved = 1 and v_version = 0 then
            insert into calls ({calls})
            select {call_values} from jsonb_populate_record(null::calls, v_record) r
                on conflict do nothing;
            get diagnostics v_saved = row_count;
          elsif v_saved = 1 then
            update calls c
               set {call_sets}, claim_seq = case when v_change ? 'fence' then v_seq else c.claim_seq end
              from jsonb_populate_record(null::calls, v_record) r
             where c.id = v_record->>'id' and c.version = v_version;
            get diagnostics v_saved = row_count;
          end if;

        when 'run' then
          if v_change ? 'outer' then
            perform 1 from runs
              where namespace = v_record->>'namespace' and id = v_record->>'parent_id'
                and epoch = (v_change->>'outer')::bigint and state = 'running';
            get diagnostics v_saved = row_count;
          end if;
          v_version := (v_change->>'version')::bigint;
          if v_saved = 1 and v_version = 0 then
            insert into runs ({runs}) select {run_values} from jsonb_populate_record(null::runs, v_record) r
                on conflict do nothing;
            get diagnostics v_saved = row_count;
          elsif v_saved = 1 then
            update runs c set {run_sets}
              from jsonb_populate_record(null::runs, v_record) r
             where c.namespace = v_record->>'namespace' and c.id = v_record->>'id' and c.version = v_version;
            get diagnostics v_saved = row_count;
          end if;

        when 'approval' then
          v_version := (v_change->>'version')::bigint;
          if v_version = 0 then
            insert into approvals ({approvals})
            select {approval_values} from jsonb_populate_record(null::approvals, v_record) r
                on conflict do nothing;
          else
            update approvals c set {approval_sets}
              from jsonb_populate_record(null::approvals, v_record) r
             where c.id = v_record->>'id' and c.version = v_version
               and (not v_change ? 'consumes'
                    or (c.state = 'approved' and c.digest = v_record->>'digest' and c.policy = v_record->>'policy'
                        and c.expires_us > (v_change->>'consumes')::bigint));
          end if;
          get diagnostics v_saved = row_count;

        when 'lock' then
          v_version := (v_change->>'version')::bigint;
          if v_version = 0 then
            insert into locks ({locks}) select {lock_values} from jsonb_populate_record(null::locks, v_record) r
                on conflict do nothing;
          else
            update locks c set {lock_sets}
              from jsonb_populate_record(null::locks, v_record) r
             where c.namespace = v_record->>'namespace' and c.name = v_record->>'name' and c.version = v_version;
          end if;
          get diagnostics v_saved = row_count;

        when 'reserve' then
          if v_slices > 0 or v_try > 0 then
            v_saved := {name}_reserve(
              jsonb_populate_record(null::budgets, v_record), (v_change->>'amount')::bigint,
              array(select jsonb_array_elements_text(v_change->'soft')::bigint), v_slices, v_hot, v_try)::integer;
          else
            -- What was overdrawn counts as spent as soon as it fits.
            insert into budgets as b (namespace, scope, unit, "window", start_us, cap, spent, reserved, overdraft)
            select r.namespace, r.scope, r.unit, r."window", r.start_us, r.cap, 0, (v_change->>'amount')::bigint, 0
              from jsonb_populate_record(null::budgets, v_record) r
             where r.cap is null or (v_change->>'amount')::bigint <= r.cap
                on conflict (namespace, scope, unit, "window", start_us) do update
               set cap = excluded.cap, spent = b.spent + b.overdraft, reserved = b.reserved + excluded.reserved,
                   overdraft = 0
             where b.slices = 0
               and (excluded.cap is null or b.spent + b.overdraft + b.reserved + excluded.reserved <= excluded.cap);
            get diagnostics v_saved = row_count;
            if v_saved = 0 then
              perform {name}_anew(jsonb_populate_record(null::budgets, v_record), 1);
            end if;
          end if;

        when 'spend' then
          v_used := null;
          if v_slices > 0 or v_try > 0 then
            v_used := {name}_spend(
              jsonb_populate_record(null::budgets, v_record), (v_change->>'reserved')::bigint,
              (v_change->>'spent')::bigint,
              array(select (m->>'at')::bigint from jsonb_array_elements(v_change->'marks') m), false, v_try);
          else
            update budgets b
               set reserved = b.reserved - m.held,
                   spent = b.spent + least(m.spends, coalesce(b.cap - b.spent - b.reserved + m.held, m.spends)),
                   overdraft = b.overdraft + m.spends
                             - least(m.spends, coalesce(b.cap - b.spent - b.reserved + m.held, m.spends))
              from jsonb_populate_record(null::budgets, v_record) r,
                   (select (v_change->>'reserved')::bigint as held, (v_change->>'spent')::bigint as spends) m
             where {budget_of} and b.slices = 0
            returning b.spent + b.overdraft into v_used;
            if not found then
              perform {name}_anew(jsonb_populate_record(null::budgets, v_record), 0);
            end if;
          end if;
          v_used := coalesce(v_used, 0);  -- pruned meanwhile
          v_all_used := v_all_used || v_used;
          for v_mark in select value from jsonb_array_elements(v_change->'marks') loop
            if v_used - (v_change->>'spent')::bigint < (v_mark->>'at')::bigint and (v_mark->>'at')::bigint <= v_used then
              v_row := v_mark->'audit';
              {append}
            end if;
          end loop;

        when 'usage' then
          insert into usage ({usages}) select {usage_values} from jsonb_populate_record(null::usage, v_record) r
              on conflict (call_id) do update set {usage_sets};

        when 'limit' then
          if v_change ? 'removes' then
            delete from limits
             where namespace = v_record->>'namespace' and pattern = v_record->>'pattern' and unit = v_record->>'unit'
               and "window" = v_record->>'window' and at_us = (v_record->>'at_us')::bigint;
            get diagnostics v_saved = row_count;
          else
            insert into limits ({limits}) select {limit_values} from jsonb_populate_record(null::limits, v_record) r
                on conflict (namespace, pattern, unit, "window") do update set {limit_sets};
          end if;
          -- The next claim finds what holds; until then the accounts must not show what held before.
          for v_budget in
            select * from budgets b
             where b.namespace = v_record->>'namespace' and b.unit = v_record->>'unit'
               and b."window" = v_record->>'window' and b.slices > 0
               and (b.scope = v_record->>'pattern' or b.scope ~ (v_change->>'scopes'))
             order by b.scope
          loop
            perform {name}_whole(v_budget, null);
          end loop;
          update budgets set cap = null
           where namespace = v_record->>'namespace' and unit = v_record->>'unit' and "window" = v_record->>'window'
             and (scope = v_record->>'pattern' or scope ~ (v_change->>'scopes')) and cap is not null;
          insert into controls as c (namespace, version) values (v_record->>'namespace', 1)
              on conflict (namespace) do update set version = c.version + 1;

        when 'carry' then
          perform {name}_whole(jsonb_populate_record(null::budgets, v_record), null);
          insert into budgets as b (namespace, scope, unit, "window", start_us, cap, spent, reserved, overdraft, forgotten)
          select r.namespace, r.scope, r.unit, r."window", r.start_us, null, m.used, 0, 0, m.used
            from jsonb_populate_record(null::budgets, v_record) r, (select (v_change->>'used')::bigint as used) m
              on conflict (namespace, scope, unit, "window", start_us) do update
             set cap = null,
                 spent = b.spent + greatest(excluded.spent - b.spent - b.overdraft
                                            - (v_change->>'counts')::bigint * b.reserved, 0),
                 forgotten = b.forgotten + greatest(excluded.spent - b.spent - b.overdraft
                                                    - (v_change->>'counts')::bigint * b.reserved, 0);

        when 'freeze' then
          if v_change ? 'lifts' then
            delete from freezes
             where namespace = v_record->>'namespace' and scope = v_record->>'scope'
               and at_us = (v_record->>'at_us')::bigint;
          else
            insert into freezes ({freezes}) select {freeze_values} from jsonb_populate_record(null::freezes, v_record) r
                on conflict do nothing;
          end if;
          get diagnostics v_saved = row_count;
          insert into controls as c (namespace, version) values (v_record->>'namespace', 1)
              on conflict (namespace) do update set version = c.version + 1;

        when 'loop' then
          v_version := (v_change->>'version')::bigint;
          insert into loops as l ({loops}) select {loop_values} from jsonb_populate_record(null::loops, v_record) r
           where v_version = 0
              or exists (select 1 from loops where namespace = v_record->>'namespace' and run_id = v_record->>'run_id')
              on conflict (namespace, run_id) do update set {loop_sets} where l.version = v_version;
          get diagnostics v_saved = row_count;

        when 'rate' then
          -- As sagaspan.rate.rate_step: a kept time is between now and a full bucket from now.
          insert into rates as c (namespace, name, arrival_ns)
          select v_record->>'namespace', v_record->>'name', m.now + m.interval
            from (select (v_change->>'now')::bigint as now, (v_change->>'interval')::bigint as interval) m
              on conflict (namespace, name) do update
             set arrival_ns = least(greatest(c.arrival_ns, (v_change->>'now')::bigint),
                                    (v_change->>'now')::bigint + (v_change->>'full')::bigint)
                            + (v_change->>'interval')::bigint
           where least(greatest(c.arrival_ns, (v_change->>'now')::bigint),
                       (v_change->>'now')::bigint + (v_change->>'full')::bigint) + (v_change->>'interval')::bigint
                 <= (v_change->>'now')::bigint + (v_change->>'full')::bigint;
          get diagnostics v_saved = row_count;

        when 'nonce' then
          delete from nonces where until_us <= (v_change->>'now')::bigint;
          insert into nonces (namespace, id, until_us)
          values (v_record->>'namespace', v_record->>'id', (v_record->>'until_us')::bigint)
              on conflict do nothing;
          get diagnostics v_saved = row_count;

        when 'hook' then
          if v_change ? 'expected' then
            update hooks set cursor = (v_record->>'cursor')::bigint
             where namespace = v_record->>'namespace' and name = v_record->>'name'
               and cursor = (v_change->>'expected')::bigint;
          else
            insert into hooks (namespace, name, cursor)
            values (v_record->>'namespace', v_record->>'name', (v_record->>'cursor')::bigint)
                on conflict do nothing;
          end if;
          get diagnostics v_saved = row_count;

        when 'delivery' then
          if v_change ? 'done' then
            delete from deliveries where id = v_record->>'id';
            get diagnostics v_saved = row_count;
          elsif v_change ? 'expected' then
            update deliveries c set attempts = r.attempts, next_us = r.next_us, error = r.error, dead = r.dead
              from jsonb_populate_record(null::deliveries, v_record) r
             where c.id = v_record->>'id' and c.attempts = (v_change->>'expected')::bigint;
            get diagnostics v_saved = row_count;
          else
            insert into deliveries ({deliveries})
            select {delivery_values} from jsonb_populate_record(null::deliveries, v_record) r
                on conflict do nothing;
          end if;

        when 'barrier' then
          perform 1 from calls
            where namespace = v_record->>'namespace' and run_id in {saga} and phase = 'forward'
              and state in ('running', 'unknown', 'needs_human', 'compensating')
              and (declared_write = 1 or compensate is not null)
              and not v_change->'but' ? id;
          v_saved := case when found then 0 else 1 end;

        when 'note' then
          null;
        end case;

        if v_saved = 0 then
          raise exception using errcode = 'SG001', message = 'refused';
        end if;
      end loop;
      return jsonb_build_object('used', to_jsonb(v_all_used));
    exception
      when sqlstate 'SG001' then
        return jsonb_build_object('refused', v_place);
      when sqlstate 'SG003' or sqlstate 'SG004' then
        v_try := v_try + right(sqlstate, 1)::integer - 2;
        v_place := -1;
        v_all_used := '{{}}';
    end;
  end loop;
end
$body$

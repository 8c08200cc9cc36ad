-- Several requests in one transaction, each saved or refused for itself; null if they do not fit together, and then
-- nothing is saved. What one alone locks at its beginning is locked for all of them first, in the same order, and their
-- budgets are booked last, each row once: so nobody waits in a circle, and a row that many count in is held for no
-- longer than one call would hold it.
create function {name}_all (requests jsonb, synced boolean) returns jsonb language plpgsql as $body$
#variable_conflict use_column
declare
  v_key bigint; v_exclusive boolean; v_request jsonb; v_answers jsonb := '[]';
  v_each record; v_base bigint; v_used bigint; v_mark jsonb; v_row jsonb;
  v_seq bigint; v_number bigint; v_hash bytea; v_saved jsonb;
  v_slices bigint := coalesce((requests->0->>'slices')::bigint, 0); v_hot boolean := requests->0 ? 'hot';
  v_try integer := 0;
begin
  perform pg_advisory_xact_lock_shared({feed});
  for v_key, v_exclusive in
    select {key}, bool_or((l->>2)::boolean)
      from jsonb_array_elements(requests) q cross join lateral jsonb_array_elements(q->'locks') l group by 1 order by 1
  loop
    if v_exclusive then
      perform pg_advisory_xact_lock(v_key);
    else
      perform pg_advisory_xact_lock_shared(v_key);
    end if;
  end loop;

  for v_request in select value from jsonb_array_elements(requests) loop
    v_answers := v_answers || {name}(v_request - 'budgets', synced);
  end loop;
  v_saved := v_answers;

  loop  -- again only where slices of a budget do not do
    begin
    for v_each in
      select r.namespace, r.scope, r.unit, r."window", r.start_us, min(r.cap) as cap,
             sum((c->>'amount')::bigint)::bigint as amount,
             count(r.cap) not in (0, count(*)) or min(r.cap) <> max(r.cap) as differ,
             (array_agg(c->'soft'))[1] as soft
        from jsonb_array_elements(requests) with ordinality q (request, place)
             cross join lateral jsonb_array_elements(q.request->'budgets') c
             cross join lateral jsonb_populate_record(null::budgets, c->'record') r
       where c->>'kind' = 'reserve' and not (v_answers->(q.place::int - 1)) ? 'refused'
       group by 1, 2, 3, 4, 5 order by 1, 2, 3, 4, 5
    loop
      if v_each.differ or v_each.amount > v_each.cap then
        raise exception using errcode = 'SG002', message = 'each for itself';
      end if;
      if v_slices > 0 then
        if not {name}_reserve(
             jsonb_populate_record(null::budgets, to_jsonb(v_each)), v_each.amount,
             array(select jsonb_array_elements_text(v_each.soft)::bigint), v_slices, v_hot, v_try)
        then
          raise exception using errcode = 'SG002', message = 'each for itself';
        end if;
        continue;
      end if;
      insert into budgets as b (namespace, scope, unit, "window", start_us, cap, spent, reserved, overdraft)
      values (v_each.namespace, v_each.scope, v_each.unit, v_each."window", v_each.start_us, v_each.cap, 0,
              v_each.amount, 0)
          on conflict (namespace, scope, unit, "window", start_us) do update
         set cap = excluded.cap, spent = b.spent + b.overdraft, reserved = b.reserved + excluded.reserved, overdraft = 0
       where b.slices = 0
         and (excluded.cap is null or b.spent + b.overdraft + b.reserved + excluded.reserved <= excluded.cap);
      if not found then
        raise exception using errcode = 'SG002', message = 'each for itself';
      end if;
    end loop;

    for v_each in
      select q.place::int - 1 as place, r.namespace, r.scope, r.unit, r."window", r.start_us, c.change->'marks' as marks,
             (c.change->>'spent')::bigint as spent, row_number() over so_far as nth,
             sum((c.change->>'spent')::bigint) over so_far::bigint as upto,
             sum((c.change->>'spent')::bigint) over all_of::bigint as spends,
             sum((c.change->>'reserved')::bigint) over all_of::bigint as held
        from jsonb_array_elements(requests) with ordinality q (request, place)
             cross join lateral jsonb_array_elements(q.request->'budgets') with ordinality c (change, at)
             cross join lateral jsonb_populate_record(null::budgets, c.change->'record') r
       where c.change->>'kind' = 'spend' and not (v_answers->(q.place::int - 1)) ? 'refused'
      window all_of as (partition by r.namespace, r.scope, r.unit, r."window", r.start_us),
             so_far as (all_of order by q.place, c.at rows unbounded preceding)
       order by 2, 3, 4, 5, 6, q.place, c.at
    loop
      if v_each.nth = 1 and v_slices > 0 then
        v_base := {name}_spend(
          jsonb_populate_record(null::budgets, to_jsonb(v_each)), v_each.held, v_each.spends,
          array(select (m->>'at')::bigint
                  from jsonb_array_elements(requests) q cross join lateral jsonb_array_elements(q->'budgets') c
                       cross join lateral jsonb_array_elements(c->'marks') m
                 where c->'record'->>'scope' = v_each.scope and c->'record'->>'unit' = v_each.unit
                   and c->'record'->>'window' = v_each."window"),
          true, v_try) - v_each.spends;
      elsif v_each.nth = 1 then
        update budgets b set reserved = b.reserved - v_each.held, spent = b.spent + v_each.spends
         where b.namespace = v_each.namespace and b.scope = v_each.scope and b.unit = v_each.unit
           and b."window" = v_each."window" and b.start_us = v_each.start_us and b.slices = 0
           and (b.cap is null or b.spent + b.reserved - v_each.held + v_each.spends <= b.cap)
        returning b.spent + b.overdraft - v_each.spends into v_base;
      end if;
      if v_base is null then  -- pruned meanwhile, or overdrawn
        raise exception using errcode = 'SG002', message = 'each for itself';
      end if;
      v_used := v_base + v_each.upto;
      v_answers := jsonb_set(v_answers, array[v_each.place::text, 'used'],
                             v_answers->v_each.place->'used' || to_jsonb(v_used));
      for v_mark in select value from jsonb_array_elements(v_each.marks) loop
        if v_used - v_each.spent < (v_mark->>'at')::bigint and (v_mark->>'at')::bigint <= v_used then
          v_row := v_mark->'audit';
          {append}
        end if;
      end loop;
    end loop;
    return v_answers;
    exception when sqlstate 'SG003' or sqlstate 'SG004' then
      v_try := v_try + right(sqlstate, 1)::integer - 2;
      v_answers := v_saved;
    end;
  end loop;
exception when sqlstate 'SG002' then
  return null;
end
$body$

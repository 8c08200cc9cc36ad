-- Slices of a budget that many count in at once: each is a row with room of its own, taken from the budget's, so who
-- holds one does not wait for who holds another.
--
-- A slice is nobody's: whoever comes takes one that nobody holds at the moment (SKIP LOCKED). So there is none to be
-- given back by who ends or dies, and a call may be settled in another than it was claimed in: what counts is the sum.
-- ``spent + reserved <= room`` in every slice and ``spent + reserved + sliced <= cap`` in the budget, whose ``sliced``
-- is the sum of their rooms: so nothing passes the cap, whoever commits when.
--
-- Who uses a slice shares the lock of the budget until the end. Who finds no room in any, or has to know the sum
-- (another cap, a soft limit that may be crossed, an overdraft), begins anew (SG003) and holds that lock: then nobody
-- else is on the way, all slices are taken back, and the budget is as if there were none. Who has waited for the row
-- while it was cut lets go of it and begins anew, too (SG004), or all that wait for it would still take turns. Within a
-- budget its lock comes first, then its row, then slices; budgets are in the order of their names.

-- Book ``p_more`` (reserved) and ``p_spends`` in a slice with room for both; false if there is none.
create function {name}_slice (r budgets, p_more bigint, p_spends bigint) returns boolean language plpgsql as $body$
#variable_conflict use_column
declare
  v_slice bigint;
begin
  select s.slice into v_slice from slices s
   where {slice_of} and s.room - s.spent - s.reserved >= p_more + p_spends
   order by s.room - s.spent - s.reserved desc limit 1 for update skip locked;
  if not found then  -- all that have room are held: one of them is waited for, not all of them at the same
    select s.slice into v_slice from slices s
     where {slice_of} and s.room - s.spent - s.reserved >= p_more + p_spends
     order by s.slice # pg_backend_pid()::bigint limit 1 for update;
    if not found then
      return false;
    end if;
  end if;
  update slices s set spent = s.spent + p_spends, reserved = s.reserved + p_more where {slice_of} and s.slice = v_slice;
  return true;
end
$body$;

-- Begin anew if a budget has so many slices: only those that know of them may count in it. None is enough for who holds
-- neither its lock nor its row: it had some when it was passed over, and they may have been taken back since.
create function {name}_anew (r budgets, p_slices bigint) returns void language plpgsql as $body$
begin
  perform 1 from budgets b where {budget_of} and b.slices >= p_slices;
  if found then
    raise exception using errcode = 'SG004', message = 'has slices';
  end if;
end
$body$;

-- Take all slices of a budget back, alone; nothing if it has none. ``p_most``: begin anew if one of the same cap has so
-- much room by now.
create function {name}_whole (r budgets, p_most bigint) returns void language plpgsql as $body$
#variable_conflict use_column
begin
  perform pg_advisory_xact_lock({budget_lock});
  perform 1 from budgets b where {budget_of} and b.slices > 0 for update;
  if not found then
    return;
  end if;
  perform 1 from slices s, budgets b
    where {slice_of} and {budget_of} and b.cap is not distinct from r.cap and s.room - s.spent - s.reserved >= p_most;
  if found then
    raise exception using errcode = 'SG003', message = 'in a slice';
  end if;
  with gone as (delete from slices s where {slice_of} returning s.spent, s.reserved)
  update budgets b
     set spent = b.spent + g.spent, reserved = b.reserved + g.reserved, slices = 0, sliced = 0
    from (select coalesce(sum(spent), 0)::bigint as spent, coalesce(sum(reserved), 0)::bigint as reserved from gone) g
   where {budget_of};
end
$body$;

-- Cut what is left of a budget, of which something was just reserved, up to the next of ``p_soft``, so that none of them is passed unseen; not if there would
-- be room for less than four such calls in each of two.
create function {name}_cut (r budgets, p_amount bigint, p_soft bigint[], p_slices bigint)
returns void language plpgsql as $body$
#variable_conflict use_column
declare
  v_room bigint; v_slices bigint;
begin
  select least(coalesce(b.cap, {no_cap}), (select min(soft) - 1 from unnest(p_soft) soft where soft > b.spent))
         - b.spent - b.reserved
    into v_room from budgets b where {budget_of};
  v_slices := least(p_slices, v_room / (4 * greatest(p_amount, 1)));
  if v_slices >= 2 then
    v_room := v_room / v_slices;
    insert into slices (namespace, scope, unit, "window", start_us, slice, room, spent, reserved)
    select r.namespace, r.scope, r.unit, r."window", r.start_us, slice, v_room, 0, 0
      from generate_series(1, v_slices) slice;
    update budgets b set slices = v_slices, sliced = v_slices * v_room where {budget_of};
  end if;
end
$body$;

-- Reserve ``p_amount``, in a slice where there are any; false if it does not fit. The row is cut if somebody else holds
-- it (``p_hot``: anyway). ``p_try``: even with a slice, odd alone; 1 only if no slice has room by then.
create function {name}_reserve (
  r budgets, p_amount bigint, p_soft bigint[], p_slices bigint, p_hot boolean, p_try integer
) returns boolean language plpgsql as $body$
#variable_conflict use_column
declare
  v_slices bigint; v_same boolean; v_hot boolean := p_hot or p_try % 2 = 1;
begin
  if p_try % 2 = 0 then
    perform pg_advisory_xact_lock_shared({budget_lock});
  else
    perform {name}_whole(r, case when p_try = 1 then p_amount end);
  end if;
  select b.slices, b.cap is not distinct from r.cap into v_slices, v_same from budgets b where {budget_of};
  if v_slices > 0 then
    if v_same and {name}_slice(r, p_amount, 0) then
      return true;
    end if;
    raise exception using errcode = 'SG003', message = 'all slices';
  end if;
  if not v_hot and v_slices = 0 then
    perform 1 from budgets b where {budget_of} for update skip locked;
    v_hot := not found;
  end if;
  insert into budgets as b (namespace, scope, unit, "window", start_us, cap, spent, reserved, overdraft)
  select r.namespace, r.scope, r.unit, r."window", r.start_us, r.cap, 0, p_amount, 0
   where r.cap is null or p_amount <= r.cap
      on conflict (namespace, scope, unit, "window", start_us) do update
     set cap = excluded.cap, spent = b.spent + b.overdraft, reserved = b.reserved + excluded.reserved, overdraft = 0
   where b.slices = 0
     and (excluded.cap is null or b.spent + b.overdraft + b.reserved + excluded.reserved <= excluded.cap);
  if found then
    if v_hot and p_slices > 0 then
      perform {name}_cut(r, p_amount, p_soft, p_slices);
    end if;
    return true;
  end if;
  perform {name}_anew(r, 1);
  return false;
end
$body$;

-- Settle: what is used of the budget from then on, null if it is gone. ``p_marks``: amounts that must not be passed
-- unseen. ``p_fits``: what would be overdrawn is left to each (SG002).
create function {name}_spend (
  r budgets, p_held bigint, p_spends bigint, p_marks bigint[], p_fits boolean, p_try integer
) returns bigint language plpgsql as $body$
#variable_conflict use_column
declare
  v_slices bigint; v_used bigint; v_most bigint;
begin
  if p_try % 2 = 0 then
    perform pg_advisory_xact_lock_shared({budget_lock});
  else
    perform {name}_whole(r, null);
  end if;
  select b.slices, b.spent + b.overdraft, b.spent + b.reserved + b.sliced into v_slices, v_used, v_most
    from budgets b where {budget_of};
  if not found then
    return null;
  end if;
  if v_slices > 0 then
    perform 1 from unnest(p_marks) mark where v_used < mark and mark <= v_most;
    if found or not {name}_slice(r, - p_held, p_spends) then
      raise exception using errcode = 'SG003', message = 'all slices';
    end if;
    return (select v_used + sum(s.spent)::bigint from slices s where {slice_of});
  end if;
  update budgets b
     set reserved = b.reserved - p_held,
         spent = b.spent + least(p_spends, coalesce(b.cap - b.spent - b.reserved + p_held, p_spends)),
         overdraft = b.overdraft + p_spends
                   - least(p_spends, coalesce(b.cap - b.spent - b.reserved + p_held, p_spends))
   where {budget_of} and b.slices = 0
     and (not p_fits or b.cap is null or b.spent + b.reserved - p_held + p_spends <= b.cap)
  returning b.spent + b.overdraft into v_used;
  if not found then
    perform {name}_anew(r, 1);
    if p_fits then
      raise exception using errcode = 'SG002', message = 'each for itself';
    end if;
    return null;
  end if;
  return v_used;
end
$body$

"""The making of a run: who it is for and what it may use, and what it takes from the run around it."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any, Literal

from sagaspan import _owner as owner
from sagaspan import codecs
from sagaspan._checks import check_choice, check_flag, check_mapping, check_name, check_seconds
from sagaspan._clock import now_us
from sagaspan._context import current_run
from sagaspan._engine import Engine
from sagaspan._run import Run
from sagaspan.budget import Budgets, budgets_of
from sagaspan.exceptions import ConfigurationError
from sagaspan.keys import fingerprint
from sagaspan.ledger.holding import merged
from sagaspan.ledger.records import RunRecord, RunState

OnInterrupt = Literal["hold", "compensate"]
Orphans = Literal["warn", "compensate"]


def made_run(
    engine: Engine,
    name: str,
    id: str | None,  # noqa: A002 - the contract's word
    *,
    input: Any,  # noqa: A002 - the contract's word
    user: str | None,
    tenant: str | None,
    agent: str | None,
    conversation: str | None,
    budget: Budgets | None,
    tags: Mapping[str, Any] | None,
    on_interrupt: OnInterrupt | None,
    by_default: OnInterrupt | None,
    on_budget: OnInterrupt,
    orphans: Orphans | None,
    wait: float,
    reopen: bool,
    nested: bool,
) -> Run:
    """As ``Guard.run``; ``by_default`` is what its guard says of an interruption."""
    check_choice("on_interrupt", on_interrupt, (None, "hold", "compensate"))
    check_choice("orphans", orphans, (None, "warn", "compensate"))
    check_name("name", name)
    texts = (("id", id), ("user", user), ("tenant", tenant), ("agent", agent), ("conversation", conversation))
    for what, text in texts:
        check_name(what, text, optional=True)
    check_seconds("wait", wait)
    check_flag("reopen", reopen)
    check_flag("nested", nested)
    if tags is not None:
        check_mapping("tags", tags, "{'team': 'blue'}")
    check_choice("on_budget", on_budget, ("hold", "compensate"))
    engine.in_force.look()
    outer = current_run.get() if nested else None
    if outer is not None and outer.engine is not engine:
        outer = None
    if outer is not None:  # who pays for the outer run pays for what is in it, and what is said of it holds here too
        user, tenant = user or outer.record.user, tenant or outer.record.tenant
        agent, conversation = agent or outer.record.agent, conversation or outer.record.conversation
        tags = {**codecs.decode(outer.record.tags), **(tags or {})}
    generated = outer.child_id(name) if outer else f"{name}-{secrets.token_hex(6)}"
    chosen = on_interrupt or by_default or ("hold" if id else "compensate")
    if outer is not None and id is None:
        chosen = on_interrupt or by_default or outer.record.on_interrupt  # type: ignore[assignment] # checked
    _plain("identity", [name, id, user, tenant, agent, conversation])
    now = now_us()
    wanted = RunRecord(
        namespace=engine.namespace,
        id=id or generated,
        name=name,
        parent_id=outer.id if outer else None,
        conversation=conversation,
        user=user,
        tenant=tenant,
        agent=agent,
        tags=_encoded("tags", dict(tags or {})),
        input=None if input is None else _encoded("input", input),
        input_fingerprint=fingerprint(_plain("input", input)),
        state=RunState.RUNNING,
        on_interrupt=chosen,
        owner=owner.this_process(),
        created_us=now,
        started_us=now,
    )
    own = merged(budgets_of(budget, where=f"run {name!r}"), () if outer else engine.budget)
    return Run(
        engine, wanted, wait=wait, reopen=reopen, outer=outer, unnamed=outer is not None and id is None,
        budget=own, on_budget=on_budget,
        undo_orphans=orphans == "compensate" or (orphans is None and outer is not None and outer.undo_orphans),
    )  # fmt: skip


def _plain(what: str, value: Any) -> Any:
    try:
        return codecs.to_json(value, what)
    except codecs.Unencodable as problem:
        raise ConfigurationError(f"the {what} of a run cannot be recorded: {problem}; pass plain data") from problem


def _encoded(what: str, value: Any) -> str:
    return codecs.dump(_plain(what, value))

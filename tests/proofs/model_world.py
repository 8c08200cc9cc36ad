"""The world of the model: tools whose bodies do as they are told, processes that are played, and what really happened.

Everything is the library's own but three things: what is outside (``World``, which knows the truth), the clock, and
the death of processes.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn

from sagaspan import Applied, Call, CallInfo, Guard, NotApplied, Run, Unsure
from sagaspan import _owner as owner
from sagaspan.ledger.leases import release_all_on
from sagaspan.ledger.store import Store
from sagaspan.testing import Crash, FrozenClock
from sagaspan.testing._lives import Life, mortal
from tests.proofs.model_kinds import DEDUPE_SECONDS, LAG_SECONDS, Kind
from tests.proofs.model_truth import Moments

_LOOKS = ("changed", "cannot look")


class Declined(Exception):
    """The tool's own word: it did not happen."""


BUDGETS: Final = {"user:*": "1000 USD", "tool:*": "1000 USD"}
"""Never used up: whatever happens, they are counted as the calls say."""


@dataclass(frozen=True)
class Effect:
    """What happened outside: under which downstream key, by which call, when (monotonic seconds)."""

    tool: str
    n: int
    key: str
    call: str
    at: float


@dataclass
class World:
    """What really happened, known to nobody but the model.

    ``wrong`` is what must never be. ``told`` are the downstream keys of calls of which somebody said what is not so, or
    what may change yet, or permitted one more run: that is the reason of what follows. ``refused`` are those that a
    service refuses because their undo came before them. ``changed`` are calls after which somebody else changed the
    same thing, ``asked`` those that somebody wanted undone alone.
    """

    clock: FrozenClock
    disk: Store
    kinds: dict[str, Kind]
    effects: list[Effect] = field(default_factory=list)
    undone: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    told: set[str] = field(default_factory=set)
    refused: set[str] = field(default_factory=set)
    changed: set[str] = field(default_factory=set)
    asked: set[str] = field(default_factory=set)
    began: float = field(init=False)
    moments: Moments = field(init=False)

    def __post_init__(self) -> None:
        self.began = self.now
        self.moments = Moments(self, self.disk)

    @property
    def now(self) -> float:
        """Seconds of the clock that no process can have wrong."""
        return self.clock.monotonic_us() / 1e6

    def happen(self, kind: Kind, tool: str, n: int, call: Call) -> None:
        """The effect of one body; a service that knows keys does one only once for a while, and no undone one."""
        if call.idempotency_key in self.refused:
            raise Declined
        if kind.dedupes and any(
            effect.key == call.idempotency_key and self.now - effect.at < DEDUPE_SECONDS for effect in self.effects
        ):
            return
        self.effects.append(Effect(tool, n, call.idempotency_key, call.id, self.now))

    def by_key(self, key: str) -> list[Effect]:
        """What happened under a downstream key."""
        return [effect for effect in self.effects if effect.key == key]

    def undo(self, step: CallInfo) -> None:
        """What undoes an effect reaches the service; one that may come before it is remembered there."""
        self.moments.undoes(step.id)
        empty_safe = self.kinds[step.tool].empty_safe
        if not (empty_safe or self.by_key(step.idempotency_key) or step.idempotency_key in self.told):
            self.wrong.append(f"{step.tool} {step.id} was undone and had not happened")
        if step.id in self.changed:
            self.wrong.append(f"{step.tool} {step.id} was undone over what somebody else had changed")
        if empty_safe:
            self.refused.add(step.idempotency_key)
        self.undone.append(step.id)

    def forget(self, keys: set[str]) -> None:
        """Calls are not on record any more: what comes under their keys is new, and nobody knows of what was."""
        self.effects = [effect for effect in self.effects if effect.key not in keys]
        self.refused -= keys


class Mortal(Life):
    """A life that ends after so many more durable points."""

    left: int | None = None

    def _pass(self, point: str) -> None:
        super()._pass(point)
        if self.left is not None:
            self.left -= 1
            if self.left <= 0:
                self._die()

    def die(self) -> NoReturn:
        """Here and now."""
        self._die()


class Process:
    """One process of the application: its own guard, store, context and clock's skew; ``runs`` it is inside of."""

    def __init__(self, world: World, where: str, skew: float) -> None:
        self.world = world
        self.where = where
        self.inside: str | None = None  # the call whose body it is in
        self.runs: list[Run] = []
        self.plan: list[Any] = []
        self.send_plan: list[Any] = []  # of deferred calls, which come later than they are asked for
        self.undo_plan: list[str] = []
        self.life = Mortal()
        self._skew = skew
        self._role = owner.Role(where)
        self._context = contextvars.Context()
        self.store = mortal(world.disk, self.life)
        with self._role.played():
            self.guard = Guard(self.store, budgets=BUDGETS)
            self.tools = {name: self._declare(name, kind) for name, kind in world.kinds.items()}

    @property
    def name(self) -> str:
        """As an owner of records."""
        return self._role.name

    @property
    def busy(self) -> bool:
        """Whether it is in the middle of something."""
        return self._busy > 0

    _busy = 0

    def do(self, action: Callable[..., Any], *arguments: Any) -> Any:
        """Let it do something; returns what that returns, or the error it raised. A dead one does nothing any more."""
        self._busy += 1
        try:
            with self._role.played(), self.world.clock.skewed(self._skew):
                return self._context.run(action, *arguments)
        except (Exception, asyncio.CancelledError, Crash) as error:
            return error
        finally:
            self._busy -= 1
            if self.life.dead:
                self.end()

    def end(self) -> None:
        """It is dead, or has ended."""
        self.life.dead = True
        self._role.end()
        release_all_on(self.store)

    # -- the tools ------------------------------------------------------------------------------------------------

    def _declare(self, name: str, kind: Kind) -> Callable[..., Any]:
        fields: dict[str, Any] = {"effect": kind.effect, "critical": kind.critical, "cost": "1 USD"}
        if kind.undoable:
            fields |= {"compensate": self._undo, "empty_safe": kind.empty_safe}
        if kind.expects:
            fields["expect"] = self._expect
        if kind.locks:
            fields["lock"] = lambda n: f"l{n}"
        if kind.effect == "irreversible":
            fields["repeat"] = "dedupe"  # nobody is asked in the model
        if kind.keyed:
            fields["key"] = lambda n: f"k{n}"
        if kind.probe:
            fields |= {"probe": self._probe(name, kind), "settle": LAG_SECONDS if kind.probe == "lagging" else 0.0}
        if kind.dedupes:
            fields["downstream_dedupes_for"] = DEDUPE_SECONDS
        if kind.attempts > 1:
            fields["retry"] = {"attempts": kind.attempts, "initial_delay": 0.0}
        decided = {key: value for key, value in fields.items() if value is not None}

        def body(n: int) -> Any:
            return self._act(name, kind, n)

        tool = self.guard.tool(name, marks_sending=kind.marks, defer=kind.defer, pivot=kind.pivot, **decided)
        return tool(body)

    def _act(self, tool: str, kind: Kind, n: int) -> Any:
        call = self.guard.current_call()
        assert call is not None
        plan = self.send_plan if kind.defer else self.plan
        how = plan.pop(0) if plan else "ok"
        when, meanwhile, how = how if isinstance(how, tuple) else ("", None, how)
        self.inside = call.id
        self.life.step(tool, "body", lambda: self.world.moments.begins(call.id))
        if how == "declined":
            raise Declined
        if how == "refused":
            raise ConnectionRefusedError
        if how == "vague":
            raise ConnectionResetError
        if when == "before":
            meanwhile()
            self._stopped_before(kind, call)
        if kind.marks:
            call.sending()
        self.life.step(tool, "effect", lambda: self.world.happen(kind, tool, n, call))
        if when == "after":
            meanwhile()
        if how == "lost":
            raise ConnectionResetError
        if how == "cancelled":
            raise asyncio.CancelledError
        return object() if how == "unencodable" else f"{tool}-{n}"

    def _stopped_before(self, kind: Kind, call: Call) -> None:
        """A body goes on right before its effect: only the second mark could tell it that its key is forgotten."""
        sent = [effect.at for effect in self.world.by_key(call.idempotency_key)]
        if kind.dedupes and not kind.marks and sent and self.world.now - sent[0] >= DEDUPE_SECONDS:
            self.world.told.add(call.idempotency_key)

    def _expect(self, call: CallInfo) -> bool:
        how = self.undo_plan.pop(0) if self.undo_plan and self.undo_plan[0] in _LOOKS else "ok"
        if how == "cannot look":
            raise ConnectionResetError
        (self.world.changed.add if how == "changed" else self.world.changed.discard)(call.id)
        return how != "changed"

    def _undo(self, call: CallInfo) -> None:
        how = self.undo_plan.pop(0) if self.undo_plan else "ok"
        if how == "fails":
            raise ConnectionResetError
        self.life.step(call.tool, "undo effect", lambda: self.world.undo(call))
        if how == "lost":
            raise ConnectionResetError

    def _probe(self, tool: str, kind: Kind) -> Callable[..., Any]:
        def probe(n: int, idempotency_key: str) -> Any:
            if kind.probe == "unsure":
                return Unsure("the search is down")
            lag = LAG_SECONDS if kind.probe == "lagging" else 0.0
            seen = [effect for effect in self.world.by_key(idempotency_key) if effect.at <= self.world.now - lag]
            if not seen:
                return NotApplied
            return Applied if kind.probe == "no result" else Applied(f"{tool}-{n}")

        return probe

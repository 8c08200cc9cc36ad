"""Days in a shop, for the proof of ``wal``: what its agents do, what the world outside sees of it, and a person.

The world is a list of effects and nothing else, so that a day can be begun again from any moment of another one. On a
quiet day one job follows the other; on a busy one they are done at once, by threads and in an event loop.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from sagaspan import (
    Applied,
    CallState,
    CompensationFailed,
    Guard,
    NotApplied,
    OutcomeUnknown,
    Retry,
    RunClosed,
    RunState,
)

IN_DOUBT: Final = (CallState.UNKNOWN, CallState.NEEDS_HUMAN)
_LOST: Final = "the line went dead"


class Declined(Exception):
    """The bank says no."""


@dataclass(frozen=True, slots=True)
class Effect:
    """Something that happened outside: ``what`` for which order, by which call, under which key."""

    what: str
    order: str
    call_id: str
    key: str


@dataclass
class World:
    """What happened, in order, and how often it was asked for; ``seen`` and ``heard`` are told."""

    effects: list[Effect] = field(default_factory=list)
    seen: Callable[[Effect], None] = lambda _: None
    heard: Callable[[str], None] = lambda _: None
    asked: Counter[str] = field(default_factory=Counter)
    guard: Guard = None  # type: ignore[assignment] # the shop moves in

    def happen(self, what: str, order: str, *, once_a_key: bool = False) -> str:
        """An effect of the call in force; a service that dedupes does it once a key."""
        call = self.guard.current_call()
        assert call is not None
        effect = Effect(what, order, call.id, call.idempotency_key)
        if once_a_key and any(one.key == effect.key for one in self.effects):
            return f"{what}-{order}"
        self.effects.append(effect)
        self.seen(effect)
        return f"{what}-{order}"

    def has(self, what: str, order: str) -> bool:
        """Whether it happened."""
        return any((one.what, one.order) == (what, order) for one in self.effects)

    def first_time(self, question: str) -> bool:
        """Whether this is asked for the first time."""
        self.asked[question] += 1
        self.heard(question)
        return self.asked[question] == 1


class Shop:
    """The tools of the shop's agent, one for each way in which a call is protected."""

    def __init__(self, guard: Guard, world: World) -> None:
        self.guard, self.world = guard, world
        world.guard = guard
        quick = Retry(attempts=3, initial_delay=0.0)
        write = {"effect": "write"}
        self.look = guard.tool("look", effect="read")(lambda order: order)
        self.reserve = guard.tool("reserve", compensate=self._undo("release"), retry=quick, lock=_stock)(self._reserve)
        self.charge = guard.tool("charge", compensate=self._undo("refund"))(lambda order: self._happen("charge", order))
        self.invoice = guard.tool("invoice", probe=self._find_invoice, **write)(self._invoice)
        self.label = guard.tool("label", downstream_dedupes_for=86_400, retry=quick, **write)(self._label)
        self.ship = guard.tool("ship", marks_sending=True, **write)(self._ship)
        self.pay = guard.tool("pay", key="order")(lambda order: self._happen("pay", order))
        self.bundle = guard.tool("bundle", effect="idempotent")(self._bundle)
        self.decline = guard.tool("decline", effect="write")(_decline)
        self.mail = guard.tool("mail", **write)(self._mail)
        self.notify = guard.tool("notify", defer=True)(lambda order: self._happen("notify", order))

    # -- the tools ---------------------------------------------------------------------------------------------

    def _happen(self, what: str, order: str) -> str:
        return self.world.happen(what, order)

    def _undo(self, what: str) -> Callable[[str], None]:
        def undo(order: str) -> None:
            self.world.happen(what, order)

        undo.__name__ = what
        return undo

    def _reserve(self, order: str) -> str:
        if self.world.first_time(f"reserve {order}"):
            raise NotApplied("the warehouse is busy")
        return self._happen("reserve", order)

    def _invoice(self, order: str) -> str:
        """Its answer is always lost the first time."""
        first = self.world.first_time(f"invoice {order}")
        self._happen("invoice", order)
        if first:
            raise ConnectionResetError(_LOST)
        return f"invoice-{order}"

    def _find_invoice(self, order: str) -> Applied | NotApplied:
        return Applied(f"invoice-{order}") if self.world.has("invoice", order) else NotApplied()

    def _label(self, order: str) -> str:
        first = self.world.first_time(f"label {order}")
        self.world.happen("label", order, once_a_key=True)
        if first:
            raise ConnectionResetError(_LOST)
        return f"label-{order}"

    def _ship(self, order: str) -> str:
        call = self.guard.current_call()
        assert call is not None
        call.sending()
        return self._happen("ship", order)

    def _bundle(self, order: str) -> list[str]:
        return [self.charge(f"{order}.{part}") for part in "ab"]

    async def _mail(self, order: str) -> str:
        await asyncio.sleep(0)
        return self._happen("mail", order)

    # -- the day -----------------------------------------------------------------------------------------------

    def job(self, order: str) -> None:
        """One job of the day, by the name of its order; done again it goes on where it was."""
        getattr(self, f"_{order.partition('-')[0]}")(order)

    def _plain(self, order: str) -> None:
        with self.guard.run("plain", id=order):
            self.look(order)
            self.reserve(order)
            self.charge(order)

    def _lossy(self, order: str) -> None:
        with self.guard.run("lossy", id=order):
            with contextlib.suppress(ConnectionResetError):
                self.invoice(order)
            self.label(order)
            self.ship(order)

    def _undone(self, order: str) -> None:
        with self.guard.run("undone", id=order):
            self.charge(order)
            self.notify(order)
            self.reserve(order)
            self.decline(order)

    def _nested(self, order: str) -> None:
        with self.guard.run("nested", id=order) as run:
            self.charge(f"{order}.kept")
            run.commit()
            with self.guard.run("inner"):
                self.bundle(order)
            self.decline(order)

    def _posted(self, order: str) -> None:
        with self.guard.run("posted", id=order) as run:
            self.charge(order)
            self.notify(f"{order}.first")
            run.commit()
            self.notify(f"{order}.last")

    def _late(self, order: str) -> None:
        async def work() -> None:
            async with self.guard.run("late", id=order):
                await self.mail(order)

        asyncio.run(work())

    def _lone(self, order: str) -> None:
        self.pay(order)

    def _regret(self, order: str) -> None:
        with self.guard.run("regret", id=order):
            self.charge(order)
        self.guard.compensate(order)

    def _sold(self, order: str) -> None:
        with self.guard.run("sold", id=order):
            self.charge(order)
            self.ship(order)

    def _broken(self, order: str) -> None:
        with self.guard.run("broken", id=order):
            self.charge(f"{order}.first")
            self.charge(f"{order}.last")
            self.decline(order)

    def _rush(self, order: str) -> None:
        async def work() -> None:
            async with self.guard.run("rush", id=order):
                await asyncio.gather(*(self.mail(f"{order}.{number}") for number in range(RUSH)))

        asyncio.run(work())


def _stock(order: str) -> str:  # every order takes the same lock
    return "stock"


def _decline(order: str) -> None:
    raise Declined(order)


@dataclass(frozen=True, kw_only=True)
class Day:
    """The ``orders`` of a day; how the run of each ends at last (``lone`` has none), what happens, once each, and what
    is undone of each, in this order, at least once. ``at_once``: whether the jobs are done side by side.
    """

    orders: Sequence[str]
    ends: Mapping[str, RunState]
    happens: Counter[tuple[str, str]]
    undone: Mapping[str, Sequence[tuple[str, str]]]
    at_once: bool = False


QUIET: Final = Day(
    orders=("plain", "lossy", "undone", "nested", "posted", "late", "lone", "regret"),
    ends={
        "plain": RunState.COMPLETED, "lossy": RunState.COMPLETED, "undone": RunState.COMPENSATED,
        "nested": RunState.COMPENSATED, "posted": RunState.COMPLETED, "late": RunState.COMPLETED,
        "regret": RunState.COMPENSATED,
    },
    happens=Counter(
        {("reserve", "plain"): 1, ("charge", "plain"): 1, ("invoice", "lossy"): 1, ("label", "lossy"): 1,
         ("ship", "lossy"): 1, ("charge", "undone"): 1, ("reserve", "undone"): 1, ("charge", "nested.kept"): 1,
         ("charge", "nested.a"): 1, ("charge", "nested.b"): 1, ("mail", "late"): 1, ("pay", "lone"): 1,
         ("charge", "regret"): 1, ("charge", "posted"): 1, ("notify", "posted.first"): 1,
         ("notify", "posted.last"): 1}
    ),
    undone={
        "undone": [("release", "undone"), ("refund", "undone")],
        "nested": [("refund", "nested.b"), ("refund", "nested.a")],
        "regret": [("refund", "regret")],
    },
)  # fmt: skip

RUSH: Final = 5
_SOLD: Final = tuple(f"sold-{number}" for number in range(3))
_BROKEN: Final = ("broken-0", "broken-1")
_LONE: Final = ("lone-0", "lone-1")

BUSY: Final = Day(
    orders=(*_SOLD, *_BROKEN, *_LONE, "rush"),
    ends={
        **dict.fromkeys((*_SOLD, "rush"), RunState.COMPLETED),
        **dict.fromkeys(_BROKEN, RunState.COMPENSATED),
    },
    happens=Counter(
        [(what, order) for order in _SOLD for what in ("charge", "ship")]
        + [("charge", f"{order}.{which}") for order in _BROKEN for which in ("first", "last")]
        + [("pay", order) for order in _LONE]
        + [("mail", f"rush.{number}") for number in range(RUSH)]
    ),
    undone={order: [("refund", f"{order}.last"), ("refund", f"{order}.first")] for order in _BROKEN},
    at_once=True,
)

DAYS: Final = {"quiet": QUIET, "busy": BUSY}


def live(shop: Shop, day: Day) -> None:
    """The day as it is when nothing goes wrong but what does so in the shop."""
    if not day.at_once:
        work(shop, day)
        return
    gate = threading.Barrier(len(day.orders))
    with concurrent.futures.ThreadPoolExecutor(len(day.orders)) as crowd:
        for job in [crowd.submit(_after, gate, shop, order) for order in day.orders]:
            job.result()


def _after(gate: threading.Barrier, shop: Shop, order: str) -> None:
    gate.wait()
    with contextlib.suppress(Declined):
        shop.job(order)


def work(shop: Shop, day: Day) -> None:
    """The day, from its beginning, as often as it takes; what is in doubt a person decides by looking at the world."""
    for order in day.orders:
        for _ in range(10):
            try:
                shop.job(order)
                break
            except (Declined, RunClosed):
                break  # undone, now or before
            except (OutcomeUnknown, CompensationFailed):
                ask_a_person(shop)
        else:
            raise AssertionError(f"the job {order!r} does not come to an end")


def ask_a_person(shop: Shop) -> None:
    """Somebody looks whether each write in doubt happened, says so, and lets what waits for it be undone."""
    for call in shop.guard.calls.list():
        if call.state in IN_DOUBT and call.effect not in ("read", "idempotent"):
            order = call.args["order"]
            if shop.world.has(call.tool, order):
                shop.guard.calls.resolve(call.id, "happened", result=f"{call.tool}-{order}", note="the books have it")
            else:
                shop.guard.calls.resolve(call.id, "did-not-happen", note="the books do not have it")
    shop.guard.recover()


def undoings(effects: Sequence[Effect]) -> Iterator[Effect]:
    """Those of ``effects`` that undo others."""
    return (one for one in effects if one.what in ("release", "refund"))

"""The layers around the ledger, in their order: what a call passes through."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING

from sagaspan._call import Call, Result
from sagaspan._middleware import Middleware, compose
from sagaspan._noted import keep_of_loop, note_denial, spent_so_far
from sagaspan._question import Asking
from sagaspan.approvers import Inbox
from sagaspan.ledger.desk import Desk
from sagaspan.ledger.fail_open import FailOpen
from sagaspan.middleware.approval import ApprovalMiddleware, EditsMiddleware, UnaskedMiddleware
from sagaspan.middleware.budget import BudgetMiddleware
from sagaspan.middleware.loop import LoopMiddleware
from sagaspan.middleware.replay import ReplayMiddleware
from sagaspan.middleware.rules import RulesMiddleware
from sagaspan.middleware.saga import SagaMiddleware
from sagaspan.middleware.telemetry import TelemetryMiddleware

if TYPE_CHECKING:
    from sagaspan._engine import Engine

Onion = Callable[[Call], Awaitable[Result]]


def folded(engine: Engine) -> tuple[Onion, Onion, Onion, Onion]:
    """The onions of ``engine`` as it is set up now: for calls, questions, deferred calls to send, and to send again."""
    endpoint = engine.ledger if engine.outage is None else FailOpen(engine.ledger, engine.outage, engine.limits)
    layers: list[Middleware] = [
        TelemetryMiddleware(engine.tracer),
        *engine.middleware,
        EditsMiddleware(),
        *_by_rules(engine, endpoint.serve),
        LoopMiddleware(endpoint.serve, partial(keep_of_loop, engine.store), engine.loop, observes=engine.observes),
        ReplayMiddleware(endpoint.serve),
        BudgetMiddleware(),
        _approving(engine, endpoint.serve),
        SagaMiddleware(engine.known.compensation_for, engine.spelling.lock_names),
        *engine.innermost,
    ]
    calls = compose(layers, endpoint)
    desk = Desk(engine.store, engine.digest, Inbox())
    asking = Asking(engine.store, desk, engine.digest, endpoint.serve, engine.spelling.plain_of)
    questions = compose([EditsMiddleware(), *_by_rules(engine, endpoint.serve)], asking)
    # What a deferred call asks of the layers it was asked when it was scheduled; but once it has been claimed, that is
    # used up. It is judged again then, as every call is that failed and is made once more.
    telemetry, send, sent = TelemetryMiddleware(engine.tracer), engine.ledger.send, engine.ledger.sent
    sending = compose([telemetry, BudgetMiddleware(), *engine.innermost], send)
    judged = [EditsMiddleware(), *_by_rules(engine, sent), BudgetMiddleware(), _approving(engine, sent)]
    sending_again = compose([telemetry, ReplayMiddleware(sent), *judged, *engine.innermost], send)
    return calls, questions, sending, sending_again


def _approving(engine: Engine, serve: Callable[[Call], Awaitable[Result | None]]) -> Middleware:
    if engine.observes:
        return UnaskedMiddleware()
    desk = Desk(engine.store, engine.digest, engine.approver)
    return ApprovalMiddleware(desk, serve, engine.spelling.plain_of, engine.limits.look)


def _by_rules(engine: Engine, serve: Callable[[Call], Awaitable[Result | None]]) -> list[Middleware]:
    """The layer of the policy file's rules, if there is such a file."""
    return (
        []
        if engine.in_force.file is None
        else [
            RulesMiddleware(
                engine.in_force.of,
                engine.in_force.is_stale,
                serve,
                partial(spent_so_far, engine.store),
                partial(note_denial, engine.store, engine.namespace),
                observes=engine.observes,
            )
        ]
    )

"""Approval: a call that its policy asks about runs only with an approval of exactly its arguments (rule book (d)).

From here on nobody but the guard has the arguments: they are copied before anything is decided or hashed. The claim
uses the approval up, so that no crash and no race can separate it from the call. Errors, timeouts and missing
approvers refuse.
"""

from __future__ import annotations

import copy
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any, Protocol

from sagaspan import codecs
from sagaspan._call import Call, Result
from sagaspan._commands import command
from sagaspan._gates import Gate
from sagaspan._middleware import CallNext
from sagaspan._observed import ASKED, noted
from sagaspan._tool import Reads, Tool
from sagaspan._unshown import unshown
from sagaspan.exceptions import ApprovalDenied
from sagaspan.keys import canonical, idempotency_key
from sagaspan.ledger.approvals import AlreadyDone, ApprovalSpent, arguments_of, exact
from sagaspan.ledger.edits import changed, said
from sagaspan.ledger.records import ApprovalRecord

Plain = Callable[[Tool, Mapping[str, Any]], dict[str, Any]]
"""The arguments of a call as JSON data, as they are recorded."""


class Desk(Protocol):
    """Where requests are made, and approvers asked."""

    async def ask(self, call: Call, plain: Mapping[str, Any]) -> ApprovalRecord:
        """An approved request for this call, or one that edits it; raises ``ApprovalPending`` or ``Refused``."""


class Edited(Exception):
    """The call goes on with other arguments: it starts again where loops are looked for."""

    def __init__(self, call: Call) -> None:
        super().__init__("edited")
        self.call = call


class EditsMiddleware:
    """Starts an edited call again; its key stays that of the requested arguments.

    So it does with an irreversible call that is done with these arguments: as one of its own, which is asked about.
    """

    async def __call__(self, call: Call, call_next: CallNext, /) -> Result:
        tool = call.tool
        while True:
            try:
                return await call_next(call)
            except Edited as edited:
                # Under its own tool and without its costs: what rules and layers made of them was for other arguments.
                call = replace(edited.call, tool=tool, declared=call.declared)
            except AlreadyDone as done:
                call = _again(call, done.record_id)
                tool = call.tool


class UnaskedMiddleware:
    """In the place of ``ApprovalMiddleware`` where it is only observed: nobody is asked, and the call says so.

    But what is irreversible is not done again for that: nobody was asked, and it is no matter of policy.
    """

    async def __call__(self, call: Call, call_next: CallNext, /) -> Result:
        if call.repeats is not None:
            raise ApprovalDenied(
                f"tool {call.tool.name!r} is irreversible and was already done with these arguments (call "
                f"{call.repeats}); a guard that only observes asks nobody about doing it again. Declare "
                "repeat='dedupe' or 'new', or a key="
            )
        asking = [gate.says for gate in call.tool.gates if gate.asks(call.arguments)]
        if asking:
            call = noted(call, ASKED, f"somebody would be asked: {'; '.join(asking)}")
        return await call_next(call)


class ApprovalMiddleware:
    """``serve`` is the ledger's answer to a call that is on record: nobody is asked about that again.

    ``look`` raises for a call that no budget would pay for: nobody is asked about that either.
    """

    def __init__(
        self,
        desk: Desk,
        serve: Callable[[Call], Awaitable[Result | None]],
        plain: Plain,
        look: Callable[[Call], None],
    ) -> None:
        self._look = look
        self._desk = desk
        self._serve = serve
        self._plain = plain

    async def __call__(self, call: Call, call_next: CallNext, /) -> Result:
        if not call.tool.gates and call.edited is None:
            return await call_next(call)
        call, plain = self._copied(call)
        # An edited call needs at least what the request needed: one of two people must not make it one for nobody.
        if call.edited is None and not any(gate.asks(call.arguments) for gate in call.tool.gates):
            return await call_next(call)
        if not (call.resumed or call.replaying):
            served = await self._serve(call)
            if served is not None:
                return served
        _check_shown(call)
        await call.io(self._look, call)
        spent: ApprovalRecord | None = None
        while True:
            record = await self._desk.ask(call, plain)
            if record == spent:  # nothing has changed it, and it is not to be used: its row says what it should not
                raise ApprovalDenied(
                    f"tool {call.tool.name!r} did not run: the approval {record.id} cannot be used. See: "
                    f"{command('approvals show', record.id)}"
                )
            if canonical(arguments_of(record)) != canonical(exact(plain)):
                raise Edited(_edited(call, record, plain, self._plain))
            try:
                return await call_next(call.declare(approval=record))
            except ApprovalSpent:  # used, taken back or expired since it was read: it is asked about anew
                spent = record

    def _copied(self, call: Call) -> tuple[Call, dict[str, Any]]:
        """The call with arguments that nobody else holds, recorded as what they are now."""
        try:
            arguments = copy.deepcopy(dict(call.arguments))
        except Exception as error:
            raise ApprovalDenied(
                f"tool {call.tool.name!r} did not run: its arguments cannot be copied ({type(error).__name__}), so "
                "they could change after somebody approved them; pass plain data"
            ) from error
        plain = self._plain(call.tool, arguments)
        return replace(call, arguments=arguments, encoded=codecs.dump(plain)), plain


def _check_shown(call: Call) -> None:
    """Refuse a call with state that nobody would be shown, and no hash would hold: an equal one could have another."""
    for name, value in call.arguments.items():
        where = unshown(value, name)
        if where is not None:
            raise ApprovalDenied(
                f"tool {call.tool.name!r} did not run: its argument {name!r} has state that nobody would be shown "
                f"({where}), so nobody can approve it; pass plain data"
            )


def _again(call: Call, done: str) -> Call:
    """``call`` as a further one beside the call ``done``, under a key of its own, asked about whatever its policy says.

    Its number is that of the equal calls of this incarnation, so that a resume finds it.
    """
    key = replace(call.key, value=f"{call.key.value}.{call.occurrence}")
    downstream = idempotency_key(call.run.namespace, key.scope, call.tool.name, key.value, call.generation)
    asks = Gate(f"it is irreversible, and done with these arguments already (call {done})")
    tool = replace(call.tool, gates=(*call.tool.gates, asks))
    return replace(call, key=key, idempotency_key=downstream, tool=tool, repeats=done)


def _edited(call: Call, record: ApprovalRecord, plain: Mapping[str, Any], as_plain: Plain) -> Call:
    """``call`` with the arguments of ``record``; what was not changed stays the very object that it is."""
    wanted = arguments_of(record)
    given = {name: codecs.decode(codecs.dump(wanted[name])) for name in changed(plain, wanted)}
    hidden = next((name for name in given if codecs.holds_redacted(codecs.dump(wanted[name]))), None)
    if hidden is not None:
        raise _not_made(call, hidden)
    if call.tool.reads is None:
        for name in given:
            recorded = codecs.decode(codecs.dump(plain[name]))
            if codecs.differs(call.arguments[name], recorded, name) is not None:
                raise _not_made(call, name)
        return replace(call, arguments={**call.arguments, **given}, edited=record.id)
    return replace(call, arguments=_read(call, call.tool.reads, given, wanted, as_plain), edited=record.id)


def _read(
    call: Call, reads: Reads, given: Mapping[str, Any], wanted: Mapping[str, Any], as_plain: Plain
) -> dict[str, Any]:
    """The arguments of ``call`` with those ``given`` as its tool's schema reads them; raises ``ApprovalDenied``.

    What it makes of them must be what somebody agreed to: an edit that a process made which knows no schema may not be.
    """
    try:
        found = reads({**call.arguments, **given}, whole=True)
        arguments = {**call.arguments, **{name: found.get(name, value) for name, value in given.items()}}
        read = as_plain(call.tool, arguments)
    except Exception as error:
        raise ApprovalDenied(
            f"tool {call.tool.name!r} did not run: its arguments were edited so that they do not fit its schema "
            f"({said(error)})"
        ) from error
    for name in changed({name: wanted[name] for name in given}, read):
        if type(given[name]) in (int, float) and canonical(read[name]) == canonical(given[name]):
            arguments[name] = given[name]  # 5 for 5.0, as somebody writes it on the command line
            continue
        raise ApprovalDenied(
            f"tool {call.tool.name!r} did not run: its argument {name!r} was edited to what its schema reads as "
            f"something else ({codecs.dump(read[name])[:100]}), which nobody agreed to; edit it to that"
        )
    return arguments


def _not_made(call: Call, name: str) -> ApprovalDenied:
    return ApprovalDenied(
        f"tool {call.tool.name!r} did not run: its argument {name!r} was edited, and is a "
        f"{type(call.arguments[name]).__qualname__}, which cannot be made again from what was approved. Deny it instead"
    )

"""One request of an SDK's client: every attempt of it is a call of its own, reserved before it is sent.

An attempt that was answered is settled with what the answer says; one that the provider refused, or that never left,
costs nothing; one that timed out may have been billed and stays booked as reserved. So the SDK's own retries count as
what they are, each under the budgets.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any, Final

from sagaspan import Guard, NotApplied
from sagaspan.adapters import LlmCall
from sagaspan_functions._apis import Api, api_of, limit_name, provider_of, uncounted, unknown
from sagaspan_functions._meter import Meter, metered, settle

_log = logging.getLogger("sagaspan")


class ProviderRefused(Exception):
    """The provider answered with an HTTP status that refuses: nothing is billed."""

    def __init__(self, status: int) -> None:
        super().__init__(f"the provider answered {status}")
        self.status_code = status


class Exchange:
    """What is known of the request in force, from its options to its answer."""

    def __init__(self, guard: Guard, client: Any) -> None:
        self._guard = guard
        self._client = client
        self._api: Api | None = None
        self._arguments: dict[str, Any] = {}
        self._hides_usage = False
        self._reserved: LlmCall | None = None
        self._by: str | None = None

    # -- before it is sent ---------------------------------------------------------------------------------------

    def reserve(self, options: Any) -> Any:
        """Reserve what an attempt with these ``options`` may cost; the options to send it with."""
        call = self._call_of(options)
        if call is None:
            if self._by:
                self.let_by(self._by)
            return options
        self.unsent()
        self._reserved = self._told(call.__enter__())
        return self._completed(options, call)

    async def areserve(self, options: Any) -> Any:
        """As ``reserve``, in a running loop."""
        call = self._call_of(options)
        if call is None:
            if self._by:
                await self.alet_by(self._by)
            return options
        await self.aunsent()
        self._reserved = self._told(await call.__aenter__())
        return self._completed(options, call)

    def _call_of(self, options: Any) -> LlmCall | None:
        """The call to meter; None if there is none, and then ``_by`` is what costs money all the same."""
        self._api, self._by = None, None
        self._arguments = options.json_data if isinstance(options.json_data, dict) else {}
        url = str(options.url)
        if str(options.method).lower() != "post":
            return None
        api = api_of(url)
        if api is None or not isinstance(options.json_data, dict):
            # A body in bytes goes to a model unread.
            place = uncounted(url) if api is None else f"{url.partition('?')[0]} with a body that is not read"
            self._by = place and f"requests to {place}"
            if place is None and (path := unknown(url)):
                _warn(f"requests to {path}, which is no address that sagaspan knows,")
            return None
        self._api = api
        self._arguments = {**self._arguments, **(getattr(options, "extra_json", None) or {})}
        return self._make_call(api)

    def _make_call(self, api: Api) -> LlmCall:
        demand = api.demand(self._arguments)
        return self._guard.llm_call(
            self._model, demand=demand, provider=provider_of(self._client),
            limit_output=api.limit is not None and demand.output_tokens is None, operation=api.operation,
        )  # fmt: skip

    @property
    def _model(self) -> str:
        return str(self._arguments.get("model") or "unknown")

    def let_by(self, what: str) -> None:
        """Send ``what`` without counting it; raises ``PolicyDenied`` where a hard budget of money holds."""
        self._uncounted().let_by(what)
        _warn(what)

    async def alet_by(self, what: str) -> None:
        """As ``let_by``, in a running loop."""
        await self._uncounted().alet_by(what)
        _warn(what)

    def _uncounted(self) -> LlmCall:
        return self._guard.llm_call(self._model, provider=provider_of(self._client), operation="generate_content")

    def _completed(self, options: Any, call: LlmCall) -> Any:
        """``options`` with a limit that the budgets can pay for, and with the wish to be told what a stream used."""
        assert self._api is not None  # noqa: S101 - the call was made for it
        added: dict[str, Any] = {}
        name = limit_name(self._api, provider_of(self._client))
        if call.output_limit is not None and name is not None:
            added[name] = call.output_limit
        wishes = self._arguments.get("stream_options") or {}
        self._hides_usage = bool(
            self._api.asks_for_usage and self._arguments.get("stream") and "include_usage" not in wishes
        )
        if self._hides_usage:
            added["stream_options"] = {**wishes, "include_usage": True}
        if added:  # the options of this attempt only; the user's own dict is left alone
            options.json_data = {**options.json_data, **added}
            if extra := getattr(options, "extra_json", None):  # the SDK lays it over the rest
                options.extra_json = {name: added.get(name, value) for name, value in extra.items()}
        return options

    def unsent(self, error: BaseException | None = None) -> None:
        """Give back what was reserved for an attempt that was not sent."""
        call, self._reserved = self._reserved, None
        if call is not None:
            call.__exit__(NotApplied, _not_sent(error), None)

    async def aunsent(self, error: BaseException | None = None) -> None:
        """As ``unsent``, in a running loop."""
        call, self._reserved = self._reserved, None
        if call is not None:
            await call.__aexit__(NotApplied, _not_sent(error), None)

    # -- sent ------------------------------------------------------------------------------------------------------

    @property
    def is_metered(self) -> bool:
        """Whether the request asks a model."""
        return self._api is not None

    def sent(self) -> LlmCall:
        """The call that is sent now; another one where an SDK sends an attempt twice, with fresh credentials."""
        call, self._reserved = self._reserved, None
        return self._told(self._again().__enter__()) if call is None else call

    async def asent(self) -> LlmCall:
        """As ``sent``, in a running loop."""
        call, self._reserved = self._reserved, None
        return self._told(await self._again().__aenter__()) if call is None else call

    def _again(self) -> LlmCall:
        assert self._api is not None  # noqa: S101 - it is metered
        return self._make_call(self._api)

    def _told(self, call: LlmCall) -> LlmCall:
        """``call``, which was told what it asks, for its span."""
        if call.tells and call.operation == "chat":
            call.messages(input=self._arguments)
        return call

    def answered(self, call: LlmCall, response: Any) -> Any:
        """Settle ``call`` with the answer, or have it settled when that has been read."""
        if response.status_code >= 400:
            call.__exit__(ProviderRefused, ProviderRefused(response.status_code), None)
        elif response.is_closed:
            settle(call, _body(response))
            call.__exit__(None, None, None)
        else:
            return self._metered(call, response)
        return response

    async def aanswered(self, call: LlmCall, response: Any) -> Any:
        """As ``answered``, in a running loop."""
        if response.status_code >= 400:
            await call.__aexit__(ProviderRefused, ProviderRefused(response.status_code), None)
        elif response.is_closed:
            settle(call, _body(response))
            await call.__aexit__(None, None, None)
        else:
            return self._metered(call, response)
        return response

    def _metered(self, call: LlmCall, response: Any) -> Any:
        call.streams()
        # What a proxy writes on it does not matter: the SDK reads events where it asked for them.
        labelled = "text/event-stream" in response.headers.get("content-type", "").lower()
        is_stream = labelled or bool(self._arguments.get("stream"))
        return metered(response, Meter(call, is_stream=is_stream, hides_usage=self._hides_usage and is_stream))


_in_force: ContextVar[Exchange | None] = ContextVar("sagaspan_exchange", default=None)


def exchange_in_force() -> Exchange | None:
    """The exchange whose request is being sent here."""
    return _in_force.get()


@contextlib.contextmanager
def in_force(exchange: Exchange) -> Iterator[None]:
    """``exchange`` is the request that is prepared and sent within the block."""
    token = _in_force.set(exchange)
    try:
        yield
    finally:
        _in_force.reset(token)


@functools.lru_cache(1000)
def _warn(what: str) -> None:
    """Say it once; a budget that does not hold must not look as if it did."""
    _log.warning(
        "%s are sent, and counted in no budget; meter them yourself: with guard.llm_call(...)",
        what,
    )


_NOT_SENT: Final = "the request was not sent"


def _not_sent(error: BaseException | None) -> NotApplied:
    proof = NotApplied(_NOT_SENT)
    proof.__cause__ = error
    return proof


def _body(response: Any) -> Any:
    try:
        return response.json()
    except ValueError:
        return None

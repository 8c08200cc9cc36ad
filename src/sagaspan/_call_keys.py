"""The key of a call: the user's own, or one of its content and its number among its equals; and those it had before."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from sagaspan import codecs
from sagaspan._clock import new_id, now_us
from sagaspan._compensation import name_of
from sagaspan._spelling import Spelling, plain_data
from sagaspan._tool import Tool
from sagaspan.exceptions import ConfigurationError
from sagaspan.keys import BUSINESS_SCOPE, CallKey, KeySource, canonical, content_key, fingerprint, run_scope, sent_scope
from sagaspan.ledger.records import RunRecord

if TYPE_CHECKING:
    from sagaspan._repeats import Asking
    from sagaspan._run import Run

MAX_KEY_BYTES: Final = 2000
"""A key is in a unique index, of which PostgreSQL holds 2,704 bytes, with its namespace and its tool."""


def key_of(
    spelling: Spelling,
    tool: Tool,
    told: Mapping[str, Any],
    plain: Mapping[str, Any],
    record: RunRecord,
    run: Run | None,
    sent_with: str | None,
    asking: Asking | None,
) -> tuple[CallKey, int]:
    """The key of a call and its number among its equals; ``told``: the arguments, and of a method its object.

    ``asking`` is what says which one it is once more, where its code is run again.
    """
    identity = [tool.name, plain]
    digest = fingerprint(identity) if spelling.codec is None else spelling.digest_of_call(tool, identity)
    if tool.policy.key is not None:
        value = business_key(tool, told)
        if tool.reads_redacted("key"):
            value = spelling.hashed("key", value)
        if asking is not None:
            asking.number((tool.name, value, None))
        return CallKey(source=KeySource.BUSINESS, scope=BUSINESS_SCOPE, value=value, fingerprint=digest), 0
    if run is None:
        scope = run_scope(record.id, 0)
        return CallKey(source=KeySource.UNIQUE, scope=scope, value=new_id(now_us()), fingerprint=digest), 0
    occurrence = _occurrence(tool, digest, run, sent_with, asking)
    if tool.policy.repeat_rule != "new":
        run.numbers.check_same(tool, digest, told)
    number = occurrence if tool.policy.repeat_rule == "new" else 0
    scope = run_scope(record.id, record.generation) if sent_with is None else sent_scope(sent_with)
    return CallKey(
        source=KeySource.CONTENT, scope=scope, value=content_key(digest, number), fingerprint=digest
    ), occurrence


def _occurrence(tool: Tool, digest: str, run: Run, sent_with: str | None, asking: Asking | None) -> int:
    equal = (tool.name, digest, sent_with)
    same = None if asking is None else asking.number(equal, is_read=tool.policy.effect == "read")
    if same is not None:
        return run.numbers.same(equal, same)
    number = run.numbers.occurrence(*equal)
    if asking is not None:
        asking.counts(number)
    return number


def former_keys(
    spelling: Spelling, tool: Tool, told: Mapping[str, Any], plain: Mapping[str, Any], key: CallKey, *, resumed: bool
) -> tuple[CallKey, ...]:
    """The keys that this call had while nothing of it was redacted or encrypted; ``told`` is as for ``key_of``.

    What was done under one of them is not done again.
    """
    if key.source is KeySource.UNIQUE or not (resumed or key.source is KeySource.BUSINESS):
        return ()
    arguments = {name: value for name, value in told.items() if name != tool.receiver}
    spelt = [plain] if tool.redaction is None else [plain, plain_data(tool, arguments, codecs.blank)]
    digests = [digest([tool.name, one]) for one in spelt for digest in (spelling.digest, fingerprint)]
    former = dict.fromkeys(digest for digest in digests if digest != key.fingerprint)
    if key.source is KeySource.BUSINESS:
        keys = [replace(key, fingerprint=digest) for digest in former]
        if tool.reads_redacted("key"):  # which is a hash now, and was none
            value = business_key(tool, told)
            keys += [replace(one, value=value) for one in (key, *keys)]
        return tuple(keys)
    number = key.value.removeprefix(key.fingerprint)
    return tuple(replace(key, fingerprint=digest, value=digest + number) for digest in former)


def business_key(tool: Tool, told: Mapping[str, Any]) -> str:
    """The key that the user gives a call; raises ``ConfigurationError``."""
    if tool.key_expression is not None:
        try:
            value = tool.key_expression.evaluate(told)
        except Exception as error:
            raise ConfigurationError(
                f"tool {tool.name!r} did not run: its key {tool.key_expression.source!r} failed: {error}"
            ) from error
    else:
        function: Any = tool.policy.key
        try:
            value = function(**{name: told[name] for name in inspect.signature(function).parameters})
        except Exception as error:
            raise ConfigurationError(
                f"tool {tool.name!r} did not run: its key function {name_of(function)!r} raised "
                f"{type(error).__name__}: {error}"
            ) from error
    if value is None or value == "":
        raise ConfigurationError(f"tool {tool.name!r} did not run: its key came out empty; it must name the operation")
    try:
        plain = codecs.to_json(value, "its key")
    except codecs.Unencodable as problem:
        raise ConfigurationError(f"tool {tool.name!r} did not run: {problem}; let it be a string") from problem
    key = plain if isinstance(plain, str) else canonical(plain).decode()
    if (size := len(key.encode())) > MAX_KEY_BYTES:
        raise ConfigurationError(
            f"tool {tool.name!r} did not run: its key has {size} bytes, and {MAX_KEY_BYTES} are the most; name the "
            "operation in fewer words, or by their hash: hashlib.sha256(...).hexdigest()"
        )
    if "\0" in key:
        raise ConfigurationError(
            f"tool {tool.name!r} did not run: its key {key[:80]!r} has a NUL at {key.index(chr(0))}, which no server "
            "holds; leave it out"
        )
    return key

"""What was written wrong is refused where it was written: one sentence with what it is, and what to write instead."""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from sagaspan.exceptions import ConfigurationError

# The third slash of a file's URL begins a path, which may have an @ in it.
_PASSWORD: Final = re.compile(r"""(?<=://)(?!/)[^\s'"]*@|(?<=[?&])(\w*(?:pass|key|token|secret)\w*)=[^&\s'"]*""", re.I)
_USER: Final = re.compile(r"(?<=://)[^\s:/@'\"]+@")
MAX_NAME: Final = 480
"""How many characters an id or a name can have: no more than the indexes of every store hold."""
MAX_NAMESPACE: Final = 100
VARIABLES: Final = (
    "APP", "BUDGET", "FAIL_OPEN", "HOME", "LEASE_SECONDS", "LOOP", "MODE", "NETWORK_FILES", "SECRET", "STORE",
    "TRACEBACKS", "TRACE_DIR", "TRACE_FSYNC", "TRACE_RETENTION", "TRACE_USERS",
)  # fmt: skip
"""What of the environment is read, each behind ``SAGASPAN_``."""
_PREFIX: Final = "SAGASPAN_"


def described(value: object) -> str:
    """What ``value`` is, for a sentence: ``None``, ``the class Layer``, ``an int``."""
    if value is None:
        return "None"
    if inspect.isclass(value):
        return f"the class {value.__name__}"
    kind = type(value).__name__
    return f"{'an' if kind[0].lower() in 'aeio' else 'a'} {kind}"


def masked(text: str) -> str:
    """``text`` without what of its URLs is for nobody else: users with passwords, and such parameters."""
    return _PASSWORD.sub(lambda found: "***@" if found[1] is None else f"{found[1]}=***", text)


def without_password(url: str) -> str:
    """``url`` if it holds none, else as ``masked`` shows it: for a command that somebody is to type."""
    nobody = _USER.sub("", url)
    return url if masked(nobody) == nobody else masked(url)


def check_variables(environment: Mapping[str, str]) -> None:
    """Refuse a variable that is nearly one of ours: nobody would see that a misspelt limit or ledger does not hold."""
    for name in environment:
        said = name.removeprefix(_PREFIX)
        if said == name or said in VARIABLES:
            continue
        if near := difflib.get_close_matches(said.upper(), VARIABLES, 1, 0.75):
            raise ConfigurationError(
                f"the environment has {name}, which is no setting; did you mean {_PREFIX}{near[0]}?"
            )


def check_choice(name: str, value: object, choices: Sequence[object]) -> None:
    """Refuse a value that is none of ``choices``."""
    if not any(value is choice or (type(value) is type(choice) and value == choice) for choice in choices):
        words = ", ".join(repr(choice) for choice in choices)
        raise ConfigurationError(f"{name}={value!r} is not one of {words}")


def check_flag(name: str, value: object) -> None:
    """Refuse what is not True or False: ``"no"`` would count as True."""
    if not isinstance(value, bool):
        raise ConfigurationError(f"{name}={value!r} is {described(value)}; write {name}=True or {name}=False")


def check_name(name: str, value: object, *, optional: bool = False, most: int = MAX_NAME) -> None:
    """Refuse what is no text of 1 to ``most`` characters; with ``optional`` None will do."""
    if value is None and optional:
        return
    if not isinstance(value, str):
        instead = f"{name}={str(value)!r}" if isinstance(value, int) else f"{name}='...'"
        out = ", or leave it out" if optional else ""
        raise ConfigurationError(f"{name}={value!r} is {described(value)}, not a text; write {instead}{out}")
    if not value.strip():
        raise ConfigurationError(f"{name}={value!r} is empty; give it a name{', or leave it out' if optional else ''}")
    if len(value) > most:
        raise ConfigurationError(f"{name} has {len(value)} characters; {most} are the most")
    if "\0" in value:
        raise ConfigurationError(
            f"{name}={value!r} has a NUL at {value.index(chr(0))}, which no server holds; leave it out"
        )
    check_whole(name, value)


def check_whole(name: str, text: str) -> None:
    """Refuse a text with halves of characters (lone surrogates): nothing can record it."""
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ConfigurationError(
                f"{name}={text!r} cannot be recorded: it has half a character at {error.start}; write whole ones"
            ) from None


def check_seconds(name: str, value: object) -> None:
    """Refuse what is no number of seconds from 0 on."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not 0 <= value < float("inf"):  # type: ignore[operator] # a number
        raise ConfigurationError(f"{name}={value!r} is no time; write seconds from 0 on, such as {name}=30")


def check_count(name: str, value: object, *, least: int = 0) -> None:
    """Refuse what is no whole number from ``least`` on."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ConfigurationError(f"{name}={value!r} is no whole number from {least} on")


def check_mapping(name: str, value: object, example: str) -> None:
    """Refuse what is no mapping; ``example`` is one that fits."""
    if not isinstance(value, Mapping):
        raise ConfigurationError(f"{name} takes a dict such as {example}, not {described(value)}")


def check_codec(codec: object) -> None:
    """Refuse what has no synchronous ``encode`` and ``decode``; None will do."""
    if codec is None:
        return
    for name in ("encode", "decode"):
        method = getattr(codec, name, None)
        if inspect.isclass(codec) or not callable(method):
            raise ConfigurationError(
                f"codec takes an object with encode(bytes) and decode(bytes), not {described(codec)}; an example is in "
                "docs/encryption.md"
            )
        if inspect.iscoroutinefunction(method):
            raise ConfigurationError(f"the codec's {name} is async, but stores are synchronous; use def")


def signature_of(function: Callable[..., Any], what: str) -> inspect.Signature:
    """The signature of a function to be called by name; ``what`` names it in the error for one that has none."""
    if inspect.isclass(function):
        raise ConfigurationError(f"{what} is {described(function)}; give a function")
    try:
        return inspect.signature(function)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"{what} has no readable signature; wrap it in a def with named arguments") from error

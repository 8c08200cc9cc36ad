"""How sure it is who somebody is: what a channel proves of a person, and what a policy asks for (rule book (d) 5).

``cli``: the user of an operating system. ``link``: who holds a token that was sent to one person. ``webhook`` and
``slack``: a service that signs its replies, and vouches for the person. ``oidc``: a person who has just logged in.
"""

from __future__ import annotations

from typing import Final, Literal, TypeVar, get_args

Assurance = Literal["cli", "link", "webhook", "slack", "oidc"]
Level = TypeVar("Level", bound=str | None)
LEVELS: Final[tuple[str, ...]] = get_args(Assurance)

_RANKS: Final[dict[str | None, int]] = {None: 0, "cli": 1, "link": 2, "webhook": 3, "slack": 3, "oidc": 4}
_ABOVE: Final[dict[str | None, Assurance]] = {
    None: "cli", "cli": "link", "link": "webhook", "webhook": "oidc", "slack": "oidc", "oidc": "oidc",
}  # fmt: skip


def reaches(level: str | None, needed: str | None) -> bool:
    """Whether ``level`` is as sure as ``needed``; None: nobody stands for it. An unknown word reaches nothing."""
    return _RANKS.get(level, -1) >= _RANKS.get(needed, len(_RANKS))


def stricter(one: Level, other: Level) -> Level:
    """The surer of two levels."""
    return one if reaches(one, other) else other


def weaker(one: str | None, other: str | None) -> str | None:
    """The less sure of two levels: what is said of a person through two of them."""
    return other if reaches(one, other) else one


def raised(level: str | None) -> str:
    """One level more: what is asked where the arguments cannot be shown."""
    return _ABOVE.get(level, "oidc")

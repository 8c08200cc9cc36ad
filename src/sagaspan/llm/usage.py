"""``Usage``: what one call of a model used, in one shape whatever the provider."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Final

from sagaspan.exceptions import ConfigurationError

MAX_COUNT: Final = 10**9
"""No call has more tokens than this; a larger number is an error of whoever reports it."""


def check_tokens(name: str, value: object) -> None:
    """Refuse what is no count of one call: a plain int from 0 to ``MAX_COUNT``."""
    if type(value) is not int or not 0 <= value <= MAX_COUNT:
        raise ConfigurationError(f"{name} is {value!r:.40}; it must be a plain int from 0 to {MAX_COUNT:,}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Counts of one call; those below ``input_tokens`` and ``output_tokens`` are *parts* of these, never added to them.

    ============================  ====================================================================================
    ``input_tokens``              everything that went in: text, images, what was read from or written to a cache
    ``cache_read_tokens``         of it, read from the provider's cache
    ``cache_write_tokens``        of it, written to the cache
    ``cache_write_1h_tokens``     of what was written, kept for an hour
    ``input_audio_tokens``        of the input, audio
    ``cache_audio_read_tokens``   of what was read from the cache, audio
    ``input_image_tokens``        of the input, images (only where they are counted apart)
    ``output_tokens``             everything that came out, reasoning too
    ``reasoning_tokens``          of it, reasoning
    ``output_audio_tokens``       of it, audio
    ``web_searches``              searches the provider made, and bills one by one
    ``file_searches``             the same in files that are stored there
    ============================  ====================================================================================

    ``model``, ``service_tier``, ``speed`` and ``geo`` are what the provider says served the call: they move the price.
    Raises ``ConfigurationError`` for a count that is no plain int from 0 on, or a part that exceeds its whole.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    cache_write_1h_tokens: int = 0
    input_audio_tokens: int = 0
    cache_audio_read_tokens: int = 0
    input_image_tokens: int = 0
    reasoning_tokens: int = 0
    output_audio_tokens: int = 0
    web_searches: int = 0
    file_searches: int = 0
    model: str | None = None
    service_tier: str | None = None
    speed: str | None = None
    geo: str | None = None

    def __post_init__(self) -> None:
        for name in COUNTS:
            check_tokens(f"usage: {name}", getattr(self, name))
        for parts, whole in _PARTS:
            if sum(getattr(self, part) for part in parts) > getattr(self, whole):
                raise ConfigurationError(f"usage: {' and '.join(parts)} are parts of {whole}, and exceed it")

    @property
    def total_tokens(self) -> int:
        """Input and output: what a budget of tokens counts."""
        return self.input_tokens + self.output_tokens

    def __add__(self, other: Usage) -> Usage:
        """Both counts together, served as the first was."""
        return replace(self, **{name: getattr(self, name) + getattr(other, name) for name in COUNTS})


COUNTS: Final = tuple(field.name for field in fields(Usage) if field.type == "int")

_PARTS: Final = (
    (("cache_read_tokens", "cache_write_tokens"), "input_tokens"),
    (("cache_write_1h_tokens",), "cache_write_tokens"),
    (("cache_audio_read_tokens",), "cache_read_tokens"),
    (("cache_audio_read_tokens",), "input_audio_tokens"),
    (("input_audio_tokens", "input_image_tokens"), "input_tokens"),
    (("reasoning_tokens",), "output_tokens"),
    (("output_audio_tokens",), "output_tokens"),
)

"""``Demand``: what a call of a model can use at most, before it is made."""

from __future__ import annotations

from dataclasses import dataclass

from sagaspan.exceptions import ConfigurationError
from sagaspan.llm.usage import check_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """Upper bounds of one call.

    ==================  ==============================================================================================
    ``input_tokens``    everything that goes in, audio too
    ``audio_tokens``    of it, audio
    ``output_tokens``   the limit that the request sets for each choice; None: it sets none
    ``choices``         how many answers are asked for (``n``)
    ``web_searches``    searches that the provider may make
    ``file_searches``   the same in files stored there
    ``images``          whether there may be images
    ``caches``          whether input may be written to the provider's cache; ``caches_1h``: for an hour
    ``speaks``          whether the answer may be audio
    ``fills_context``   whether there is input that cannot be counted (a file, a stored conversation): it counts as all
                        that the model can take in
    ``open_ended``      why even that is no bound: tools that the provider runs read on and on; None: it is
    ``batch``           whether it goes through a batch API
    ==================  ==============================================================================================

    ``service_tier``, ``speed`` and ``geo`` are what is asked for. Raises ``ConfigurationError`` for hostile counts.
    """

    input_tokens: int = 0
    audio_tokens: int = 0
    output_tokens: int | None = None
    choices: int = 1
    web_searches: int = 0
    file_searches: int = 0
    images: bool = False
    caches: bool = False
    caches_1h: bool = False
    speaks: bool = False
    fills_context: bool = False
    open_ended: str | None = None
    batch: bool = False
    service_tier: str | None = None
    speed: str | None = None
    geo: str | None = None

    def __post_init__(self) -> None:
        counts = {name: getattr(self, name) for name in _COUNTS}
        if self.output_tokens is not None:
            counts["output_tokens"] = self.output_tokens
        for name, value in counts.items():
            check_tokens(name, value)
        if self.audio_tokens > self.input_tokens:
            raise ConfigurationError("audio_tokens are part of input_tokens, and exceed them")


_COUNTS = ("input_tokens", "audio_tokens", "choices", "web_searches", "file_searches")

"""What OpenTelemetry's own variables say: read once, by name, blanks as if they were not set."""

from __future__ import annotations

import os
from typing import Final

from opentelemetry.sdk.environment_variables import OTEL_EXPORTER_OTLP_PROTOCOL, OTEL_SDK_DISABLED

from sagaspan.exceptions import ConfigurationError

HTTP: Final = "http/protobuf"
GRPC: Final = "grpc"
EXPORT_TIMEOUT: Final = 5  # seconds


def first_set(*names: str) -> str | None:
    """The value of the first of these variables that is set."""
    return next((value for name in names if (value := os.environ.get(name, "").strip())), None)


def disabled() -> bool:
    """Whether the whole SDK is turned off."""
    return (first_set(OTEL_SDK_DISABLED) or "").lower() == "true"


def exports_otlp(name: str) -> bool:
    """Whether OTLP is among the exporters that the variable ``name`` lists, as it is if that is not set."""
    return "otlp" in [one.strip().lower() for one in (first_set(name) or "otlp").split(",")]


def protocol(*names: str) -> str:
    """How OTLP is spoken, from the first of these variables. Raises ``ConfigurationError`` if we do not have it."""
    found = first_set(*names) or HTTP
    if found not in (HTTP, GRPC):
        raise ConfigurationError(
            f"{OTEL_EXPORTER_OTLP_PROTOCOL}={found!r} is not supported: use {HTTP!r} (port 4318) or {GRPC!r} (4317)."
        )
    return found

"""Which module is for which URL. The client library of an engine is loaded with it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final
from urllib.parse import urlsplit

from ..errors import UsageError
from .engine import Engine, EngineOptions

__all__ = ["make_engine"]

ENGINES: Final = {
    "nats": "nats",
    "tls": "nats",
    "mqtt": "mqtt",
    "mqtts": "mqtt",
    "redis": "redis",
    "rediss": "redis",
}
"""The module for each scheme of a URL."""


def make_engine(
    url: str, options: EngineOptions, imported: Sequence[bytes], separator: bytes, warn: Callable[[str], object]
) -> Engine:
    """The engine for a URL, not yet connected. Raises :exc:`~sbuslib.errors.UsageError`."""
    place = urlsplit(url.partition(",")[0])
    if place.scheme not in ENGINES:
        raise UsageError(f"the URL of an engine starts with {', '.join(f'{one}://' for one in ENGINES)}")
    try:
        match ENGINES[place.scheme]:
            case "nats":
                from .nats import Nats

                return Nats(url, options, imported, separator, warn)
            case "mqtt":
                from .mqtt import Mqtt

                return Mqtt(place, options, separator, warn)
            case _:
                from .redis import Redis

                return Redis(url, options, separator, warn)
    except ImportError as error:
        extra = ENGINES[place.scheme]
        raise UsageError(f"{error}: pip install 'sbuslib[{extra}]'") from None

"""Which module is for which URL. The client library of an engine is loaded with it."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
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
"""The module for each scheme of a URL. The extra of the package has the same name."""


def make_engine(url: str, options: EngineOptions, separator: bytes, warn: Callable[[str], object]) -> Engine:
    """The engine for a URL, not yet connected. Raises :exc:`~sbuslib.errors.UsageError`."""
    name, *others = map(_module_of, url.split(",") if url.startswith(("nats:", "tls:")) else [url])
    if any(other != name for other in others):
        raise UsageError("a bridge joins one engine")
    try:
        module = import_module(f".{name}", __package__)
        engine: Engine = getattr(module, name.capitalize())(url, options, separator, warn)
    except ImportError as error:
        raise UsageError(f"{error}: pip install 'sbuslib[{name}]'") from None
    return engine


def _module_of(url: str) -> str:
    """The module for a URL. The error does not repeat the URL, where a password may be."""
    try:
        place = urlsplit(url)
        if place.scheme in ENGINES and place.hostname and place.port != 0 and not place.query:
            return ENGINES[place.scheme]
    except ValueError:
        pass
    raise UsageError(f"the URL of an engine is SCHEME://HOST or SCHEME://HOST:PORT; schemes: {', '.join(ENGINES)}")
